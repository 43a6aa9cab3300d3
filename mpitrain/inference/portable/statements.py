"""Formulas written down as statements of C or Fortran: one operation each, with nothing to fuse.

`write_down` calls a function of `functions.py` with `Value`s instead of arrays; each operation on them becomes a line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from mpitrain.inference.portable.functions import COEFFICIENTS


class Language(Protocol):
    """How a language writes numbers and the operations that are not + - * / or comparisons."""

    def number(self, value: float, dtype: str) -> str:
        """Return the constant, exactly."""
        ...

    def select(self, condition: str, yes: str, no: str) -> str:
        """Return yes where the condition holds, else no; both are names or constants."""
        ...

    def absolute(self, x: str) -> str:
        """Return the size of x."""
        ...


@dataclass(frozen=True)
class Value:
    """A variable or a condition that has been written down; what is done with it is written down too."""

    name: str
    writer: Writer

    def __add__(self, other: object) -> Value:
        return self.writer.operation(self, "+", other)

    def __radd__(self, other: object) -> Value:
        return self.writer.operation(other, "+", self)

    def __sub__(self, other: object) -> Value:
        return self.writer.operation(self, "-", other)

    def __rsub__(self, other: object) -> Value:
        return self.writer.operation(other, "-", self)

    def __mul__(self, other: object) -> Value:
        return self.writer.operation(self, "*", other)

    def __rmul__(self, other: object) -> Value:
        return self.writer.operation(other, "*", self)

    def __truediv__(self, other: object) -> Value:
        return self.writer.operation(self, "/", other)

    def __rtruediv__(self, other: object) -> Value:
        return self.writer.operation(other, "/", self)

    def __lt__(self, other: object) -> Value:
        return Value(f"{self.name} < {self.writer.text(other)}", self.writer)

    def __gt__(self, other: object) -> Value:
        return Value(f"{self.name} > {self.writer.text(other)}", self.writer)


@dataclass
class Writer:
    """The operations on `Value`s: the twin of `functions.NumpyArithmetic`."""

    language: Language
    dtype: str
    lines: list[tuple[str, str]] = field(default_factory=list)

    @property
    def coefficients(self) -> Any:
        """See `functions.Coefficients`."""
        return COEFFICIENTS[self.dtype]

    def text(self, x: object) -> str:
        """Return a value's name, or a constant as the language writes it."""
        return x.name if isinstance(x, Value) else self.language.number(float(x), self.dtype)  # type: ignore[arg-type]

    def operation(self, left: object, sign: str, right: object) -> Value:
        """Write down left sign right."""
        return self._assign(f"{self.text(left)} {sign} {self.text(right)}")

    def select(self, condition: Value, yes: object, no: object) -> Value:
        """Write down a choice."""
        return self._assign(self.language.select(condition.name, self.text(yes), self.text(no)))

    def absolute(self, x: Value) -> Value:
        """Write down |x|."""
        return self._assign(self.language.absolute(x.name))

    def power_of_two(self, shifted: Value) -> Value:
        """Write down the call of a function that every source has."""
        return self._assign(f"power_of_two({shifted.name})")

    def _assign(self, expression: str) -> Value:
        name = f"t{len(self.lines) + 1}"
        self.lines.append((name, expression))
        return Value(name, self)


def write_down(
    function: Callable[..., Any], arguments: Sequence[str], language: Language, dtype: str
) -> tuple[list[tuple[str, str]], str]:
    """Return the statements (name, expression) of function(arithmetic, *arguments), and the name of its result."""
    writer = Writer(language, dtype)
    result = function(writer, *(Value(name, writer) for name in arguments))
    return writer.lines, writer.text(result)


def bits_of(value: float, dtype: str) -> str:
    """Return the number's bits as hexadecimal digits."""
    number = np.array(value, dtype)
    return f"{int(number.view(f'u{number.itemsize}')):0{2 * number.itemsize}X}"
