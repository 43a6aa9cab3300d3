"""Moments against exactly rounded sums, and their merge in the fixed tree."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played_ranks import on_played_ranks

from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.data.moments import allreduce_moments, merge_stacks, moments_of, moments_of_samples
from mpitrain.data.samples import Samples

NUM_VIRTUAL_RANKS = 8


def exact_mean_and_std(column):
    """Mean and population standard deviation from exactly rounded sums."""
    mean = math.fsum(column) / len(column)
    deviations = [value - mean for value in column]
    square_sum = math.fsum(d * d for d in deviations) - math.fsum(deviations) ** 2 / len(column)
    return mean, math.sqrt(square_sum / len(column))


def merged_over(num_ranks, shares):
    """The moments on every rank, where virtual rank v holds the rows `shares[v]`."""

    def body(communicator):
        plan = VirtualRanks(len(shares), num_ranks, communicator.rank)
        return allreduce_moments([moments_of(shares[v].T) for v in plan.owned], communicator, plan)

    return on_played_ranks(num_ranks, body)


def bytes_of(moments):
    parts = (moments.count, moments.mean, moments.m2, moments.minimum, moments.maximum)
    return b"".join(np.asarray(part, dtype=np.float64).tobytes() for part in parts)


def rows_like_sea_ice(num_rows):
    generator = np.random.default_rng(1)
    return generator.normal([-15, 0, 33, 0.1], [10, 1e-3, 1, 1e3], size=(num_rows, 4)).astype(np.float32)


@pytest.mark.parametrize("num_rows", [1, 2, 3, 1000, 10_007])
def test_moments_are_exact_to_rounding(num_rows):
    rows = rows_like_sea_ice(num_rows)
    moments = moments_of(rows.T)
    assert moments.count.tolist() == [num_rows] * 4
    for c, column in enumerate(rows.T.astype(np.float64)):
        mean, std = exact_mean_and_std(column.tolist())
        assert abs(moments.mean[c] - mean) <= 1e-15 * np.abs(column).max()
        assert abs(moments.std[c] - std) <= 1e-12 * std
        assert (moments.minimum[c], moments.maximum[c]) == (column.min(), column.max())


def test_merged_moments_are_exact_to_rounding():
    rows = rows_like_sea_ice(10_007)
    moments = merged_over(3, [rows[v::NUM_VIRTUAL_RANKS] for v in range(NUM_VIRTUAL_RANKS)])[0]
    for c, column in enumerate(rows.T.astype(np.float64)):
        mean, std = exact_mean_and_std(column.tolist())
        assert abs(moments.mean[c] - mean) <= 1e-15 * np.abs(column).max()
        assert abs(moments.std[c] - std) <= 1e-12 * std


def test_a_large_offset_costs_few_digits():
    rows = 1e6 + 1e-3 * np.random.default_rng(5).normal(size=(4000, 1))
    exact = [Fraction(value) for value in rows[:, 0].tolist()]
    mean = sum(exact) / len(exact)
    std = math.sqrt(sum((value - mean) ** 2 for value in exact) / len(exact))
    for moments in (moments_of(rows.T), merged_over(1, [rows[v::8] for v in range(8)])[0]):
        assert abs(moments.std[0] - std) <= 1e-9 * std
        assert abs(moments.mean[0] - float(mean)) <= 1e-15 * 1e6
    one_pass = math.sqrt(abs(np.mean(rows**2) - np.mean(rows) ** 2))
    assert abs(one_pass - std) > 1e-3 * std, "this case would not tell the one-pass formula apart"


@pytest.mark.parametrize("num_rows", [1, 5, 1003])
def test_the_bits_are_the_same_for_any_number_of_ranks(num_rows):
    rows = rows_like_sea_ice(num_rows)
    shares = [rows[v::NUM_VIRTUAL_RANKS] for v in range(NUM_VIRTUAL_RANKS)]
    expected = bytes_of(merged_over(1, shares)[0])
    for num_ranks in (2, 3, 4, 5, 8):
        assert {bytes_of(moments) for moments in merged_over(num_ranks, shares)} == {expected}


@pytest.mark.parametrize("filled", [{0}, {7}, {3, 4}, {0, 2, 5, 7}])
def test_empty_virtual_ranks_change_nothing(filled):
    rows = rows_like_sea_ice(60)
    parts = dict(zip(sorted(filled), np.array_split(rows, len(filled)), strict=True))
    merged = merged_over(2, [parts.get(v, rows[:0]) for v in range(NUM_VIRTUAL_RANKS)])[0]
    whole = moments_of(rows.T)
    assert merged.count.tolist() == [60] * 4
    np.testing.assert_allclose(merged.mean, whole.mean, rtol=1e-14, atol=1e-16)
    np.testing.assert_allclose(merged.m2, whole.m2, rtol=1e-13)
    np.testing.assert_array_equal(merged.minimum, whole.minimum)
    np.testing.assert_array_equal(merged.maximum, whole.maximum)
    if len(filled) == 1:
        assert bytes_of(merged) == bytes_of(whole)


def test_nobody_has_samples():
    merged = merged_over(2, [np.empty((0, 2), dtype=np.float32)] * 8)[0]
    assert (merged.count.tolist(), merged.mean.tolist(), merged.m2.tolist()) == ([0, 0],) * 3
    assert (merged.minimum.tolist(), merged.maximum.tolist()) == ([math.inf] * 2, [-math.inf] * 2)


def test_merge_is_chans_formula():
    # (1, 3) has mean 2 and m2 2; (5, 9, 10) has mean 8 and m2 14; together mean 5.6, m2 2 + 14 + 36 * 2 * 3 / 5.
    lower, upper = np.array([[2.0, 2, 2, 1, 3]]), np.array([[3.0, 8, 14, 5, 10]])
    count, mean, m2, minimum, maximum = merge_stacks(lower, upper)[0].tolist()
    assert (count, minimum, maximum) == (5, 1, 10)
    assert mean == pytest.approx(5.6, rel=1e-15)
    assert m2 == pytest.approx(59.2, rel=1e-15)


@settings(deadline=None, derandomize=True, database=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=40), st.integers(0, 40))
def test_any_two_parts_merge_to_the_whole(values, cut):
    column = np.array(values, dtype=np.float64)[:, None]
    merged = merged_over(1, [column[:cut], column[cut:]])[0]
    mean, std = exact_mean_and_std(values)
    scale = np.abs(column).max()
    assert abs(merged.mean[0] - mean) <= 1e-14 * scale
    assert abs(merged.m2[0] - std**2 * len(values)) <= 1e-13 * scale**2 * len(values)
    assert merged.m2[0] >= 0


def test_a_constant_column_has_no_spread():
    rows = np.full((1001, 1), np.float32(0.1))
    merged = merged_over(3, [rows[v::8] for v in range(8)])[0]
    assert merged.minimum[0] == merged.maximum[0]
    assert merged.std[0] <= 1e-15


def test_each_target_of_fields_counts_where_it_is_measured():
    """One field of four points: the first target at the left two, the second at the right two, inputs at all."""
    values = np.array([1.0, 3.0, 10.0, 30.0], dtype=np.float32).reshape(1, 1, 1, 4)
    measured = np.array([[1, 1, 0, 0], [0, 0, 1, 1]], dtype=np.float32).reshape(1, 2, 1, 4)
    samples = Samples(values, np.concatenate([values, values], axis=1), np.zeros(1, int), ("x",), ("a", "b"), measured)
    moments = moments_of_samples(samples)
    assert moments.count.tolist() == [4, 2, 2]
    assert moments.mean.tolist() == [11, 2, 20]
