"""What `reference` semantics trains on: the C++ program's partition and its one-pass statistics.

P  real ranks      F  input features
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mpitrain.comm.session import Session
from mpitrain.data.dataset.batches import Slice
from mpitrain.data.dataset.in_memory import Normalization
from mpitrain.data.dataset.split import round_robin
from mpitrain.data.samples import Samples, first_invalid_feature
from mpitrain.errors import DataError


@dataclass(frozen=True)
class ReferenceData:
    """What `reference` semantics trains on: this rank's n samples, the same n on every rank; `targets` (n, 1)."""

    inputs: torch.Tensor
    targets: torch.Tensor
    grid_index: npt.NDArray[np.int64]
    num_samples: int
    normalization: Normalization

    def blocks(self) -> Iterator[Slice]:
        """Yield this rank's samples as one block; see `EvaluationSource`."""
        yield Slice(0, self.inputs, self.targets, torch.ones_like(self.targets))


def share_out_as_reference(samples: Samples, session: Session, dtype: torch.dtype) -> ReferenceData:
    """Partition by grid index, truncate to the smallest rank's count, and compute one-pass statistics. Collective.

    `samples` must be the whole selection, the same on all ranks. Raises DataError, on all ranks, for a NaN or fill
    value, a rank without samples, or a feature whose standard deviation is 0 or not a number.
    """
    world_size = session.ranks.world_size
    bad = first_invalid_feature(samples)
    if bad is not None:
        raise DataError(
            f"feature '{bad}' holds a NaN or a fill value, which semantics=reference would train on; "
            f"use semantics=standard, which drops such samples"
        )
    own = samples.take(round_robin(samples.grid_index, world_size, session.ranks.rank))
    smallest = torch.tensor([len(own)])
    session.control.all_reduce(smallest, "min")
    n = int(smallest[0])
    if n == 0:
        raise DataError(
            f"semantics=reference: of {len(samples)} samples on {world_size} ranks one rank has none; "
            f"use fewer ranks, or semantics=standard"
        )
    inputs, targets = (torch.from_numpy(array[:n]).to(dtype) for array in (own.inputs, own.targets))
    mean, std = _one_pass_moments(inputs, session)
    _refuse_degenerate(std, samples.input_names)
    return ReferenceData(
        inputs, targets, own.grid_index[:n], n * world_size, Normalization(mean, std, *_unchanged_outputs(mean))
    )


def _one_pass_moments(inputs: torch.Tensor, session: Session) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and std (F,) of all ranks' rows in the C++ program's order of operations. Collective."""
    total = float(len(inputs) * session.ranks.world_size)
    sums, squares = torch.sum(inputs, dim=0), torch.sum(torch.pow(inputs, 2), dim=0)
    session.all_reduce(sums)
    session.all_reduce(squares)
    mean = sums / total
    return mean, torch.sqrt(squares / total - torch.pow(mean, 2))


def _refuse_degenerate(std: torch.Tensor, names: tuple[str, ...]) -> None:
    for name, value in zip(names, std.tolist(), strict=True):
        if not value > 0:  # also NaN: a one-pass variance may come out negative
            raise DataError(
                f"feature '{name}' has standard deviation {value} in float32 one-pass statistics "
                f"(semantics=reference): "
                "it cannot be normalised; use semantics=standard"
            )


def _unchanged_outputs(like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    # The C++ program normalises its inputs only.
    return torch.zeros(1, dtype=like.dtype), torch.ones(1, dtype=like.dtype)
