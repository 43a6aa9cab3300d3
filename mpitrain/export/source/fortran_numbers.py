"""Numbers in Fortran 2008: exact, and within its limits of 132 columns and 255 continuation lines a statement."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mpitrain.inference.portable.statements import Language

_MOST_NUMBERS, _MOST_NAMES = 480, 400
_WIDTH = 128


def number(value: Any) -> str:
    """Return a numpy number by its bits."""
    return f"real(z'{int(value.view(f'u{value.itemsize}')):0{2 * value.itemsize}X}', wp)"


FORTRAN = Language(number, select="merge({yes}, {no}, {condition})", absolute="abs({x})")


def array(name: str, values: Any) -> Iterator[str]:
    """Yield the declaration of a constant array of any length, in parts where it is long."""
    flat = values.ravel()
    if len(flat) <= _MOST_NUMBERS:
        yield _statement(f"real(wp), parameter :: {name}({len(flat)}) = [", list(map(number, flat)), "]")
        return
    parts = [flat[first : first + _MOST_NUMBERS] for first in range(0, len(flat), _MOST_NUMBERS)]
    for count, part in enumerate(parts, 1):
        yield from array(f"{name}_p{count}", part)
    yield from _joined(name, [f"{name}_p{count}" for count in range(1, len(parts) + 1)], str(len(flat)), "", "")


def matrix(name: str, rows: Sequence[Any], shape: str) -> Iterator[str]:
    """Yield one array a row, and the array of them all, of `shape`."""
    names = []
    for count, row in enumerate(rows, 1):
        names.append(f"{name}_r{count}")
        yield from array(names[-1], row)
    yield from _joined(name, names, shape, "reshape(", f", [{shape}])")


def _joined(name: str, parts: Sequence[str], shape: str, before: str, after: str) -> Iterator[str]:
    if len(parts) > _MOST_NAMES:
        groups = [parts[first : first + _MOST_NAMES] for first in range(0, len(parts), _MOST_NAMES)]
        for count, group in enumerate(groups, 1):
            sizes = " + ".join([f"size({one})" for one in (group[0], group[-1])])
            length = (
                f"{len(group) - 1} * size({group[0]}) + size({group[-1]})" if len(group) > 1 else sizes.split(" + ")[0]
            )
            yield _statement(f"real(wp), parameter :: {name}_g{count}({length}) = [", list(group), "]")
        parts = [f"{name}_g{count}" for count in range(1, len(groups) + 1)]
    yield _statement(f"real(wp), parameter :: {name}({shape}) = {before}[", list(parts), f"]{after}")


def integers(name: str, values: Sequence[int]) -> str:
    """Return the declaration of a constant array of integers."""
    return _statement(f"integer, parameter :: {name}({len(values)}) = [", list(map(str, values)), "]")


def texts(name: str, values: Sequence[str]) -> str:
    """Return the declaration of a constant array of texts, as long as the longest of them."""
    longest = max(1, *(len(value.encode()) for value in values))  # Fortran counts bytes
    quoted = ["'" + value.replace("'", "''") + "'" for value in values]
    head = f"character(len={longest}), parameter :: {name}({len(values)}) = [character(len={longest}) ::"
    return _statement(head, quoted, "]")


def names(kind: str, variables: Sequence[str]) -> str:
    """Return the declaration of variables."""
    return _statement(f"{kind} ::", list(variables), "")


def statements(lines: Sequence[tuple[str, str]], indent: str) -> str:
    """Return assignments, one a line."""
    options: Any = {"initial_indent": indent, "subsequent_indent": f"{indent}  ", "break_long_words": False}
    wrapped = [textwrap.fill(f"{name} = {text}", _WIDTH, **options) for name, text in lines]
    return "\n".join(text.replace("\n", " &\n") for text in wrapped)


def kind_of_integer(dtype: str) -> str:
    """Return the integer kind as long as the real one."""
    return "int32" if np.dtype(dtype).itemsize == 4 else "int64"


def _statement(head: str, parts: Sequence[str], tail: str) -> str:
    """Join parts by commas, over lines that end with & before they are too long."""
    lines, line = [], f"  {head}"
    for count, part in enumerate(parts):
        piece = f" {part}" + ("," if count < len(parts) - 1 else "")
        if len((line + piece).encode()) > _WIDTH - 2:
            lines.append(line + " &")
            line = "   "
        line += piece
    if len(line) + len(tail) > _WIDTH:
        lines.append(line + " &")
        line = "   "
    return "\n".join([*lines, line + tail])
