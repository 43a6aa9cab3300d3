"""What an unquoted word means: the traps of YAML 1.1, and numbers as Python prints them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpitrain.config import load_run_config
from mpitrain.errors import ConfigError

pytestmark = pytest.mark.fast

RATE = "training.optimizer.learning_rate"


def rate(text: str) -> float:
    return load_run_config(None, [f"{RATE}={text}"]).config.training.optimizer.learning_rate


@pytest.mark.parametrize("text", ["1e-5", "1E-5", "+1e-5", "1.e-5", ".1e-4", "0.00001", "1e-05", "00.1e-4"])
def test_one_number_in_many_spellings(text: str) -> None:
    assert rate(text) == 1e-5


@settings(deadline=None, max_examples=40)
@given(st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_every_float_as_python_prints_it(value: float) -> None:
    assert rate(repr(value)) == value


@settings(deadline=None, max_examples=40)
@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_every_whole_number(value: int) -> None:
    assert load_run_config(None, [f"seed={value}"]).config.seed == value


@settings(deadline=None, max_examples=40)
@given(st.from_regex(r"\A[-+]?(0[0-7]{1,6}|0x[0-9a-f]{1,6}|0o[0-7]{1,6}|0b[01]{1,6}|[1-9][0-9]{0,3}_[0-9]{3})\Z"))
def test_numbers_that_readers_disagree_about_are_refused(text: str) -> None:
    for key in ("seed", RATE, "data.data_path"):
        with pytest.raises(ConfigError, match="read differently by different YAML readers"):
            load_run_config(None, [f"{key}={text}"])


@settings(deadline=None, max_examples=40)
@given(st.from_regex(r"\A[1-9][0-9]?(:[0-5][0-9]){1,2}\Z"))
def test_times_are_text_and_never_numbers(text: str) -> None:
    assert load_run_config(None, [f"data.data_path={text}"]).config.data.data_path == text
    for key in ("seed", RATE):
        with pytest.raises(ConfigError, match="text; give a"):
            load_run_config(None, [f"{key}={text}"])


@pytest.mark.parametrize("text", ["2026-11-21", "=", "1:30", "0123abc", "nan", "1.2.3", "e5", "y", "n"])
def test_words_that_are_only_text(text: str) -> None:
    assert load_run_config(None, [f"data.data_path={text}"]).config.data.data_path == text


@pytest.mark.parametrize(
    ("text", "value"), [("on", True), ("yes", True), ("True", True), ("off", False), ("No", False)]
)
def test_boolean_words_are_booleans_where_one_is_expected(text: str, value: bool) -> None:
    assert load_run_config(None, [f"domain.clean_data={text}"]).config.domain.clean_data is value
    with pytest.raises(ConfigError, match="put it in quotes"):
        load_run_config(None, [f"data.data_path={text}"])


@pytest.mark.parametrize("text", ["0", "-1e-9", ".inf", "-.inf", ".NaN", "1e400", "9" * 400, "9" * 5000, "true", "'1'"])
def test_what_no_learning_rate_can_be(text: str) -> None:
    with pytest.raises(ConfigError, match=RATE):
        rate(text)
