"""Formulas written down as statements of C or Fortran: one operation each, with nothing to fuse.

`write_down` calls a function of `functions.py` with `Value`s instead of arrays; each operation on them becomes a line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpitrain.inference.portable.functions import COEFFICIENTS

_OPERATIONS: dict[np.ufunc, str] = {np.add: "+", np.subtract: "-", np.multiply: "*", np.divide: "/"}
_COMPARISONS: dict[np.ufunc, str] = {np.less: "<", np.greater: ">"}


@dataclass(frozen=True)
class Language:
    """How a language writes numbers and the operations that are not + - * / or comparisons.

    `number` gives a numpy number, exactly; `select` is yes where the condition holds, else no, both being names
    or constants; `absolute` is the size of x; `with_sign` is a size with the sign of x.
    """

    number: Callable[[Any], str]
    select: str
    absolute: str
    with_sign: str


@dataclass(frozen=True)
class Value(np.lib.mixins.NDArrayOperatorsMixin):
    """A variable or a condition that has been written down; what is done with it is written down too."""

    name: str
    writer: Writer

    def __array_ufunc__(self, operation: np.ufunc, _method: str, left: object, right: object) -> Value:
        return self.writer.operation(left, operation, right)


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
        return x.name if isinstance(x, Value) else self.language.number(np.dtype(self.dtype).type(x))

    def operation(self, left: object, operation: np.ufunc, right: object) -> Value:
        """Write down an operation; a comparison is written where it is used."""
        if operation in _COMPARISONS:
            return Value(f"{self.text(left)} {_COMPARISONS[operation]} {self.text(right)}", self)
        return self._assign(f"{self.text(left)} {_OPERATIONS[operation]} {self.text(right)}")

    def select(self, condition: Value, yes: object, no: object) -> Value:
        """Write down a choice."""
        return self._assign(self.language.select.format(condition=condition.name, yes=self.text(yes), no=self.text(no)))

    def absolute(self, x: Value) -> Value:
        """Write down |x|."""
        return self._assign(self.language.absolute.format(x=x.name))

    def with_sign(self, size: Value, x: Value) -> Value:
        """Write down a size with the sign of x."""
        return self._assign(self.language.with_sign.format(size=size.name, x=x.name))

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
