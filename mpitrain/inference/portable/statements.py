"""Write formulas as statements of C or Fortran, with one operation each, so that compilers find nothing to fuse.

`write_statements` calls a function of `functions.py` with `Value`s instead of arrays; each operation on them becomes a
line.
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
    """Notation of a language for numbers and for operations other than + - * / and comparisons.

    `number` writes a numpy number exactly. Templates: `select`, {yes} if the condition holds and {no} otherwise, both
    names or constants; `absolute`, |x|; `with_sign`, an absolute value with the sign of x.
    """

    number: Callable[[Any], str]
    select: str
    absolute: str
    with_sign: str


@dataclass(frozen=True)
class Value(np.lib.mixins.NDArrayOperatorsMixin):
    """A variable or a condition in the written statements; operations on it are written as further statements."""

    name: str
    writer: Writer

    def __array_ufunc__(self, operation: np.ufunc, _method: str, left: object, right: object) -> Value:
        return self.writer.operation(left, operation, right)


@dataclass
class Writer:
    """Operations on `Value`s, with the methods of `functions.NumpyArithmetic`."""

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
        """Write an operation as a statement; a comparison becomes a part of the statement that uses it."""
        if operation in _COMPARISONS:
            return Value(f"{self.text(left)} {_COMPARISONS[operation]} {self.text(right)}", self)
        return self._assign(f"{self.text(left)} {_OPERATIONS[operation]} {self.text(right)}")

    def select(self, condition: Value, yes: object, no: object) -> Value:
        """Write a choice between two values."""
        return self._assign(self.language.select.format(condition=condition.name, yes=self.text(yes), no=self.text(no)))

    def absolute(self, x: Value) -> Value:
        """Write |x|."""
        return self._assign(self.language.absolute.format(x=x.name))

    def with_sign(self, size: Value, x: Value) -> Value:
        """Write the absolute value `size` with the sign of x."""
        return self._assign(self.language.with_sign.format(size=size.name, x=x.name))

    def power_of_two(self, shifted: Value) -> Value:
        """Write a call of `power_of_two`, a function in each source that needs it."""
        return self._assign(f"power_of_two({shifted.name})")

    def _assign(self, expression: str) -> Value:
        name = f"t{len(self.lines) + 1}"
        self.lines.append((name, expression))
        return Value(name, self)


def write_statements(
    function: Callable[..., Any], arguments: Sequence[str], language: Language, dtype: str
) -> tuple[list[tuple[str, str]], str]:
    """Return the statements (name, expression) of function(arithmetic, *arguments), and the name of its result."""
    writer = Writer(language, dtype)
    result = function(writer, *(Value(name, writer) for name in arguments))
    return writer.lines, writer.text(result)
