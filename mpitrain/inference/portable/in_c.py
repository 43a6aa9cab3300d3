"""Prediction's own arithmetic as C99 that is C++17 too: the functions of one architecture, with the weights elsewhere.

S  samples that are computed together: one, with vectors along a layer's outputs, or a tile, with vectors along them

`kernel.py` compiles this text for `mpitrain predict`; the exported sources hold it with the weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources

import numpy as np

from mpitrain.inference.portable.functions import ACTIVATIONS, COEFFICIENTS
from mpitrain.inference.portable.network import PortableNetwork
from mpitrain.inference.portable.statements import write_down

_PREFIXED = ("INLINE", "RESTRICT", "TILE", "MEMBERS", "INPUTS", "OUTPUTS")
# A tile of float32 is one AVX-512 register, or two of AVX2.
_TILE_BYTES = 64

# Macros end at the end of the source. GCC fuses across statements, unless told here; Clang and others know the standard's
# pragma. What is compiled with -ffast-math has other values, whatever a source says.
_BEGIN = """\
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "compile without -ffast-math and -Ofast, with SSE: the results would be others than those of mpitrain predict"
#endif
#if defined(__clang__)
#pragma float_control(push)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512")
#endif
#else
#pragma STDC FP_CONTRACT OFF
#endif
#ifdef __GNUC__
#define INLINE inline __attribute__((always_inline))
#define RESTRICT __restrict__
#else
#define INLINE inline
#define RESTRICT
#endif
"""
_END = """\
#undef INLINE
#undef RESTRICT
#if defined(__clang__)
#pragma float_control(pop)
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif
"""


class CLanguage:
    """See `statements.Language`."""

    def number(self, value: float, dtype: str) -> str:
        """Return the number as a hexadecimal constant of its type."""
        return c_number(np.dtype(dtype).type(value))

    def select(self, condition: str, yes: str, no: str) -> str:
        """Return a choice that compilers turn into a select: nothing is left to compute."""
        return f"{condition} ? {yes} : {no}"

    def absolute(self, x: str) -> str:
        """Return |x|."""
        return f"ABSOLUTE({x})"


def c_number(value: np.floating) -> str:  # type: ignore[type-arg]
    """Return the exact number; a float constant for float32."""
    digits = re.sub(r"(\.[0-9a-f]*?)0+p", r"\1p", float(value).hex()).replace(".p", "p")
    return f"{digits}f" if value.dtype == np.float32 else digits


def c_begin(prefix: str) -> str:
    """Return what precedes the functions: headers, and what keeps compilers from fusing. Ends with `c_end`."""
    return with_prefix(_BEGIN, prefix)


def c_end(prefix: str) -> str:
    """Return what gives the compiler back its options."""
    return with_prefix(_END, prefix)


def c_functions(network: PortableNetwork, num_members: int, prefix: str) -> str:
    """Return the type `network_numbers`, and the functions of it for one sample and for a tile."""
    parts = [
        _constants(network, num_members),
        _members_of_struct(network),
        _resource("helpers.h"),
        *(_activation(name, network.dtype) for name in sorted({layer.activation for layer in network.layers} - {"none"})),
        *(_network_functions(network, suffix) for suffix in ("one", "tile")),
        _resource("members.h") if num_members > 1 else "",
        *(_mean_functions(num_members, suffix) for suffix in ("one", "tile")),
    ]
    return with_prefix("\n".join(filter(None, parts)), prefix).replace("ABSOLUTE", _function("fabs", network)).replace(
        "SQUARE_ROOT", _function("sqrt", network)
    )


def with_prefix(text: str, prefix: str) -> str:
    """Return the text with the prefix before its macros and constants: other sources may have the same ones."""
    return re.sub(rf"\b({'|'.join(_PREFIXED)})\b", rf"{prefix.upper()}_\1", text)


def numbers_of(network: PortableNetwork) -> Iterator[tuple[str, np.ndarray]]:  # type: ignore[type-arg]
    """Yield the members of the struct `network_numbers` in its order, with their values."""
    yield "input_mean", network.input_mean
    yield "input_std", network.input_std
    for number, layer in enumerate(network.layers, 1):
        yield f"weight_{number}", layer.weight
        yield f"transposed_{number}", layer.weight.T
        yield f"bias_{number}", layer.bias
    if network.output_mean is not None and network.output_std is not None:
        yield "output_mean", network.output_mean
        yield "output_std", network.output_std


def _function(name: str, network: PortableNetwork) -> str:
    return f"{name}f" if network.dtype == "float32" else name


def _resource(name: str) -> str:
    return resources.files("mpitrain.inference.portable.sources").joinpath(name).read_text()


def _constants(network: PortableNetwork, num_members: int) -> str:
    c, limits, language = COEFFICIENTS[network.dtype], network.limits, CLanguage()
    itemsize = np.dtype(network.dtype).itemsize
    named = {"VALUE_LIMIT": limits.value, "SUM_LIMIT": limits.sum, "RESULT_LIMIT": limits.result}
    if num_members > 1:
        named["DEVIATION_LIMIT"] = limits.deviation
    return f"""\
