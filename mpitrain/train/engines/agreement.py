"""Check that all ranks have the same number, by extra columns of a sum that is computed anyway: no extra collective.

V  rows that are added, at least one of each rank
"""

from __future__ import annotations

from collections.abc import Sequence

_NUM_PARTS, _BITS_A_PART = 4, 16
NUM_COLUMNS = 2 * _NUM_PARTS


def columns_of(number: int) -> list[float]:
    """Return the columns (8,) for a `number` below 2^64: its four parts of 16 bits, then their squares."""
    parts = [number >> _BITS_A_PART * i & (1 << _BITS_A_PART) - 1 for i in range(_NUM_PARTS)]
    return [float(one) for one in (*parts, *(part * part for part in parts))]


def are_equal(sums: Sequence[float], num_rows: int) -> bool:
    """Return whether the numbers of all V rows are equal, from `sums` (8,), the rows' columns added up.

    The result is the same on all ranks. V numbers x are equal if and only if V * sum(x * x) is sum(x)^2 (Cauchy and
    Schwarz). The sums are exact: whole numbers below 2^53 for V up to 2^21.
    """
    parts, squares = sums[:_NUM_PARTS], sums[_NUM_PARTS:]
    return all(num_rows * int(square) == int(part) ** 2 for part, square in zip(parts, squares, strict=True))
