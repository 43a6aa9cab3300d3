"""Which points are samples: every strict comparison at its edge."""

import numpy as np
import pytest

from mpitrain.data.selection.rule import select_points

pytestmark = pytest.mark.fast

JUST_ABOVE_40, JUST_BELOW_40 = np.nextafter(np.float32(40), np.float32([90, 0]))
SMALLEST = np.nextafter(np.float32(0), np.float32(1))
JUST_ABOVE_1 = np.nextafter(np.float32(1), np.float32(2))
NAN = float("nan")


def selects(latitude, mask, aice, pole="north", is_clean=True):
    arrays = (np.array([value], dtype=np.float32) for value in (latitude, mask, aice))
    selected = select_points(*arrays, pole, is_clean)
    assert selected.dtype == bool
    return bool(selected[0])


@pytest.mark.parametrize(
    ("latitude", "mask", "aice", "expected"),
    [
        (75, 1, 0.5, True),
        (40, 1, 0.5, False), (JUST_ABOVE_40, 1, 0.5, True), (JUST_BELOW_40, 1, 0.5, False), (NAN, 1, 0.5, False),
        (90, 1, 0.5, True), (1e30, 1, 0.5, True), (-75, 1, 0.5, False),
        (75, 0, 0.5, False), (75, 0.999, 0.5, False), (75, 2, 0.5, False), (75, 1e30, 0.5, False),
        (75, NAN, 0.5, False),
        (75, 1, 0, False), (75, 1, -0.0, False), (75, 1, SMALLEST, True), (75, 1, -0.1, False),
        (75, 1, 1, True), (75, 1, JUST_ABOVE_1, False), (75, 1, 1e30, False), (75, 1, NAN, False),
    ],
)  # fmt: skip
def test_clean_points(latitude, mask, aice, expected):
    assert selects(latitude, mask, aice) == expected
    assert selects(-latitude, mask, aice, pole="south") == expected


@pytest.mark.parametrize(
    ("latitude", "expected"),
    [(60, False), (np.nextafter(np.float32(60), np.float32(90)), True), (59.9, False), (90, True), (-75, False),
     (NAN, False)],
)  # fmt: skip
@pytest.mark.parametrize(("mask", "aice"), [(1, 0.5), (0, 0), (0, 1e30), (NAN, NAN)])
def test_all_points_beyond_60_degrees_whatever_they_hold(latitude, expected, mask, aice):
    assert selects(latitude, mask, aice, is_clean=False) == expected
    assert selects(-latitude, mask, aice, pole="south", is_clean=False) == expected
