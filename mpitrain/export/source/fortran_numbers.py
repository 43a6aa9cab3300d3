"""Exact numbers in Fortran 2008, within the limits of 132 columns and 255 continuation lines per statement."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mpitrain.inference.portable.statements import Language

# Fortran 2008 allows 255 continuation lines per statement.
_MOST_NUMBERS, _MOST_NAMES = 960, 400
_WIDTH = 128


def number(value: Any) -> str:
    """Return a numpy number as a Fortran expression of its bits."""
    return f"real(z'{int(value.view(f'u{value.itemsize}')):0{2 * value.itemsize}X}', wp)"


FORTRAN = Language(number, select="merge({yes}, {no}, {condition})", absolute="abs({x})", with_sign="sign({size}, {x})")


def array(name: str, values: Any, shape: str = "") -> Iterator[str]:
    """Yield a constant array of `shape`, of one dimension by default: decimal numbers times a power of 2.

    The power of 2 changes no bits, and lets most numbers be written as integers, which are shorter.
    """
    flat = values.ravel()
    largest, bits = float(np.abs(flat[np.isfinite(flat)]).max(initial=0)), np.finfo(flat.dtype).nmant + 1
    power = bits - (math.frexp(largest)[1] if largest else bits)
    # Limit the power, so that a literal times a power of 2 is not rounded twice.
    power = min(max(power, -80), 80)
    names = []
    for count, first in enumerate(range(0, len(flat), _MOST_NUMBERS), 1):
        part = flat[first : first + _MOST_NUMBERS]
        names.append((f"{name}_r{count}", len(part)))
        head = f"real(wp), parameter :: {name}_r{count}({len(part)}) = [real(wp) ::"
        scaled = np.ldexp(part, power)
        # With the fewest digits that give the same bits.
        decimals = [_decimal(value) if np.isfinite(value) else number(value) for value in scaled]
        yield statement(head, decimals, "]", space="")
    times = f"2.0_wp**({-power}) * "
    before, after = (f"{times}reshape(", f", [{shape}])") if shape else (times, "")
    yield from _joined(name, names, shape or str(len(flat)), before, after)


def _decimal(value: Any) -> str:
    # An integer 0 has no sign, so zeros are written as reals.
    is_plain = 1e-3 <= abs(value) < 1e9
    text = np.format_float_positional(value, unique=True, trim="-") if is_plain else repr(float(value))
    is_integer = value.dtype == np.float32 and text.lstrip("-").isdigit()
    return text if is_integer else f"{text if '.' in text or 'e' in text else text + '.0'}_wp"


def _joined(name: str, parts: Sequence[tuple[str, int]], shape: str, before: str, after: str) -> Iterator[str]:
    """Yield the array that joins all parts (name and size), by way of intermediate arrays if there are many."""
    if len(parts) > _MOST_NAMES:
        groups = [parts[first : first + _MOST_NAMES] for first in range(0, len(parts), _MOST_NAMES)]
        sizes = [sum(size for _, size in group) for group in groups]
        for count, group in enumerate(groups, 1):
            head = f"real(wp), parameter :: {name}_g{count}({sizes[count - 1]}) = ["
            yield statement(head, [part for part, _ in group], "]")
        parts = [(f"{name}_g{count}", size) for count, size in enumerate(sizes, 1)]
    yield statement(f"real(wp), parameter :: {name}({shape}) = {before}[", [part for part, _ in parts], f"]{after}")


def texts(name: str, values: Sequence[str]) -> str:
    """Return the declaration of a constant array of texts, with the length of the longest."""
    longest = max(1, *(len(value.encode()) for value in values))  # Fortran counts bytes
    # Some compilers, for example nvfortran, read a backslash as an escape, which would hide the quote after it.
    quoted = ["'" + value.replace("'", "''").replace("\\", "/") + "'" for value in values]
    head = f"character(len={longest}), parameter :: {name}({len(values)}) = [character(len={longest}) ::"
    return statement(head, quoted, "]")


def statements(lines: Sequence[tuple[str, str]], indent: str) -> str:
    """Return assignments, one per line."""
    options: Any = {"initial_indent": indent, "subsequent_indent": f"{indent}  ", "break_long_words": False}
    wrapped = [textwrap.fill(f"{name} = {text}", _WIDTH, **options) for name, text in lines]
    return "\n".join(text.replace("\n", " &\n") for text in wrapped)


def kind_of_integer(dtype: str) -> str:
    """Return the integer kind with the size of the real kind."""
    return "int32" if np.dtype(dtype).itemsize == 4 else "int64"


def statement(head: str, parts: Sequence[str], tail: str = "", space: str = " ") -> str:
    """Join parts with commas, over lines that are continued with & before they get too long."""
    lines, line = [], f"  {head}"
    for count, part in enumerate(parts):
        text = f"{space}{part}" + ("," if count < len(parts) - 1 else "")
        if len((line + text).encode()) > _WIDTH - 2:
            lines.append(line + " &")
            line = "   "
        line += text
    if len(line) + len(tail) > _WIDTH:
        lines.append(line + " &")
        line = "   "
    return "\n".join([*lines, line + tail])
