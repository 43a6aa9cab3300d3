"""From a file to what this rank trains on, in both semantics.

V  virtual ranks      P  real ranks      F  input features
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mpitrain.comm.session import Session
from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.data.moments import allreduce_moments, moments_of
from mpitrain.data.partition import members_of, round_robin, split_validation
from mpitrain.data.samples import Samples, first_invalid_feature, valid_rows
from mpitrain.errors import DataError


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of each input feature, (F,), dtype of the model, the same on all ranks."""

    mean: torch.Tensor
    std: torch.Tensor


@dataclass(frozen=True)
class VirtualRankSamples:
    """One virtual rank's own samples: `inputs` (n, F), `targets` (n,), and their flat `grid_index` (n,); n may be 0."""

    virtual_rank: int
    inputs: torch.Tensor
    targets: torch.Tensor
    grid_index: npt.NDArray[np.int64]


@dataclass(frozen=True)
class TrainingData:
    """What `standard` semantics trains on: the owned virtual ranks' samples, and numbers about all ranks' samples."""

    training: Sequence[VirtualRankSamples]
    validation: Sequence[VirtualRankSamples]
    num_training_samples: int
    num_validation_samples: int
    num_dropped_samples: int
    normalization: Normalization
    target_mean: float
    constant_features: tuple[str, ...]


@dataclass(frozen=True)
class ReferenceData:
    """What `reference` semantics trains on: this rank's n samples, the same n on every rank."""

    inputs: torch.Tensor
    targets: torch.Tensor
    grid_index: npt.NDArray[np.int64]
    num_samples: int
    normalization: Normalization


def share_out(
    samples: Samples,
    session: Session,
    virtual_ranks: VirtualRanks,
    validation_split: float,
    seed: int,
    dtype: torch.dtype,
) -> TrainingData:
    """Drop unusable samples, split off the validation set, and keep what this rank's virtual ranks own. Collective.

    `samples` must be the whole selection, the same on all ranks. Raises DataError when nothing is left to train on.
    """
    valid = valid_rows(samples)
    kept = np.flatnonzero(valid)
    training, validation = split_validation(len(kept), validation_split, seed)
    if len(training) == 0:
        raise DataError(
            f"{len(samples)} samples selected, {len(samples) - len(kept)} dropped as NaN or fill value: "
            f"none is left to train on"
        )
    owned = [_own(samples, kept[training], v, virtual_ranks) for v in virtual_ranks.owned]
    moments = allreduce_moments(
        [moments_of(np.column_stack([own.inputs, own.targets])) for own in owned], session.control, virtual_ranks
    )
    # A constant feature carries nothing: it is centred, and dividing by 1 keeps it finite. Its range tells it exactly;
    # its standard deviation may come out as rounding noise.
    is_constant = moments.minimum == moments.maximum
    std = np.where(is_constant, 1.0, moments.std)
    return TrainingData(
        [_to_tensors(v, own, session, dtype) for v, own in zip(virtual_ranks.owned, owned, strict=True)],
        [
            _to_tensors(v, _own(samples, kept[validation], v, virtual_ranks), session, dtype)
            for v in virtual_ranks.owned
        ],
        num_training_samples=len(training),
        num_validation_samples=len(validation),
        num_dropped_samples=len(samples) - len(kept),
        normalization=_normalization(moments.mean[:-1], std[:-1], session, dtype),
        target_mean=float(moments.mean[-1]),
        constant_features=tuple(np.array(samples.feature_names)[is_constant[:-1]]),
    )


def _own(samples: Samples, positions: npt.NDArray[np.int64], virtual_rank: int, virtual_ranks: VirtualRanks) -> Samples:
    return samples.take(positions[members_of(virtual_rank, virtual_ranks.num_virtual_ranks, len(positions))])


def _to_tensors(virtual_rank: int, own: Samples, session: Session, dtype: torch.dtype) -> VirtualRankSamples:
    inputs, targets = (torch.from_numpy(array).to(session.device, dtype) for array in (own.inputs, own.targets))
    return VirtualRankSamples(virtual_rank, inputs, targets, own.grid_index)


def _normalization(
    mean: npt.NDArray[np.float64], std: npt.NDArray[np.float64], session: Session, dtype: torch.dtype
) -> Normalization:
    return Normalization(*(torch.from_numpy(part).to(session.device, dtype) for part in (mean, std)))


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
    _refuse_degenerate(std, samples.feature_names)
    return ReferenceData(inputs, targets, own.grid_index[:n], n * world_size, Normalization(mean, std))


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