typedef {"float" if itemsize == 4 else "double"} real;
typedef uint{8 * itemsize}_t bits_of_real;

enum {{ INPUTS = {network.sizes[0]}, OUTPUTS = {network.sizes[-1]}, MEMBERS = {num_members}, TILE = {tile_of(network)} }};
enum {{ MANTISSA_BITS = {c.mantissa_bits}, EXPONENT_BIAS = {c.exponent_bias} }};
/* Smaller numbers count as 0, so that no result depends on whether the CPU flushes subnormal numbers to 0. */
{chr(10).join(f"static const real {name} = {language.number(value, network.dtype)};" for name, value in named.items())}
"""


def tile_of(network: PortableNetwork) -> int:
    """Return how many samples of a batch are computed together."""
    return _TILE_BYTES // np.dtype(network.dtype).itemsize


def _members_of_struct(network: PortableNetwork) -> str:
    lines = [f"    real {name}[{' * '.join(map(str, value.shape))}];" for name, value in numbers_of(network)]
    what = "/* weight_1 [inputs][outputs] of layer 1, for sums along the outputs; transposed_1 for those of the adjoint. */"
    slopes = [
        f"    real layer_{number}[{len(layer.bias)} * TILE];"
        for number, layer in enumerate(network.layers, 1)
        if layer.activation != "none"
    ]
    # C has no empty struct.
    slopes = slopes or ["    real none;"]
    return "\n".join(
        [what, "typedef struct {", *lines, "} network_numbers;", "",
         "/* What derivatives need of a forward pass: the activations' slopes [outputs][S]. */",
         "typedef struct {", *slopes, "} slopes_of_layers;", ""]
    )  # fmt: skip


def _activation(name: str, dtype: str) -> str:
    function = ACTIVATIONS[name]
    values, y = write_down(function.value, ["z[k]"], CLanguage(), dtype)
    slopes, slope = write_down(function.slope, ["z[k]", "h[k]"], CLanguage(), dtype)
    return f"""\
/* h = {name}(z). */
static INLINE void {name}_values(int count, real limit, const real *RESTRICT z, real *RESTRICT h) {{
    for (int k = 0; k < count; ++k) {{
{_statements(values)}
        h[k] = without_tiny({y}, limit);
    }}
}}

