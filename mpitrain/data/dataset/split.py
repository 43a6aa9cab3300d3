"""Which samples are held out, and which virtual rank owns a training sample.

V  virtual ranks      N  samples
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mpitrain.data.random_streams import Stream, keyed_uniform

IndexArray = npt.NDArray[np.int64]


def validation_flags(first: int, count: int, fraction: float, seed: int) -> npt.NDArray[np.bool_]:
    """Tell which of the samples number `first` up to `first` + `count` (count,) are held out.

    Each sample is decided from (seed, number) alone: the same for any number of ranks.
    """
    flags: npt.NDArray[np.bool_] = keyed_uniform((seed, Stream.VALIDATION), count, first) < fraction
    return flags


def split_validation(num_samples: int, fraction: float, seed: int) -> tuple[IndexArray, IndexArray]:
    """Return the training and the validation samples' positions, each in file order."""
    is_validation = validation_flags(0, num_samples, fraction, seed)
    return np.flatnonzero(~is_validation), np.flatnonzero(is_validation)


def members_of(virtual_rank: int, num_virtual_ranks: int, num_samples: int) -> IndexArray:
    """Return the sample numbers that belong to virtual rank v for ever: v, v + V, v + 2V, ..."""
    return np.arange(virtual_rank, num_samples, num_virtual_ranks)
