"""Derived variables, such as "hypot(u10, v10)", and conditions, such as "umask == 1 and time >= 2010-03-01".

Only a few operations are allowed (see `ALLOWED`); the text is never evaluated as Python. Operands are numbers, dates
and variables, by name or as var("group/name"), with optional levels and lags in brackets (see `reference`). Numbers are
combined by + - * / ** and functions. Comparisons, also chained ones, and isnan(x) are conditions; they are joined by
and, or, not, or by &, |, ~ with brackets around each condition. A comparison with a missing value is false, except for
!= and comparisons under `not`: use isnan(x) in these.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Container, Iterator, Mapping
from functools import lru_cache, reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.selection.expressions.clock import DATE
from mpitrain.data.selection.expressions.reference import BRACKETED, parse_reference
from mpitrain.errors import ConfigError

BoolArray = npt.NDArray[np.bool_]
Values = Callable[[str], npt.NDArray[Any]]

_ONE: dict[str, Callable[[Any], Any]] = {
    "abs": np.abs, "sqrt": np.sqrt, "log": np.log, "exp": np.exp, "sin": np.sin, "cos": np.cos,
}  # fmt: skip
_TWO: dict[str, Callable[[Any, Any], Any]] = {"hypot": np.hypot, "min": np.minimum, "max": np.maximum}
ALLOWED = (
    'numbers, variable names, var("group/name"), levels and lags in brackets, dates, comparisons, and, or, not, & | ~, '
    f"+ - * / **, isnan(x), {', '.join(f'{name}(x)' for name in _ONE)}, {', '.join(f'{name}(x, y)' for name in _TWO)}"
)
LONGEST_EXPRESSION, DEEPEST_NESTING = 2000, 100
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: np.power,
}  # fmt: skip
_CONDITIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {ast.BitAnd: operator.and_, ast.BitOr: operator.or_}
_LARGEST_NUMBER = 1e300
_NUMBER, _CONDITION = "a number", "a condition"


class Expression:
    """A parsed expression of numbers, such as a derived variable. Can be pickled, as its text.

    `names` are the variables as the text spells them, with their brackets; `dates` are the dates in the text.
    """

    kind = _NUMBER

    def __init__(self, text: str, key: str) -> None:
        """Parse `text`, the value of the setting `key`. Raises ConfigError, with the column, if it is not allowed."""
        self.text, self.key = text, key
        found = tuple(dict.fromkeys(_names(_parse(text, key, self.kind), _placeholders(text)[1])))
        self.dates = tuple(name for name in found if DATE.fullmatch(name))
        self.names = tuple(name for name in found if name not in self.dates)
        for name in self.names:
            parse_reference(name, key)

    def evaluate(self, values: Values) -> Any:
        """Return the values; `values` returns the array of a variable, NaN where missing, or the number of a date."""
        with np.errstate(all="ignore"):
            return _evaluate(_parse(self.text, self.key, self.kind), values, _placeholders(self.text)[1])

    def __reduce__(self) -> tuple[type[Expression], tuple[str, str]]:
        return type(self), (self.text, self.key)


class MaskExpression(Expression):
    """A parsed condition."""

    kind = _CONDITION

    def evaluate(self, values: Values) -> BoolArray:
        """Return a mask of where the condition holds; `values` is as in `Expression.evaluate`."""
        return np.asarray(super().evaluate(values), dtype=bool)

    def evaluate_on(self, names: Container[str], values: Values) -> BoolArray:
        """Return a mask of where the conditions joined by `and` hold, without those on variables other than `names`."""
        meanings, parts = _placeholders(self.text)[1], [_parse(self.text, self.key, self.kind)]
        result = np.ones((), dtype=bool)
        while parts:
            part = parts.pop()
            if isinstance(part, ast.BoolOp) and isinstance(part.op, ast.And):
                parts += part.values
            elif isinstance(part, ast.BinOp) and isinstance(part.op, ast.BitAnd):
                parts += [part.left, part.right]
            elif all(name in names or DATE.fullmatch(name) for name in _names(part, meanings)):
                with np.errstate(all="ignore"):
                    result = np.asarray(result & np.asarray(_evaluate(part, values, meanings), dtype=bool))
        return result


def _placeholders(text: str) -> tuple[str, dict[str, str]]:
    """Replace dates and references with brackets by names of the same length; return the text, and each name's meaning.

    Python can then parse the text, and the columns in its error messages are right.
    """
    meanings: dict[str, str] = {}

    def stand_in(found: re.Match[str]) -> str:
        name = f"_{len(meanings)}"
        meanings[name.ljust(len(found[0]), "_")] = " ".join(found[0].split())
        return name.ljust(len(found[0]), "_")

    return DATE.sub(stand_in, BRACKETED.sub(stand_in, text)), meanings


@lru_cache(maxsize=256)
def _parse(text: str, key: str, wanted: str) -> ast.expr:
    if len(text) > LONGEST_EXPRESSION:
        raise ConfigError(f"{key}: {len(text)} characters; at most {LONGEST_EXPRESSION} are allowed")
    try:
        tree = ast.parse(_placeholders(text.strip())[0], mode="eval").body
        kind = _kind(tree, key)
    except SyntaxError as error:
        raise ConfigError(
            f"{key}: column {error.offset or len(text.strip()) + 1}: {error.msg}; allowed are {ALLOWED}"
        ) from None
    except ValueError as error:  # of Python before 3.11.4, for a null byte
        raise ConfigError(f"{key}: {error}; allowed are {ALLOWED}") from None
    except (RecursionError, MemoryError):
        raise ConfigError(f"{key}: cannot be parsed; allowed are {ALLOWED}") from None
    if kind != wanted:
        advice = (
            "is a number; compare it, as in 'umask == 1'" if wanted == _CONDITION else "is a condition, not a number"
        )
        raise ConfigError(f"{key}: {advice}")
    return tree


def _kind(node: ast.AST, key: str, depth: int = 0) -> str:
    """Return whether a node is a number or a condition. Raises ConfigError, with the column, if it is not allowed."""
    if depth > DEEPEST_NESTING:
        raise ConfigError(f"{key}: {_place(node)}: nested more than {DEEPEST_NESTING} deep; shorten it")
    if _is_number(node):
        return _NUMBER
    if isinstance(node, ast.Name) or _function(node) == "var":
        return _NUMBER
    for wanted, kind, operands in _operations(node):
        for operand in operands:
            if _kind(operand, key, depth + 1) != wanted:
                raise ConfigError(f"{key}: {_place(operand)}: {wanted} is needed here; put brackets around comparisons")
        return kind
    raise ConfigError(f"{key}: {_place(node)}: {_described(node)} is not allowed; allowed are {ALLOWED}")


def _is_number(node: ast.AST) -> bool:
    value = node.value if isinstance(node, ast.Constant) else None
    # Exclude True and False, which are ints, and numbers that are too large for an array.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST_NUMBER


def _operations(node: ast.AST) -> Iterator[tuple[str, str, list[ast.expr]]]:
    """Yield, for an allowed operation, the kind of its operands, its own kind and the operands; otherwise nothing."""
    if isinstance(node, ast.BoolOp):
        yield _CONDITION, _CONDITION, node.values
    elif isinstance(node, ast.Compare) and all(type(op) in _COMPARISONS for op in node.ops):
        yield _NUMBER, _CONDITION, [node.left, *node.comparators]
    elif isinstance(node, ast.BinOp) and type(node.op) in _CONDITIONS:
        yield _CONDITION, _CONDITION, [node.left, node.right]
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield _NUMBER, _NUMBER, [node.left, node.right]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        yield _CONDITION, _CONDITION, [node.operand]
    elif isinstance(node, ast.UnaryOp):
        yield _NUMBER, _NUMBER, [node.operand]
    elif isinstance(node, ast.Call) and _function(node):
        yield _NUMBER, _CONDITION if _function(node) == "isnan" else _NUMBER, node.args


def _function(node: ast.AST) -> str | None:
    """Return the function's name if a node is an allowed call; otherwise None.

    An allowed call has the right number of arguments and no keywords; the argument of var is a string.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.keywords:
        return None
    name, count = node.func.id, len(node.args)
    if name == "var" and count == 1:
        argument = node.args[0]
        return name if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else None
    fits = (count == 1 and (name in _ONE or name == "isnan")) or (count == 2 and name in _TWO)
    return name if fits else None


