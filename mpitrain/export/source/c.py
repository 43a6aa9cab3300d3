"""C99 and C++17: `emulator.h` and `emulator.c`, or `emulator.hpp`, each with its self-test.

Both languages share one text; `NAME(x)` is `emulator_x` in C, and `x` in the namespace `emulator` in C++.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mpitrain.export.source.c_interface import CHECKS, ONE, STATUS, batch_functions
from mpitrain.export.source.c_masked import FIELDS, masked_functions
from mpitrain.export.source.c_test import test_program
from mpitrain.export.source.emulator import CONVERSIONS, Emulator, Variable
from mpitrain.export.source.words import describe, usage
from mpitrain.inference.portable.in_c import C_BEGIN, C_END, c_functions, c_number, numbers_of, with_prefix

_WIDTH = 116
_ENUMS = {
    "layout": ("ROW_MAJOR", "COLUMN_MAJOR"),
    "finding": ("IS_ROW_MAJOR", "IS_COLUMN_MAJOR", "IS_EITHER", "IS_OTHER_ORDER", "IS_OTHER_UNITS", "IS_WRONG"),
}
_DOCUMENTED = {
    "forward": "Outputs y [O] of the inputs x [F] of one sample. {spread}`status` may be NULL.",
    "tangent_linear": "dy [O] = K dx, with the Jacobian K at x [F] and the perturbation dx [F].",
    "adjoint": "dx [F] = K^T dy, with the Jacobian K at x [F] and the sensitivity dy [O].",
    "jacobian": "Outputs y [O] and the derivatives jacobian [O][F] at x [F].{spread}",
    "forward_batch": "As forward, for a batch: row-major is sample after sample, x [num_samples][F]; column-major is "
    "variable after variable, x [F][num_samples].",
    "tangent_linear_batch": "",
    "adjoint_batch": "",
    "jacobian_batch": "Derivatives are [num_samples][O][F] row-major, and [O][F][num_samples] column-major.",
    "tangent_linear_masked": "As tangent_linear_batch, with results times `mask` [num_samples] (NULL: 1); 0 where "
    "the mask is 0, even if the arrays contain NaN there.",
    "adjoint_masked": "The adjoint of tangent_linear_masked.",
    "jac_pairs": "pairs [num_samples][num_pairs] row-major, [num_pairs][num_samples] column-major: the derivatives of "
    "outputs `rows` [num_pairs] by inputs `columns` [num_pairs], numbered from 0, times the mask. The cost is that of "
    "the distinct rows or of the distinct columns, whichever are fewer.",
    "find_outside": "Which samples are outside the range of the training data: is_outside [num_samples] is 1 or 0. It "
    "and `found` may be NULL.",
    "check_layout": "Check how a model packs its fields: x contains the probe num_samples >= 2 times, packed by the "
    "model. Returns the layout, or the kind of mistake; `input` (may be NULL) is the first wrong input, or -1.",
    "describe": "The meaning of a finding, as text.",
    "check_arithmetic": "1 if this build computes the bits of mpitrain predict, 0 if its compiler fused or reordered "
    "operations.",
}


def c_files(emulator: Emulator) -> dict[str, str]:
    """Return the sources in C99."""
    name = emulator.name
    functions, real = _interface(emulator), "float" if emulator.network.dtype == "float32" else "double"
    header = "\n".join(
        [_comment([*describe(emulator), "", *usage(emulator, "c")]), f"#ifndef {name.upper()}_H",
         f"#define {name.upper()}_H", "#include <stddef.h>", "", "#ifdef __cplusplus", 'extern "C" {', "#endif", "",
         *(f"#define NAME_NUM_{key} {value}" for key, value in _sizes(emulator).items()), "",
         f"typedef {real} NAME(real);", "", _types(True),
         "extern const NAME(variable) NAME(inputs)[NAME_NUM_INPUTS], NAME(outputs)[NAME_NUM_OUTPUTS];",
         "/* The sample that check_layout expects. */", "extern const NAME(real) NAME(probe)[NAME_NUM_INPUTS];", "",
         *_prototypes(functions, emulator), "", "#ifdef __cplusplus", "}", "#endif", "#endif", ""]
    )  # fmt: skip
    source = "\n".join(
        [_comment([f"See {name}.h."]), f'#include "{name}.h"', "", with_prefix(C_BEGIN, name),
         c_functions(emulator.network, len(emulator.networks), name), *_tables(emulator, "static const", "const"),
         _in_c(functions, emulator), with_prefix(C_END, name)]
    )  # fmt: skip
    return {
        f"{name}.h": _in_c(header, emulator),
        f"{name}.c": _in_c(source, emulator),
        f"{name}_test.c": _in_c(test_program(emulator, f'#include "{name}.h"', list(_expected(emulator))), emulator),
    }


def cpp_files(emulator: Emulator) -> dict[str, str]:
    """Return the sources in C++17: a header, and its self-test."""
    name, functions = emulator.name, _interface(emulator)
    header = "\n".join(
        [_comment([*describe(emulator), "", *usage(emulator, "c++")]), f"#ifndef {name.upper()}_HPP",
         f"#define {name.upper()}_HPP", "#include <array>", "#include <cstddef>", "#include <stdexcept>",
         "#include <vector>", with_prefix(C_BEGIN, name), f"namespace {name} {{",
         "namespace detail {", c_functions(emulator.network, len(emulator.networks), name), "}  // namespace detail",
         "",
         "using detail::real;",
         *(f"constexpr int num_{key.lower()} = {value};" for key, value in _sizes(emulator).items()),
         "", _types(False), *_prototypes(functions, emulator), "", *_tables(emulator, "inline const", "inline const"),
         "using namespace detail;", "", functions, _arrays(emulator), with_prefix(FIELDS, name),
         f"}}  // namespace {name}", with_prefix(C_END, name), "#endif",
         ""]
    )  # fmt: skip
    test = test_program(emulator, f'#include "{name}.hpp"\n\nusing namespace {name};', list(_expected(emulator)))
    return {f"{name}.hpp": _in_cpp(header, emulator), f"{name}_test.cpp": _in_cpp(test, emulator)}


def _interface(emulator: Emulator) -> str:
    spread = r"\1" if emulator.is_ensemble else ""
    checks = CHECKS.replace("ABSOLUTE", "fabsf" if emulator.network.dtype == "float32" else "fabs")
    text = "\n".join(
        [STATUS, ONE, batch_functions(emulator.is_ensemble), masked_functions(emulator.is_ensemble), checks]
    )
    return with_prefix(re.sub(r" ?SPREAD\(([^)]*)\)", spread, text), emulator.name)


def _in_c(text: str, emulator: Emulator) -> str:
    prefix = emulator.name
    for words in _ENUMS.values():
        for word in words:
            text = re.sub(rf"(?<![\w]){word}\b", f"{prefix.upper()}_{word}", text)
    text = re.sub(r"NAME\((\w+)\)", rf"{prefix}_\1", text).replace("NAME_NUM", f"{prefix.upper()}_NUM")
    return re.sub(r"(?m)^API ", "", text)


def _in_cpp(text: str, emulator: Emulator) -> str:
    for kind, words in _ENUMS.items():
        for word in words:
            text = re.sub(rf"(?<![\w]){word}\b", f"{kind}::{_cpp_word(word)}", text)
    text = re.sub(r"NAME\((\w+)\)", r"\1", text)
    text = re.sub(r"NAME_NUM_(\w+)", lambda found: f"num_{found[1].lower()}", text)
    return re.sub(r"(?m)^API ", "inline ", text)


def _sizes(emulator: Emulator) -> dict[str, int]:
    return {"INPUTS": len(emulator.inputs), "OUTPUTS": len(emulator.outputs), "MEMBERS": len(emulator.networks)}


def _types(is_c: bool) -> str:
    if is_c:
        struct, enum = "typedef struct {{\n    {1}\n}} NAME({0});", "typedef enum {{ {1} }} NAME({0});"
    else:
        struct, enum = "struct {0} {{\n    {1}\n}};", "enum class {0} {{ {1} }};"
    lines = [
        struct.format("variable", "const char *name, *units;\n    NAME(real) minimum, maximum, mean, std;"),
        "",
        "/* Samples with an input outside the range of the training data, or NaN: how many, the first one, its first",
        "   such input, and the input that lies farthest outside, in standard deviations (-1: none). */",
        struct.format("status", "size_t num_outside, first_sample;\n    int first_input, worst_input;"),
        "",
    ]
    for kind, words in _ENUMS.items():
        lines.append(enum.format(kind, ", ".join(words if is_c else map(_cpp_word, words))))
    return "\n".join([*lines, ""])


def _cpp_word(word: str) -> str:
    return word.removeprefix("IS_").lower()


def _prototypes(functions: str, emulator: Emulator) -> Iterator[str]:
    found = re.findall(r"^API ([^{;]*?NAME\((\w+)\)\([^{]*?\)) \{", functions, flags=re.MULTILINE | re.DOTALL)
    single = "`spread` [O] (may be NULL) is the standard deviation over the members. "
    of_jacobian = " `spread` [O][F] (may be NULL) is the standard deviation over the members."
    for signature, name in found:
        words = _DOCUMENTED[name].format(
            spread=(single if name == "forward" else of_jacobian) if emulator.is_ensemble else ""
        )
        if words:
            yield _comment([words])
        types = re.sub(r"\breal\b", "NAME(real)", " ".join(signature.split()))
        yield f"API {types};"


def _tables(emulator: Emulator, private: str, public: str) -> Iterator[str]:
    for name, variables in (("inputs", emulator.inputs), ("outputs", emulator.outputs)):
        rows = ",\n".join(f"    {{{_text(one)}}}" for one in variables)
        yield f"{public} NAME(variable) NAME({name})[NAME_NUM_{name.upper()}] = {{\n{rows}\n}};"
    probe = emulator.expected_of_probe
    yield _array(f"{public} NAME(real) NAME(probe)[NAME_NUM_INPUTS]", emulator.probe)
    yield _array(f"{private} NAME(real) probe_tolerance[NAME_NUM_INPUTS]", emulator.tolerance)
    yield _array(f"{private} NAME(real) probe_outputs[NAME_NUM_OUTPUTS]", probe[0])
    yield _array(f"{private} NAME(real) probe_jacobian[NAME_NUM_OUTPUTS * NAME_NUM_INPUTS]", probe[1])
    pairs = np.array(CONVERSIONS, emulator.network.dtype)
    yield _array(f"{private} NAME(real) conversions[{len(pairs)}][2]", pairs)
    members = ",\n".join("{\n" + ",\n".join(_member(network)) + "\n}" for network in emulator.networks)
    members_type = "network_numbers" if private.startswith("static") else "detail::network_numbers"
    yield f"{private} {members_type} members[NAME_NUM_MEMBERS] = {{\n{members}\n}};\n"


def _member(network: Any) -> Iterator[str]:
    for name, values in numbers_of(network):
        rows = values if values.ndim == 2 else values[None]
        yield f"/* {name} */ {{\n{_rows(rows)}}}"


def _text(one: Variable) -> str:
    numbers = ", ".join(repr(float(getattr(one, key))) for key in ("minimum", "maximum", "mean", "std"))
    return f"{_quoted(one.name)}, {_quoted(one.units)}, {numbers}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?") + '"'


def _array(declaration: str, values: Any) -> str:
    if values.ndim == 2:
        return f"{declaration} = {{\n" + ",\n".join(f"    {{{', '.join(map(c_number, row))}}}" for row in values) + "};"
    return f"{declaration} = {{\n{_rows(values[None])}}};"


def _rows(rows: Any) -> str:
    texts = [", ".join(map(c_number, row)) for row in rows]
    return ",\n".join(textwrap.fill(text, _WIDTH, initial_indent="    ", subsequent_indent="    ") for text in texts)


def _expected(emulator: Emulator) -> Iterator[str]:
    """Yield the self-test's numbers, as arrays [K * ...]."""
    for name, values in vars(emulator.expected).items():
        if values is not None:
            yield _array(f"static const NAME(real) expected_{name}[]", values.ravel())


def _comment(lines: Sequence[str]) -> str:
    safe = [line.replace("*/", "* /").replace("/*", "/ *") for line in lines]
    wrapped = [part for line in safe for part in (textwrap.wrap(line, _WIDTH, subsequent_indent="  ") or [""])]
    return "/* " + "\n   ".join(wrapped).rstrip() + " */"


def _arrays(emulator: Emulator) -> str:
    """Return overloads for std::array; C++ only."""
    if emulator.is_ensemble:
        return ""
    return """
using input_array = std::array<real, num_inputs>;
using output_array = std::array<real, num_outputs>;

inline output_array forward(const input_array &x) {
    output_array y;
    forward(x.data(), y.data(), nullptr);
    return y;
}

inline output_array tangent_linear(const input_array &x, const input_array &dx) {
    output_array dy;
    tangent_linear(x.data(), dx.data(), dy.data());
    return dy;
}

inline input_array adjoint(const input_array &x, const output_array &dy) {
    input_array dx;
    adjoint(x.data(), dy.data(), dx.data());
    return dx;
}
"""
