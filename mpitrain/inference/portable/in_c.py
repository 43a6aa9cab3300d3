"""Portable arithmetic as source that is both C99 and C++17: functions of one architecture, without the weights.

S  samples computed together: one, with vectors along a layer's outputs, or a tile, with vectors along the samples

`kernel.py` compiles this source for `mpitrain predict`; exported sources contain it and the weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.inference.portable.c_network import network_functions
from mpitrain.inference.portable.functions import ACTIVATIONS, COEFFICIENTS
from mpitrain.inference.portable.network import NORM_EPSILON, Array, PortableNetwork
from mpitrain.inference.portable.statements import Language, write_statements
from mpitrain.inference.portable.tiles import SIDE_BY_SIDE, c_dense_tile, of_value, side_by_side, takes_turns

_PREFIXED = ("INLINE", "RESTRICT", "AS_A_LOOP", "TILE", "MEMBERS", "INPUTS", "OUTPUTS")
# A tile of float32 is one AVX-512 register, or two of AVX2.
_TILE_BYTES = 64
_SOURCES = Path(__file__).with_name("sources")

# GCC fuses across statements unless the pragma here forbids it; Clang and others implement the standard's pragma. No
# pragma undoes -ffast-math. Without no-trapping-math GCC does not vectorise activations on CPUs without AVX-512,
# because a choice between two values is then a branch. schedule-insns interleaves values, for which 16 registers are
# too few. FLT_EVAL_METHOD 16 is that of CPUs with float16.
C_BEGIN = """\
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || (FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16)
#error "compile without -ffast-math and -Ofast, with SSE: otherwise results differ from those of mpitrain predict"
#endif
#if defined(__clang__)
#pragma float_control(push)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off", "no-trapping-math")
#ifdef __AVX512F__
#pragma GCC optimize("schedule-insns")
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
#if defined(__GNUC__) && !defined(__clang__)
#define AS_A_LOOP _Pragma("GCC unroll 1")
#else
#define AS_A_LOOP
#endif
"""
C_END = """\
#undef INLINE
#undef RESTRICT
#undef AS_A_LOOP
#if defined(__clang__)
#pragma float_control(pop)
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif
"""


def c_number(value: np.floating[Any]) -> str:
    """Return an exact hexadecimal constant of C; with the suffix f for float32."""
    digits = re.sub(r"(\.[0-9a-f]*?)0+p", r"\1p", float(value).hex()).replace(".p", "p")
    return f"{digits}f" if value.dtype == np.float32 else digits


# Both values are names or constants, so compilers turn this choice into a select without a branch.
_C = Language(
    c_number, select="{condition} ? {yes} : {no}", absolute="ABSOLUTE({x})", with_sign="COPY_SIGN({size}, {x})"
)


def c_functions(network: PortableNetwork, num_members: int, prefix: str) -> str:
    """Return the type `network_numbers`, and the network's functions for one sample and for a tile."""
    activations = sorted({layer.activation for layer in network.layers} - {"none"})
    functions = [_activation(name, network.dtype) for name in activations]
    # Compilers warn of unused functions.
    power_of_two = [read_source("power_of_two.h")] if any("power_of_two" in text for text in functions) else []
    parts = [
        _constants(network, num_members),
        _types(network),
        read_source("helpers.h"),
        c_dense_tile(),
        *([read_source("layer_norm.h")] if network.has_norms else []),
        *([read_source("residual.h")] if any(layer.is_residual for layer in network.layers) else []),
        *power_of_two,
        *functions,
        *network_functions(network, num_members, read_source("members.h")),
    ]
    text = with_prefix("\n".join(parts), prefix)
    for macro, name in (("ABSOLUTE", "fabs"), ("SQUARE_ROOT", "sqrt"), ("COPY_SIGN", "copysign")):
        text = text.replace(macro, f"{name}f" if network.dtype == "float32" else name)
    return text


def read_source(name: str) -> str:
    """Return a part of the source that is the same for all networks."""
    return (_SOURCES / name).read_text(encoding="utf-8")


def with_prefix(text: str, prefix: str) -> str:
    """Return the text with a prefix added to its macros and constants, to avoid clashes with other sources."""
    return re.sub(rf"\b({'|'.join(_PREFIXED)})\b", rf"{prefix.upper()}_\1", text)


def numbers_of(network: PortableNetwork) -> Iterator[tuple[str, Array]]:
    """Yield names and values of the members of the struct `network_numbers`, in its order."""
    yield "input_mean", network.input_mean
    yield "input_std", network.input_std
    for number, layer in enumerate(network.layers, 1):
        yield f"weight_{number}", layer.weight
        yield f"transposed_{number}", layer.weight.T
        yield f"bias_{number}", layer.bias
        if layer.norm is not None:
            yield f"scale_{number}", layer.norm.scale
            yield f"offset_{number}", layer.norm.offset
    if network.output_mean is not None and network.output_std is not None:
        yield "output_mean", network.output_mean
        yield "output_std", network.output_std


