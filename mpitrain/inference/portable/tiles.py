"""Fast computation of a tile of samples: statements of several values interleaved, several sums at a time.

A CPU executes independent operations in parallel only if they are near each other in the program. An activation and a
sum are long chains of dependent operations, so the statements of several of them are interleaved. The operations of
each value, and so its bits, do not change.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# Number of values of an activation that are interleaved, and the fewest statements for which that is faster.
SIDE_BY_SIDE = 4
_FEWEST_STATEMENTS = 8
# Numbers of sums of a layer that fit in registers. AVX-512 has 32. Without it there are 16, some of which hold weights:
# GCC spills four sums of two vectors, and Clang does not vectorise three.
_SUMS = (6, 4, 1)
_SUMS_IN_C = {"#ifdef __AVX512F__": _SUMS, "#elif defined(__clang__)": (4, 1), "#else": (3, 1)}


def takes_turns(lines: Sequence[tuple[str, str]]) -> bool:
    """Tell whether an activation has enough statements for interleaving to be faster."""
    return len(lines) >= _FEWEST_STATEMENTS


def side_by_side(lines: Sequence[tuple[str, str]], places: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the statements (name, expression) of a value, interleaved for `SIDE_BY_SIDE` values.

    `places`: pairs of a text such as z[k] and its replacement, in which {n} is the number of the value.
    """
    return [(of_value(name, n, places), of_value(text, n, places)) for name, text in lines for n in range(SIDE_BY_SIDE)]


def of_value(text: str, n: int, places: Sequence[tuple[str, str]]) -> str:
    """Return a statement's text for value n: t7 becomes t7_0 for n = 0, and so on."""
    for place, there in places:
        text = text.replace(place, there.format(n=n))
    return re.sub(r"\bt(\d+)\b", rf"t\1_{n}", text)


def blocks_of_sums(num_out: int) -> Iterator[tuple[int, int, int]]:
    """Yield blocks of a layer's outputs: first output, end, and the number of sums computed at a time."""
    first = 0
    for count in _SUMS:
        end = num_out - (num_out - first) % count
        if end > first:
            yield first, end, count
        first = end


def c_dense_tile() -> str:
    """Return the C function `dense_tile`."""
    parts = [part for condition, sums in _SUMS_IN_C.items() for part in (condition, *map(_c_block, sums))]
    return _DENSE_TILE.format(blocks="\n".join([*parts, "#endif"]))


def _c_block(count: int) -> str:
    sums = range(count)
    starts = "\n".join(f"            sum_{q}[b] = start ? start[j + {q}] : (real)0;" for q in sums)
    terms = "\n".join(f"                const real product_{q} = row[{q}] * value;" for q in sums)
    added = "\n".join(f"                sum_{q}[b] = sum_{q}[b] + product_{q};" for q in sums)
    stored = "\n".join(f"            sums[(j + {q}) * TILE + b] = sum_{q}[b];" for q in sums)
    return f"""\
    for (; j + {count} <= num_out; j += {count}) {{
        real {", ".join(f"sum_{q}[TILE]" for q in sums)};
        for (int b = 0; b < TILE; ++b) {{
{starts}
        }}
        for (int i = 0; i < num_in; ++i) {{
            const real *RESTRICT row = weight + i * num_out + j;
            {"AS_A_LOOP " if count == 1 else ""}for (int b = 0; b < TILE; ++b) {{
                const real value = h[i * TILE + b];
{terms}
{added}
            }}
        }}
        for (int b = 0; b < TILE; ++b) {{
{stored}
        }}
    }}"""


_DENSE_TILE = """\
/* The same as dense_one for TILE samples, h [num_in][TILE] and sums [num_out][TILE], with vectors along the samples:
   as many sums at a time as fit in registers. */
static INLINE void dense_tile(int num_in, int num_out, const real *RESTRICT weight, const real *RESTRICT start,
                              const real *RESTRICT h, real *RESTRICT sums) {{
    int j = 0;
{blocks}
}}
"""
