"""Mask expressions: what they select, and that they are never Python."""

import pickle

import numpy as np
import pytest

from mpitrain.data.selection.expressions.expression import LONGEST_EXPRESSION, MaskExpression
from mpitrain.errors import ConfigError

VALUES = {
    "a": np.array([-1.0, 0.0, 1.0, 2.0, np.nan]),
    "b": np.array([1.0, 1.0, 0.0, 0.0, 1.0]),
    "g/c d": np.arange(5.0),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a > 0", "00110"),
        ("0 <= a < 2", "01100"),
        ("a > 0 and b == 0 or a == -1", "10110"),
        ("not a > 0", "11001"),
        ("not (a > 0) and not isnan(a)", "11000"),
        ("(a > 0) & (b == 0) | ~(a < 5)", "00111"),
        ("abs(a) * 2 + b - 1 >= 2 / 1", "10010"),
        ("-a < +1 != 0", "01110"),
        ("a / b > 1e9", "00110"),
        ('var("g/c d") >= 3', "00011"),
        ("1 < 2", "1"),
    ],
)
def test_what_is_selected(text, expected):
    found = MaskExpression(text, "domain.mask").evaluate(VALUES.__getitem__)
    assert "".join("01"[int(value)] for value in np.atleast_1d(found)) == expected
    assert pickle.loads(pickle.dumps(MaskExpression(text, "domain.mask"))).text == text


def test_names_are_those_of_variables():
    assert MaskExpression('abs(a) > 1 and var("g/x") < b or a == 0', "domain.mask").names == ("a", "g/x", "b")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("__import__('os').system('true') == 0", r"column 1: the call __import__\('os'\)\.system"),
        ("a > 0 and __import__('os') == 1", "column 11: the call __import__"),
        ("a.shape > 1", "column 1: an attribute is not allowed"),
        ("a > (b + 1)[0]", "column 5: a subscript"),
        ("a > b[x=y]", "'x=y' is not a level or lag; allowed are"),
        ("a > 'x'", "column 5: 'x' is not allowed"),
        ("a > True", "column 5: True"),
        ("a > 1j", "column 5: 1j"),
        ("a % 9 > 1", r"column 1: 'a % 9' is not allowed"),
        ("[a for a in b]", "is not allowed"),
        ("(lambda: a)() > 1", "column 1: the call"),
        ("(a := 1) > 0", "is not allowed"),
        ("abs(a, b) > 1", "column 1: the call"),
        ("var(a) > 1", "column 1: the call"),
        ("a in b", "is not allowed"),
        ("umask == 1 & a > 0", "column 10: a condition is needed here; put brackets around comparisons"),
        ("a", "is a number; compare it"),
        ("a > 0 and b", "column 11: a condition is needed"),
        ("a > ", "column 4: invalid syntax"),
        ("a > 0; b", "invalid syntax"),
        ("", "invalid syntax"),
        ("a\0 > 1", "null bytes"),
        ("-" * 1000 + "a > 0", "nested more than"),
        ("(" * 500 + "a" + ")" * 500 + " > 0", "too many nested"),
        ("a > 0 and " * 300 + "b > 0", f"at most {LONGEST_EXPRESSION}"),
        ("a > " + "9" * 400, "column 5"),
    ],
)  # fmt: skip
def test_everything_else_is_refused_with_its_place(text, words):
    with pytest.raises(ConfigError, match=words) as caught:
        MaskExpression(text, "domain.mask")
    assert str(caught.value).startswith("domain.mask: ")
    assert "\n" not in str(caught.value)
