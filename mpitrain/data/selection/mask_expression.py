"""Conditions on variables, such as "umask == 1 and sst_h > -1.5": a few operations, never evaluated as Python.

Operands are numbers and variables, by name or as var("group/name"). Comparisons (chained too), + - * /, abs(x) and
isnan(x); conditions are joined by and, or, not, or by &, |, ~ with brackets around each. A comparison with a missing
value is false, save != and what `not` turns around: ask isnan(x) there.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.errors import ConfigError

BoolArray = npt.NDArray[np.bool_]
Values = Callable[[str], npt.NDArray[Any]]

ALLOWED = 'numbers, variable names, var("group/name"), comparisons, and, or, not, & | ~, + - * /, abs(x), isnan(x)'
LONGEST_EXPRESSION, DEEPEST_NESTING = 2000, 100
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
}  # fmt: skip
_CONDITIONS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {ast.BitAnd: operator.and_, ast.BitOr: operator.or_}
_LARGEST_NUMBER = 1e300
_NUMBER, _CONDITION = "a number", "a condition"


class MaskExpression:
    """A parsed condition. Can be pickled: it is its text."""

    def __init__(self, text: str, key: str = "domain.mask") -> None:
        """Parse `text`, the value of `key`. Raises ConfigError, with the position, for anything that is not allowed."""
        self.text, self.key = text, key
        self.names = tuple(dict.fromkeys(_names(_parse(text, key))))

    def evaluate(self, values: Values) -> BoolArray:
        """Return where the condition holds; `values` gives the array of a name, NaN where it is missing."""
        with np.errstate(all="ignore"):
            result: BoolArray = np.asarray(_evaluate(_parse(self.text, self.key), values), dtype=bool)
        return result

    def __reduce__(self) -> tuple[type[MaskExpression], tuple[str, str]]:
        return MaskExpression, (self.text, self.key)


@lru_cache(maxsize=64)
def _parse(text: str, key: str) -> ast.expr:
    if len(text) > LONGEST_EXPRESSION:
        raise ConfigError(f"{key}: {len(text)} characters; at most {LONGEST_EXPRESSION} are read")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        kind = _kind(tree, key)
    except SyntaxError as error:
        raise ConfigError(
            f"{key}: column {error.offset or len(text.strip()) + 1}: {error.msg}; allowed are {ALLOWED}"
        ) from None
    except (ValueError, RecursionError, MemoryError):
        raise ConfigError(f"{key}: cannot be parsed; allowed are {ALLOWED}") from None
    if kind != _CONDITION:
        raise ConfigError(f"{key}: is a number; compare it, as in 'umask == 1'")
    return tree


def _kind(node: ast.AST, key: str, depth: int = 0) -> str:
    """Return what a node is, and refuse it with its position where it is nothing that is allowed."""
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
    # Neither True, which is an int, nor a number that no array can hold.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LARGEST_NUMBER


def _operations(node: ast.AST) -> Iterator[tuple[str, str, list[ast.expr]]]:
    """Yield for an allowed operation what its operands must be, what it is itself, and the operands; else nothing."""
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
    elif isinstance(node, ast.Call) and _function(node) in ("abs", "isnan"):
        yield _NUMBER, _CONDITION if _function(node) == "isnan" else _NUMBER, node.args


def _function(node: ast.AST) -> str | None:
    """Return the name of a call that is allowed: one argument without a keyword, for var a text."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.keywords or len(node.args) != 1:
        return None
    name, argument = node.func.id, node.args[0]
    if name == "var":
        return name if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else None
    return name if name in ("abs", "isnan") else None


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif _function(node) == "var":
        yield _quoted(node)
    else:
        below = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
        for child in below:
            yield from _names(child)


def _quoted(node: Any) -> str:
    return str(node.args[0].value)


def _evaluate(node: Any, values: Values) -> Any:
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return values(node.id)
    if isinstance(node, ast.Call):
        return _evaluate_call(node, values)
    if isinstance(node, ast.BoolOp):
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return join.reduce(np.broadcast_arrays(*(_evaluate(part, values) for part in node.values)))
    if isinstance(node, ast.Compare):
        return _evaluate_comparison(node, values)
    if isinstance(node, ast.BinOp):
        compute = _ARITHMETIC.get(type(node.op)) or _CONDITIONS[type(node.op)]
        return compute(_evaluate(node.left, values), _evaluate(node.right, values))
    operand = _evaluate(node.operand, values)
    if isinstance(node.op, ast.Not | ast.Invert):
        return np.logical_not(operand)
    return -operand if isinstance(node.op, ast.USub) else operand


def _evaluate_call(node: ast.Call, values: Values) -> Any:
    function = _function(node)
    if function == "var":
        return values(_quoted(node))
    return (np.abs if function == "abs" else np.isnan)(_evaluate(node.args[0], values))


def _evaluate_comparison(node: ast.Compare, values: Values) -> Any:
    operands = [_evaluate(part, values) for part in (node.left, *node.comparators)]
    pairs = zip(node.ops, operands, operands[1:], strict=False)
    holds = [_COMPARISONS[type(op)](left, right) for op, left, right in pairs]
    result = holds[0]
    for more in holds[1:]:
        result = result & more
    return result


def _place(node: ast.AST) -> str:
    return f"column {getattr(node, 'col_offset', 0) + 1}"


def _described(node: ast.AST) -> str:
    if isinstance(node, ast.Call):
        return f"the call {ast.unparse(node)[:40]}"
    words = {
        "Attribute": "an attribute",
        "Subscript": "a subscript",
        "Constant": f"{getattr(node, 'value', '')!r}"[:40],
    }
    return words.get(type(node).__name__, f"'{ast.unparse(node)[:40]}'")
