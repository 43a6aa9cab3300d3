"""Numbers whose sum depends on the order of addition, and their sum in the fixed tree, in plain numpy float32."""

from __future__ import annotations

import numpy as np

NUM_VIRTUAL_RANKS = 8
NUM_NUMBERS = 501


def order_sensitive_rows() -> np.ndarray:
    """One row a virtual rank, (8, 501) float32, of mixed signs and magnitudes from 2^-12 to 2^12."""
    v = np.arange(NUM_VIRTUAL_RANKS, dtype=np.int64)[:, None]
    n = np.arange(NUM_NUMBERS, dtype=np.int64)[None, :]
    mantissa = (v * 7919 + n * 104729 + v * n * 613) % 1000003 - 500001
    exponent = (v * 5 + n * 3 + v * n) % 25 - 12
    return np.ldexp(mantissa.astype(np.float64) / 500001.0, exponent).astype(np.float32)


def tree_sum(rows: np.ndarray) -> np.ndarray:
    """((0+1)+(2+3))+((4+5)+(6+7)), written out."""
    a, b, c, d = rows[0] + rows[1], rows[2] + rows[3], rows[4] + rows[5], rows[6] + rows[7]
    return (a + b) + (c + d)