def _names(node: ast.AST, meanings: Mapping[str, str]) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield meanings.get(node.id, node.id)
    elif _function(node) == "var":
        yield _quoted(node)
    else:
        below = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
        for child in below:
            yield from _names(child, meanings)


def _quoted(node: Any) -> str:
    return str(node.args[0].value)


def _evaluate(node: Any, values: Values, meanings: Mapping[str, str]) -> Any:
    inside = lambda part: _evaluate(part, values, meanings)  # noqa: E731
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return values(meanings.get(node.id, node.id))
    if isinstance(node, ast.Call):
        return values(_quoted(node)) if _function(node) == "var" else _evaluate_call(node, inside)
    if isinstance(node, ast.BoolOp):
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return join.reduce(np.broadcast_arrays(*map(inside, node.values)))
    if isinstance(node, ast.Compare):
        return _evaluate_comparison(node, inside)
    if isinstance(node, ast.BinOp):
        compute = _ARITHMETIC.get(type(node.op)) or _CONDITIONS[type(node.op)]
        return compute(inside(node.left), inside(node.right))
    operand = inside(node.operand)
    if isinstance(node.op, ast.Not | ast.Invert):
        return np.logical_not(operand)
    return -operand if isinstance(node.op, ast.USub) else operand


def _evaluate_call(node: ast.Call, inside: Callable[[Any], Any]) -> Any:
    name = str(_function(node))
    function: Callable[..., Any] = np.isnan if name == "isnan" else _ONE.get(name) or _TWO[name]
    return function(*map(inside, node.args))


def _evaluate_comparison(node: ast.Compare, inside: Callable[[Any], Any]) -> Any:
    operands = [inside(part) for part in (node.left, *node.comparators)]
    pairs = zip(node.ops, operands, operands[1:], strict=False)
    return reduce(operator.and_, [_COMPARISONS[type(op)](left, right) for op, left, right in pairs])


def _place(node: ast.AST) -> str:
    return f"column {getattr(node, 'col_offset', 0) + 1}"


def _described(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return f"the call {ast.unparse(node)[:40]}"
    descriptions = {
        "Attribute": "an attribute",
        "Subscript": "a subscript",
        "Constant": f"{getattr(node, 'value', '')!r}"[:40],
    }
    return descriptions.get(type(node).__name__, f"'{ast.unparse(node)[:40]}'")
