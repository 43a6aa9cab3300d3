"""Functions of + - * / alone: as exact as they say, and fixed for ever, since first weights and C++ depend on them."""

import math

import numpy as np
import pytest

from mpitrain.data.portable_math import cosine_of_turns, exponential, logarithm, power, sine_of_turns
from mpitrain.data.random_streams import keyed_normal

pytestmark = pytest.mark.fast

GOLDEN_NORMAL = ["-0x1.98f721c4c6697p-2", "-0x1.3e5cf5e144081p-1", "0x1.a0c964630d862p+0"]
GENERATOR = np.random.default_rng(0)


def units_off(found, truth):
    return np.max(np.abs(found.astype(np.longdouble) - truth) / np.spacing(np.abs(truth.astype(np.float64))))


def test_logarithm_and_exponential_are_exact_to_two_units_in_the_last_place():
    for numbers in (GENERATOR.random(200_000), 2.0 ** GENERATOR.uniform(-1000, 1000, 200_000)):
        assert units_off(logarithm(numbers), np.log(numbers.astype(np.longdouble))) < 2
    numbers = GENERATOR.uniform(-700, 700, 200_000)
    assert units_off(exponential(numbers), np.exp(numbers.astype(np.longdouble))) < 1
    assert exponential(0.0) == 1
    assert logarithm(1.0) == 0


def test_cosine_and_sine_are_as_exact_as_they_say():
    turns = np.concatenate([GENERATOR.uniform(-3, 3, 200_000), np.arange(-9, 9) / 4])
    angles = turns.astype(np.longdouble) * (2 * np.longdouble("3.14159265358979323846264338327950288"))
    assert np.max(np.abs(cosine_of_turns(turns) - np.cos(angles))) < 2.0**-51
    assert np.max(np.abs(sine_of_turns(turns) - np.sin(angles))) < 2.0**-50
    assert cosine_of_turns([0, 0.5, 1, 1e9]).tolist() == [1, -1, 1, 1]


@pytest.mark.parametrize(("base", "exponent"), [(0.5, 0), (0.9, 1), (0.999, 12345), (1.5, 7)])
def test_power_is_the_product(base, exponent):
    assert power(base, exponent) == pytest.approx(base**exponent, rel=1e-12)


def test_normal_numbers_are_normal_and_these():
    numbers = keyed_normal((3, 7), 200_000)
    assert abs(numbers.mean()) < 0.01
    assert abs(numbers.std() - 1) < 0.01
    assert abs(np.mean(numbers < 1) - 0.5 * (1 + math.erf(math.sqrt(0.5)))) < 0.005
    # Bit for bit: old runs must stay repeatable.
    assert [number.hex() for number in keyed_normal((0, 7, 0), 3).tolist()] == GOLDEN_NORMAL