def _constants(network: PortableNetwork, num_members: int) -> str:
    c, limits, real = COEFFICIENTS[network.dtype], network.limits, np.dtype(network.dtype).type
    itemsize = np.dtype(network.dtype).itemsize
    named = {"VALUE_LIMIT": limits.value, "SUM_LIMIT": limits.sum, "RESULT_LIMIT": limits.result}
    if num_members > 1 or network.has_norms:
        named["DEVIATION_LIMIT"] = limits.deviation
    if network.has_norms:
        named["NORM_EPSILON"] = NORM_EPSILON
    return f"""\
typedef {"float" if itemsize == 4 else "double"} real;
typedef uint{8 * itemsize}_t bits_of_real;

enum {{ INPUTS = {network.sizes[0]}, OUTPUTS = {network.sizes[-1]} }};
enum {{ MEMBERS = {num_members}, TILE = {tile_of(network)} }};
enum {{ MANTISSA_BITS = {c.mantissa_bits}, EXPONENT_BIAS = {c.exponent_bias} }};
/* Smaller numbers count as 0, so that no result depends on whether the CPU flushes subnormal numbers to 0. */
{chr(10).join(f"static const real {name} = {c_number(real(value))};" for name, value in named.items())}
"""


def tile_of(network: PortableNetwork) -> int:
    """Return the number of samples in a tile."""
    return _TILE_BYTES // np.dtype(network.dtype).itemsize


def _types(network: PortableNetwork) -> str:
    numbers = [f"    real {name}[{' * '.join(map(str, value.shape))}];" for name, value in numbers_of(network)]
    slopes = []
    for number, layer in enumerate(network.layers, 1):
        size = f"{len(layer.bias)} * TILE"
        slopes += [f"    real layer_{number}[{size}];"] if layer.activation != "none" else []
        slopes += [f"    real normalised_{number}[{size}], factor_{number}[TILE];"] if layer.norm is not None else []
    return f"""\
/* weight_1 [inputs][outputs] of layer 1, for sums along its outputs; transposed_1 for those of the adjoint. */
typedef struct {{
{chr(10).join(numbers)}
}} network_numbers;

/* Kept by a forward pass for derivatives: slopes of activations [outputs][S], and normalised values of norms. */
typedef struct {{
{chr(10).join(slopes or ["    real none; /* C has no empty struct */"])}
}} slopes_of_layers;
"""


def _activation(name: str, dtype: str) -> str:
    function = ACTIVATIONS[name]
    values, y = write_statements(function.value, ["z[k]"], _C, dtype)
    slopes, slope = write_statements(function.slope, ["z[k]", "h[k]"], _C, dtype)
    return f"""\
/* h = {name}(z). */
static INLINE void {name}_values(int count, real limit, const real *RESTRICT z, real *RESTRICT h) {{
    for (int k = 0; k < count; ++k) {{
{_statements(values)}
        h[k] = without_tiny({y}, limit);
    }}
}}
{_values_of_tile(name, values, y)}
/* Its derivative with respect to z. */
static INLINE void {name}_slopes(int count, const real *RESTRICT z, const real *RESTRICT h, real *RESTRICT slope) {{
    {"" if any("z[k]" in text for _, text in slopes) else "(void)z;"}
    {"" if any("h[k]" in text for _, text in slopes) else "(void)h;"}
    for (int k = 0; k < count; ++k) {{
{_statements(slopes)}
        slope[k] = {slope};
    }}
}}
"""


def _values_of_tile(name: str, values: list[tuple[str, str]], y: str) -> str:
    """Return the C function for the values [units][TILE] of a tile."""
    head = f"static INLINE void {name}_of_tile(int units, real limit, const real *RESTRICT z, real *RESTRICT h) {{"
    rest = f"{name}_values((units - j) * TILE, limit, z + j * TILE, h + j * TILE);"
    if not takes_turns(values):
        return f"""
{head}
    const int j = 0;
    {rest}
}}
"""
    places = [("z[k]", "z[k + {n} * TILE]"), ("h[k]", "h[k + {n} * TILE]")]
    stored = f"        h[k] = without_tiny({y}, limit);"
    return f"""
/* The same for [units][TILE]: {SIDE_BY_SIDE} units at a time, interleaved: each is a chain of dependent operations. */
{head}
    int j = 0;
    for (; j + {SIDE_BY_SIDE} <= units; j += {SIDE_BY_SIDE})
        for (int k = j * TILE; k < (j + 1) * TILE; ++k) {{
{_statements(side_by_side(values, places))}
{chr(10).join(of_value(stored, n, places) for n in range(SIDE_BY_SIDE))}
        }}
    {rest}
}}
"""


def _statements(lines: list[tuple[str, str]]) -> str:
    return "\n".join(f"        const real {name} = {expression};" for name, expression in lines)
