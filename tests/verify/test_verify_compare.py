"""The comparison can fail: on one flipped bit, on anything missing, and just above every tolerance that is written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpitrain.verify.compare import TABLES, compare_traces, tolerance_of
from mpitrain.verify.trace import Trace

STEPS = (1, 10)
PARAMETERS = {"fc1.weight": (4, 7), "fc1.bias": (4,), "fc2.weight": (1, 4), "fc2.bias": (1,)}
REALS = {
    "input_mean": (7,),
    "input_std": (7,),
    **{f"initial.{name}": shape for name, shape in PARAMETERS.items()},
    "forward_step1": (9,),
    "loss_step1": (1,),
    **{f"{kind}_step{step}.{name}": shape
       for step in STEPS for kind in ("gradient", "weights") for name, shape in PARAMETERS.items()},
    "loss": (10,),
    **{f"weights_final.{name}": shape for name, shape in PARAMETERS.items()},
    "prediction": (9,),
    "jacobian": (9, 7),
}  # fmt: skip
WHOLE = {"selected_index": 9, "partition_count": 2, "partition_index": 9}
NAMES = (*WHOLE, *REALS)


def make_trace(dtype: str = "float32") -> Trace:
    draw = np.random.default_rng(5)
    reals = {name: draw.uniform(0.1, 0.9, shape).astype(dtype) for name, shape in REALS.items()}
    return Trace({name: np.arange(count) for name, count in WHOLE.items()} | reals)


def with_change(trace: Trace, name: str, values: np.ndarray) -> Trace:
    return Trace({**trace.arrays, name: values})


def with_last(trace: Trace, name: str, value: float) -> Trace:
    """Replace the last number of one variable."""
    values = trace.arrays[name].copy()
    values.flat[-1] = value
    return with_change(trace, name, values)


@pytest.mark.parametrize("claim", TABLES)
def test_equal_traces_pass_any_claim(claim: str) -> None:
    comparison = compare_traces(make_trace(), make_trace(), claim)
    assert comparison.passed
    assert comparison.first_difference is None
    assert [result.name for result in comparison.results] == list(NAMES)
    assert all((r.passed, r.num_different, r.largest, r.largest_ulps) == (True, 0, 0.0, 0) for r in comparison.results)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_exact_fails_on_one_flipped_bit_anywhere(name: str, dtype: str) -> None:
    trace = make_trace(dtype)
    values = trace.arrays[name].copy()
    bits = values.reshape(-1).view(f"i{values.itemsize}")
    bits[-1] ^= 1
    comparison = compare_traces(trace, with_change(trace, name, values), "exact")
    assert not comparison.passed
    assert [result.name for result in comparison.results if not result.passed] == [name]
    difference = comparison.first_difference
    assert difference is not None
    assert (difference.name, difference.ulps) == (name, 1)
    assert difference.index == tuple(size - 1 for size in values.shape)
    assert (difference.expected, difference.found) == (trace.arrays[name].flat[-1], values.flat[-1])
    assert f"{name}{list(difference.index)}: C++ " in str(difference)
    assert "(1 ulp)" in str(difference)


@pytest.mark.parametrize("is_python_negative", [True, False])
def test_exact_fails_on_the_sign_of_zero(is_python_negative: bool) -> None:
    plus, minus = (with_last(make_trace(), "jacobian", zero) for zero in (0.0, -0.0))
    expected, found = (plus, minus) if is_python_negative else (minus, plus)
    comparison = compare_traces(expected, found, "exact")
    assert not comparison.passed
    assert "-0.0" in str(comparison.first_difference)
    assert "(0 ulp)" in str(comparison.first_difference)


@pytest.mark.parametrize("claim", ["close float32", "close float64"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["C++", "Python", "both"])
def test_close_claims_never_accept_what_is_no_number(claim: str, value: float, side: str) -> None:
    sound, broken = make_trace(), with_last(make_trace(), "weights_step10.fc2.bias", value)
    expected = sound if side == "Python" else broken
    found = sound if side == "C++" else broken
    comparison = compare_traces(expected, found, claim)
    assert [result.name for result in comparison.results if not result.passed] == ["weights_step10.fc2.bias"]


@pytest.mark.parametrize("is_in_python", [True, False])
def test_exact_fails_on_nan_against_a_number(is_in_python: bool) -> None:
    pair = [make_trace(), with_last(make_trace(), "prediction", np.nan)]
    comparison = compare_traces(*(pair if is_in_python else pair[::-1]), "exact")
    assert [result.name for result in comparison.results if not result.passed] == ["prediction"]


@pytest.mark.parametrize("claim", TABLES)
@pytest.mark.parametrize("name", NAMES)
def test_a_variable_of_one_side_only_is_a_failure(name: str, claim: str) -> None:
    whole = make_trace()
    short = Trace({key: values for key, values in whole.arrays.items() if key != name})
    without, with_more = compare_traces(whole, short, claim), compare_traces(short, whole, claim)
    assert str(without.first_difference).endswith(f"{name}: only in the C++ trace")
    assert str(with_more.first_difference).endswith(f"{name}: only in the Python trace")


@pytest.mark.parametrize("claim", TABLES)
@pytest.mark.parametrize(
    ("values", "note"),
    [
        (np.zeros((7, 9), "float32"), "shape (9, 7) in C++, (7, 9) in Python"),
        (np.zeros((9, 7, 1), "float32"), "shape (9, 7) in C++, (9, 7, 1) in Python"),
        (np.zeros((1, 7), "float32"), "shape (9, 7) in C++, (1, 7) in Python"),  # numpy would stretch it
        (np.zeros((9, 7), "float64"), "type float32 in C++, float64 in Python"),
        (np.zeros((9, 7), "int32"), "type float32 in C++, int32 in Python"),
    ],
)
def test_another_shape_or_type_is_a_failure(values: np.ndarray, note: str, claim: str) -> None:
    trace = with_change(make_trace(), "jacobian", np.zeros((9, 7), "float32"))
    comparison = compare_traces(trace, with_change(trace, "jacobian", values), claim)
    assert not comparison.passed
    assert str(comparison.first_difference) == f"Jacobian: jacobian: {note}"


def test_nothing_compared_is_a_failure() -> None:
    comparison = compare_traces(Trace(), Trace(), "exact")
    assert not comparison.passed
    assert "nothing to compare" in str(comparison.first_difference)


@pytest.mark.parametrize("shape", [(), (0,), (0, 7)])
def test_single_numbers_and_empty_variables_compare(shape: tuple[int, ...]) -> None:
    one, two = (Trace({"prediction": np.full(shape, value, "float32")}) for value in (1, 2))
    assert compare_traces(one, one, "exact").passed
    assert compare_traces(one, two, "exact").passed == (shape != ())


TOLERANCES = [
    (claim, entry.pattern, entry.relative, name)
    for claim, table in TABLES.items()
    for entry in table
    if entry.relative is not None
    for name in REALS
    if tolerance_of(name, claim) is entry
]


@pytest.mark.parametrize(("claim", "pattern", "relative", "name"), TOLERANCES)
def test_every_tolerance_is_broken_just_above_it(claim: str, pattern: str, relative: float, name: str) -> None:
    # float64 traces: the claim's tolerance is tried, not the type's rounding.
    trace = make_trace("float64")
    scale = np.abs(trace.arrays[name.replace("gradient_step10", "gradient_step1")]).max()
    value = trace.arrays[name].flat[-1]
    below = with_last(trace, name, value + 0.99 * relative * scale)
    above = with_last(trace, name, value + 1.01 * relative * scale)
    assert compare_traces(trace, below, claim).passed
    broken = compare_traces(trace, above, claim)
    assert [result.name for result in broken.results if not result.passed] == [name]
    assert next(r.largest for r in broken.results if r.name == name) == pytest.approx(1.01 * relative, rel=1e-3)


def test_every_entry_of_the_tables_is_tried() -> None:
    tried = {(claim, pattern) for claim, pattern, *_ in TOLERANCES}
    written = {(claim, entry.pattern) for claim, table in TABLES.items() for entry in table if entry.relative}
    assert tried == written
    assert all(entry.reason for table in TABLES.values() for entry in table)


@pytest.mark.parametrize("claim", TABLES)
@pytest.mark.parametrize("name", [*WHOLE, "initial.fc1.weight"])
def test_whole_numbers_and_given_weights_are_exact_under_any_claim(name: str, claim: str) -> None:
    trace = make_trace()
    value = trace.arrays[name].flat[-1]
    changed = with_last(trace, name, value + 1 if name in WHOLE else np.nextafter(value, np.float32(1)))
    assert not compare_traces(trace, changed, claim).passed


def test_a_late_gradient_is_measured_by_the_first() -> None:
    trace = with_change(make_trace("float64"), "gradient_step10.fc1.bias", np.full(4, 1e-6))
    error = with_last(trace, "gradient_step10.fc1.bias", 2e-6)
    scale = np.abs(trace.arrays["gradient_step1.fc1.bias"]).max()
    comparison = compare_traces(trace, error, "close float32")
    assert comparison.passed
    assert next(r.largest for r in comparison.results if r.num_different) == pytest.approx(1e-6 / scale)


def test_the_first_difference_is_the_first_in_order() -> None:
    trace = make_trace()
    broken = trace
    for name in ("jacobian", "weights_step10.fc1.weight", "gradient_step10.fc2.bias", "gradient_step10.fc1.bias"):
        broken = with_last(broken, name, 5.0)
        first = compare_traces(trace, broken, "exact").first_difference
        assert first is not None
        assert first.name == name  # each is earlier than those before it
    values = broken.arrays["gradient_step10.fc1.bias"].copy()
    values[1] = 7.0
    first = compare_traces(trace, with_change(broken, "gradient_step10.fc1.bias", values), "exact").first_difference
    assert first is not None
    assert (first.stage, first.index, first.found) == ("gradient at step 10", (1,), 7.0)


def walk(start: float, num_steps: int, dtype: type) -> np.ndarray:
    """`start` and the number that `num_steps` of np.nextafter reach."""
    value = dtype(start)
    for _ in range(num_steps):
        value = np.nextafter(value, dtype(np.inf))
    return np.array([start, value], dtype)


def ulps_between(a: object, b: object, dtype: type) -> int:
    one, two = (Trace({"prediction": np.array([value], dtype)}) for value in (a, b))
    with np.errstate(all="ignore"):
        return compare_traces(one, two, "exact").results[0].largest_ulps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("start", [0.0, 1.0, -1.0, 0.99999, -1e-45, 1e-38, 3.4e38])
@pytest.mark.parametrize("num_steps", [0, 1, 2, 25])
def test_ulps_count_the_steps_of_nextafter(start: float, num_steps: int, dtype: type) -> None:
    first, last = walk(start, num_steps, dtype)
    assert ulps_between(first, last, dtype) == num_steps
    assert ulps_between(last, first, dtype) == num_steps


def test_ulps_across_zero_count_both_sides() -> None:
    tiny = np.nextafter(np.float32(0), np.float32(1))
    assert ulps_between(-tiny, tiny, np.float32) == 2
    assert ulps_between(0.0, -0.0, np.float32) == 0
    largest = np.finfo(np.float64).max
    # More than an int64 holds.
    assert ulps_between(-largest, largest, np.float64) == 2 * int(np.float64(largest).view(np.int64))


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(finite, finite)
def test_only_the_same_bits_pass_the_exact_claim(a: float, b: float) -> None:
    one, two = (Trace({"prediction": np.array([value], np.float32)}) for value in (a, b))
    same_bits = np.float32(a).tobytes() == np.float32(b).tobytes()
    assert compare_traces(one, two, "exact").passed == same_bits
    assert ulps_between(a, b, np.float32) == ulps_between(b, a, np.float32)
    assert (ulps_between(a, b, np.float32) == 0) == (a == b)
