"""How a tile of samples is computed fast: statements of several values side by side, several sums at a time.

A CPU starts an operation before the one in front of it is done, but only of those that are near in the program. An
activation is one long chain, and a sum is one, too; so several of them take turns, statement by statement. Each value
has the operations, and the bits, that it has alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

# How many values of an activation take turns, and below how many statements that gains nothing.
SIDE_BY_SIDE = 4
_FEWEST_STATEMENTS = 8
# How many sums of a layer stay in registers, of which AVX-512 has 32. Of 16, weights take a part: GCC spills four sums
# of two vectors, and Clang makes no vectors of three.
_SUMS = (6, 4, 1)
_SUMS_IN_C = {"#ifdef __AVX512F__": _SUMS, "#elif defined(__clang__)": (4, 1), "#else": (3, 1)}


def takes_turns(lines: Sequence[tuple[str, str]]) -> bool:
    """Return whether an activation is long enough to gain by it."""
    return len(lines) >= _FEWEST_STATEMENTS


def side_by_side(lines: Sequence[tuple[str, str]], places: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the statements (name, expression) of a value for `SIDE_BY_SIDE` values in turns.

    `places` are texts such as z[k] with what stands there instead, where {n} is the number of the value.
    """
    return [(of_value(name, n, places), of_value(text, n, places)) for name, text in lines for n in range(SIDE_BY_SIDE)]


def of_value(text: str, n: int, places: Sequence[tuple[str, str]]) -> str:
    """Return a text for value n: t7 becomes t7_0, and so on."""
    for place, there in places:
        text = text.replace(place, there.format(n=n))
    return re.sub(r"\bt(\d+)\b", rf"t\1_{n}", text)


def blocks_of_sums(num_out: int) -> Iterator[tuple[int, int, int]]:
    """Yield first output, end, and how many sums are computed at a time, for all outputs of a layer."""
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
/* The same for TILE samples, h [num_in][TILE] and sums [num_out][TILE], with vectors along the samples: as many sums at
   a time as stay in registers. */
static INLINE void dense_tile(int num_in, int num_out, const real *RESTRICT weight, const real *RESTRICT start,
                              const real *RESTRICT h, real *RESTRICT sums) {{
    int j = 0;
{blocks}
}}
"""
