"""Which samples a rank, or a virtual rank, owns.

P  real ranks      V  virtual ranks      N  samples
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mpitrain.data.keyed_random import keyed_uniform

IndexArray = npt.NDArray[np.int64]

# The C++ program's own limit of samples a rank.
REFERENCE_SAMPLES_PER_RANK = 400_000
_VALIDATION_STREAM = 1


def round_robin(grid_index: IndexArray, world_size: int, rank: int) -> IndexArray:
    """Return the positions of `rank`'s samples: grid points rank, rank + P, ..., at most 400000 (reference)."""
    return np.flatnonzero(grid_index % world_size == rank)[:REFERENCE_SAMPLES_PER_RANK]


def split_validation(num_samples: int, fraction: float, seed: int) -> tuple[IndexArray, IndexArray]:
    """Return the training and the validation samples' positions, each in file order.

    Each sample is decided from (seed, position) alone: the same for any number of ranks.
    """
    is_validation = keyed_uniform((seed, _VALIDATION_STREAM), num_samples) < fraction
    return np.flatnonzero(~is_validation), np.flatnonzero(is_validation)


def members_of(virtual_rank: int, num_virtual_ranks: int, num_samples: int) -> IndexArray:
    """Return the sample numbers that belong to virtual rank v for ever: v, v + V, v + 2V, ..."""
    return np.arange(virtual_rank, num_samples, num_virtual_ranks)