/* Its derivative by z. */
static INLINE void {name}_slopes(int count, const real *RESTRICT z, const real *RESTRICT h, real *RESTRICT slope) {{
    {"" if any("z[k]" in text for _, text in slopes) else "(void)z;"}
    {"" if any("h[k]" in text for _, text in slopes) else "(void)h;"}
    for (int k = 0; k < count; ++k) {{
{_statements(slopes)}
        slope[k] = {slope};
    }}
}}
"""


def _statements(lines: list[tuple[str, str]]) -> str:
    return "\n".join(f"        const real {name} = {expression};" for name, expression in lines)


def _network_functions(network: PortableNetwork, suffix: str) -> str:
    return "\n".join(
        ["/* One sample. */" if suffix == "one" else "/* A tile of samples: x [INPUTS][TILE], y [OUTPUTS][TILE]. */",
         _forward(network, suffix), _tangent(network, suffix), _backward(network, suffix)]
    )  # fmt: skip


def _samples(suffix: str) -> str:
    return "1" if suffix == "one" else "TILE"


def _forward(network: PortableNetwork, suffix: str) -> str:
    samples, sizes = _samples(suffix), network.sizes
    lines = [
        f"static INLINE void forward_{suffix}(const network_numbers *n, const real *RESTRICT x, real *RESTRICT y,",
        "                               slopes_of_layers *slopes) {",
        f"    real h0[INPUTS * {samples}];",
        "    for (int i = 0; i < INPUTS; ++i)",
        f"        for (int k = i * {samples}; k < (i + 1) * {samples}; ++k) {{",
        "            const real difference = without_tiny(x[k], SUM_LIMIT) - n->input_mean[i];",
        "            h0[k] = without_tiny(difference / n->input_std[i], VALUE_LIMIT);",
        "        }",
    ]
    has_slopes = False
    for number, layer in enumerate(network.layers, 1):
        num_in, num_out = sizes[number - 1], sizes[number]
        count, is_last = f"{num_out} * {samples}", number == len(network.layers)
        limit = "RESULT_LIMIT" if is_last else "VALUE_LIMIT"
        lines += [
            f"    real z{number}[{count}], h{number}[{count}];",
            f"    dense_{suffix}({num_in}, {num_out}, n->weight_{number}, n->bias_{number}, h{number - 1}, z{number});",
        ]
        if layer.activation == "none":
            lines.append(f"    for (int k = 0; k < {count}; ++k) h{number}[k] = without_tiny(z{number}[k], {limit});")
        else:
            has_slopes = True
            values = f"{layer.activation}_values({count}, {limit}, z{number}, h{number})"
            slopes = f"{layer.activation}_slopes({count}, z{number}, h{number}, slopes->layer_{number})"
            lines += [f"    {values};", f"    if (slopes) {slopes};"]
    lines += [] if has_slopes else ["    (void)slopes;"]
    last = f"h{len(network.layers)}"
    lines += ["    for (int o = 0; o < OUTPUTS; ++o)", f"        for (int k = o * {samples}; k < (o + 1) * {samples}; ++k) {{"]
    if network.output_mean is None:
        lines.append(f"            y[k] = {last}[k];")
    else:
        lines += [
            f"            const real product = {last}[k] * n->output_std[o];",
            "            y[k] = without_tiny(product, SUM_LIMIT) + n->output_mean[o];",
        ]
    return "\n".join([*lines, "        }", "}", ""])


def _tangent(network: PortableNetwork, suffix: str) -> str:
    samples, sizes = _samples(suffix), network.sizes
    lines = [
        "/* dy = K dx, at the sample whose slopes these are. */",
        f"static INLINE void tangent_{suffix}(const network_numbers *n, const slopes_of_layers *slopes,",
        "                               const real *RESTRICT dx, real *RESTRICT dy) {",
        f"    real h0[INPUTS * {samples}];",
        *_divided_by_std("dx", "h0", samples, "without_tiny(dx[k], RESULT_LIMIT)", "VALUE_LIMIT"),
    ]
    has_slopes = False
    for number, layer in enumerate(network.layers, 1):
        num_in, num_out = sizes[number - 1], sizes[number]
        has_slopes = has_slopes or layer.activation != "none"
        slopes = "NULL" if layer.activation == "none" else f"slopes->layer_{number}"
        lines += [
            f"    real z{number}[{num_out} * {samples}], h{number}[{num_out} * {samples}];",
            f"    dense_{suffix}({num_in}, {num_out}, n->weight_{number}, NULL, h{number - 1}, z{number});",
            f"    times_slopes({num_out} * {samples}, z{number}, {slopes}, h{number});",
        ]
    lines += [] if has_slopes else ["    (void)slopes;"]
    factor = "" if network.output_std is None else " * n->output_std[o]"
    return "\n".join(
        [*lines, "    for (int o = 0; o < OUTPUTS; ++o)",
         f"        for (int k = o * {samples}; k < (o + 1) * {samples}; ++k) {{",
         f"            const real value = h{len(network.layers)}[k]{factor};",
         "            dy[k] = without_tiny(value, RESULT_LIMIT);", "        }", "}", ""]
    )  # fmt: skip


def _divided_by_std(name: str, result: str, samples: str, value: str, limit: str) -> list[str]:
    return [
        "    for (int i = 0; i < INPUTS; ++i)",
        f"        for (int k = i * {samples}; k < (i + 1) * {samples}; ++k) {{",
        f"            const real quotient = {value} / n->input_std[i];",
        f"            {result}[k] = without_tiny(quotient, {limit});",
        "        }",
    ]


def _backward(network: PortableNetwork, suffix: str) -> str:
    samples, sizes, count = _samples(suffix), network.sizes, len(network.layers)
    factor = "" if network.output_std is None else " * n->output_std[o]"
    lines = [
        "/* dx = K^T dy, at the sample whose slopes these are. */",
        f"static INLINE void adjoint_{suffix}(const network_numbers *n, const slopes_of_layers *slopes,",
        "                               const real *RESTRICT dy, real *RESTRICT dx) {",
        f"    real z{count}[OUTPUTS * {samples}];",
        "    for (int o = 0; o < OUTPUTS; ++o)",
        f"        for (int k = o * {samples}; k < (o + 1) * {samples}; ++k) {{",
        f"            const real value = without_tiny(dy[k], RESULT_LIMIT){factor};",
        f"            z{count}[k] = without_tiny(value, VALUE_LIMIT);",
        "        }",
    ]
    has_slopes = False
    for number, layer in reversed(list(enumerate(network.layers, 1))):
        num_in, num_out = sizes[number - 1], sizes[number]
        has_slopes = has_slopes or layer.activation != "none"
        slopes = "NULL" if layer.activation == "none" else f"slopes->layer_{number}"
        lines += [
            f"    real h{number}[{num_out} * {samples}], z{number - 1}[{num_in} * {samples}];",
            f"    times_slopes({num_out} * {samples}, z{number}, {slopes}, h{number});",
            f"    dense_{suffix}({num_out}, {num_in}, n->transposed_{number}, NULL, h{number}, z{number - 1});",
        ]
    lines += [] if has_slopes else ["    (void)slopes;"]
    return "\n".join([*lines, *_divided_by_std("z0", "dx", samples, "z0[k]", "RESULT_LIMIT"), "}", ""])


def _mean_functions(num_members: int, suffix: str) -> str:
    """The four functions over all members; spreads only of ensembles."""
    samples = _samples(suffix)
    blocks = {
        "forward": ("const real *RESTRICT x, real *RESTRICT y", "OUTPUTS", "y", "forward_{s}(&members[m], x, {v}, NULL);"),
        "tangent_linear": (
            "const real *RESTRICT x, const real *RESTRICT dx, real *RESTRICT dy", "OUTPUTS", "dy",
            "forward_{s}(&members[m], x, unused, &slopes);\n        tangent_{s}(&members[m], &slopes, dx, {v});",
        ),
        "adjoint": (
            "const real *RESTRICT x, const real *RESTRICT dy, real *RESTRICT dx", "INPUTS", "dx",
            "forward_{s}(&members[m], x, unused, &slopes);\n        adjoint_{s}(&members[m], &slopes, dy, {v});",
        ),
    }  # fmt: skip
    texts = []
    for name, (arguments, size, result, calls) in blocks.items():
        target = result if num_members == 1 else f"values + m * {size} * {samples}"
        needs = "" if name == "forward" else f"    real unused[OUTPUTS * {samples}];\n    slopes_of_layers slopes;\n"
        spread = ", real *RESTRICT spread" if num_members > 1 and name == "forward" else ""
        body = calls.format(s=suffix, v=target)
        if num_members == 1:
            loop = f"    const int m = 0;\n    {body.replace(chr(10) + '    ', chr(10))}\n"
        else:
            given = "spread" if spread else "NULL"
            loop = (
                f"    real values[MEMBERS * {size} * {samples}];\n    for (int m = 0; m < MEMBERS; ++m) {{\n        {body}\n"
                f"    }}\n    over_members({size} * {samples}, values, {result}, {given});\n"
            )
        texts.append(
            f"static INLINE void all_{name}_{suffix}(const network_numbers *members, {arguments}{spread}) {{\n{needs}{loop}}}\n"
        )
    return "\n".join([*texts, _jacobian(num_members, suffix)])


def _jacobian(num_members: int, suffix: str) -> str:
    samples = _samples(suffix)
    spread = ", real *RESTRICT spread" if num_members > 1 else ""
    row = f"jacobian + o * INPUTS * {samples}"
    if num_members == 1:
        keep = f"        adjoint_{suffix}(&members[m], &slopes[m], unit, {row});"
    else:
        keep = f"""\
        real values[MEMBERS * INPUTS * {samples}];
        for (int m = 0; m < MEMBERS; ++m)
            adjoint_{suffix}(&members[m], &slopes[m], unit, values + m * INPUTS * {samples});
        over_members(INPUTS * {samples}, values, {row}, spread ? spread + o * INPUTS * {samples} : NULL);"""
    first = "    const int m = 0;\n" if num_members == 1 else ""
    forward = f"forward_{suffix}(&members[m], x, outputs + m * OUTPUTS * {samples}, &slopes[m]);"
    loop = f"    {forward}" if num_members == 1 else f"    for (int m = 0; m < MEMBERS; ++m) {forward}"
    mean = "y[k] = outputs[k]" if num_members == 1 else ""
    outputs = (
        f"    for (int k = 0; k < OUTPUTS * {samples}; ++k) {mean};"
        if mean
        else f"    over_members(OUTPUTS * {samples}, outputs, y, NULL);"
    )
    return f"""\
/* Outputs y [OUTPUTS][S], and jacobian [OUTPUTS][INPUTS][S]: row o is the adjoint of the unit vector o. */
static INLINE void all_jacobian_{suffix}(const network_numbers *members, const real *RESTRICT x, real *RESTRICT y,
                                    real *RESTRICT jacobian{spread}) {{
    slopes_of_layers slopes[MEMBERS];
    real outputs[MEMBERS * OUTPUTS * {samples}];
{first}{loop}
{outputs}
    for (int o = 0; o < OUTPUTS; ++o) {{
        real unit[OUTPUTS * {samples}];
        for (int k = 0; k < OUTPUTS * {samples}; ++k) unit[k] = (real)(k / {samples} == o);
{keep}
    }}
}}
"""
