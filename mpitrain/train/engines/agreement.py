"""Whether all ranks have the same number, found from sums that are computed anyway: no message of its own.

V  rows that are added, at least one of each rank
"""

from __future__ import annotations

from collections.abc import Sequence

_NUM_PARTS, _BITS_A_PART = 4, 16
NUM_COLUMNS = 2 * _NUM_PARTS


def columns_of(number: int) -> list[float]:
    """Return what a row must carry for a `number` below 2^64: its parts of 16 bits and their squares (8,)."""
    parts = [number >> _BITS_A_PART * i & (1 << _BITS_A_PART) - 1 for i in range(_NUM_PARTS)]
    return [float(one) for one in (*parts, *(part * part for part in parts))]


def are_equal(sums: Sequence[float], num_rows: int) -> bool:
    """Tell from the sums of V rows of columns (8,) whether all were alike; the same verdict on every rank.

    Numbers x are equal if and only if V * sum(x * x) is sum(x)^2 (Cauchy and Schwarz). The sums are exact: whole
    numbers below 2^53 for V up to 2^21.
    """
    parts, squares = sums[:_NUM_PARTS], sums[_NUM_PARTS:]
    return all(num_rows * int(square) == int(part) ** 2 for part, square in zip(parts, squares, strict=True))
