"""Which samples make global batch k of an epoch: every virtual rank's k-th slice of its own shuffled samples.

B  global batch size      V  virtual ranks      b = B / V  rows a slice      F  input features
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from mpitrain.data.random_streams import Stream, keyed_permutation

_BLOCK_POINTS = 65_536
# Which samples of a virtual rank: a run of them, or their numbers in any shape.
Chosen = slice | torch.Tensor


@dataclass(frozen=True)
class VirtualRankSamples:
    """One virtual rank's n samples (n may be 0), and after them one row of zeros that weighs nothing, for padding.

    `padded_inputs` (n + 1, F, ...), `padded_targets` (n + 1, O, ...), `padded_weights` (n + 1, 1 or O, ...);
    `grid_index` (n,) is each sample's place in its source. With `places` (n + 1,) the three tensors belong to several
    virtual ranks, of which this one's samples, and the row of zeros, lie at these rows.
    """

    virtual_rank: int
    padded_inputs: torch.Tensor
    padded_targets: torch.Tensor
    padded_weights: torch.Tensor
    grid_index: npt.NDArray[np.int64]
    places: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.grid_index)

    @property
    def inputs(self) -> torch.Tensor:
        """The samples' inputs (n, F, ...)."""
        return self.padded_inputs[self.rows(slice(0, -1))]

    @property
    def targets(self) -> torch.Tensor:
        """The samples' targets (n, O, ...)."""
        return self.padded_targets[self.rows(slice(0, -1))]

    @property
    def weights(self) -> torch.Tensor:
        """How much the targets count (n, 1 or O, ...)."""
        return self.padded_weights[self.rows(slice(0, -1))]

    def rows(self, chosen: Chosen) -> Chosen:
        """Return at which rows of the tensors the samples number `chosen` lie."""
        return chosen if self.places is None else self.places[chosen]

    def blocks(self) -> Iterator[Slice]:
        """See `EvaluationSource.blocks`."""
        points_a_row = self.padded_targets[:1].numel() // self.padded_targets.shape[1]
        num_rows = max(1, _BLOCK_POINTS // max(1, points_a_row))
        for first in range(0, len(self), num_rows):
            yield self.slice_of(slice(first, min(first + num_rows, len(self))))

    def slice_of(self, chosen: Chosen) -> Slice:
        """Return the samples number `chosen`; the number n stands for the row of zeros."""
        rows = self.rows(chosen)
        columns = (self.padded_inputs, self.padded_targets, self.padded_weights)
        return Slice(self.virtual_rank, *(column[rows] for column in columns))


@dataclass(frozen=True)
class Slice:
    """One virtual rank's part of a batch: `inputs` (b, F, ...), `targets` (b, O, ...), `weights` (b, 1 or O, ...).

    A weight of 0 marks padding rows and masked points.
    """

    virtual_rank: int
    inputs: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor


class SliceSource(Protocol):
    """Where an engine gets one virtual rank's slices from, in memory or from files."""

    @property
    def virtual_rank(self) -> int:
        """Whose slices these are."""

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """Prepare the slices of `epoch` (from 0), of which `first_step` come with the steps that are done already."""

    def slice(self, step: int) -> Slice:
        """Return slice number `step` of the epoch; steps are asked for in order."""


class EvaluationSource(Protocol):
    """Where one virtual rank's held-out samples come from."""

    def blocks(self) -> Iterator[Slice]:
        """Yield all samples in order, in blocks whose sizes do not depend on the number of ranks."""


@dataclass(frozen=True)
class BatchPlan:
    """The sizes that fix the batches, the same on all ranks and for any number of them."""

    num_samples: int
    num_virtual_ranks: int
    slice_rows: int
    steps_per_epoch: int

    @property
    def global_batch_size(self) -> int:
        """B, rounded up to a multiple of V."""
        return self.slice_rows * self.num_virtual_ranks


def plan_batches(
    num_samples: int, global_batch_size: int | str, num_virtual_ranks: int, largest_share: int | None = None
) -> BatchPlan:
    """Round B up to a multiple of V and count the steps of an epoch; "full" makes one step of all samples.

    `largest_share` is the most samples that a virtual rank has, where they are not shared out evenly.
    """
    largest_share = largest_share or -(-num_samples // num_virtual_ranks)
    rows = largest_share if global_batch_size == "full" else -(-int(global_batch_size) // num_virtual_ranks)
    rows = min(rows, largest_share)
    return BatchPlan(num_samples, num_virtual_ranks, rows, -(-largest_share // rows))


class VirtualRankBatches:
    """The samples of one virtual rank, cut into slices of equal shape, reshuffled each epoch from (seed, epoch, v)."""

    def __init__(self, samples: VirtualRankSamples, plan: BatchPlan, seed: int, shuffle: bool) -> None:
        self.virtual_rank = samples.virtual_rank
        self.samples = samples
        self._order = EpochOrder(samples.virtual_rank, len(samples), plan, seed, shuffle)

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """See `SliceSource.start_epoch`."""
        self._order.start_epoch(epoch)

    def epoch_rows(self) -> torch.Tensor:
        """Return the rows of `samples`' tensors that make all slices of the epoch (steps, b); padding is the zeros'."""
        numbers, places = self._order.all_rows(), self.samples.places
        return numbers if places is None else places[numbers]

    def slice(self, step: int) -> Slice:
        """See `SliceSource.slice`."""
        return self.samples.slice_of(self._order.rows(step))


class EpochOrder:
    """Which of a virtual rank's `num_samples` samples make each slice; row `num_samples` stands for padding."""

    def __init__(self, virtual_rank: int, num_samples: int, plan: BatchPlan, seed: int, shuffle: bool) -> None:
        self._keys = (seed, Stream.SHUFFLE)
        self._virtual_rank, self._num_samples, self._plan = virtual_rank, num_samples, plan
        # One slice of all samples has no order to draw, and is read fastest as it lies.
        self._shuffle = shuffle and plan.steps_per_epoch > 1
        self._order, self._epoch = torch.empty(0, dtype=torch.int64), -1
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        """Shuffle for `epoch` (from 0)."""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        count, num_rows = self._num_samples, self._plan.slice_rows * self._plan.steps_per_epoch
        order = np.full(num_rows, count)
        keys = (*self._keys, epoch, self._virtual_rank)
        order[:count] = keyed_permutation(keys, count) if self._shuffle else np.arange(count)
        self._order = torch.from_numpy(order)

    def all_rows(self) -> torch.Tensor:
        """Return the sample numbers of all slices (steps, b)."""
        return self._order.view(self._plan.steps_per_epoch, self._plan.slice_rows)

    def rows(self, step: int) -> torch.Tensor:
        """Return the sample numbers of slice `step` (b,)."""
        return self._order[step * self._plan.slice_rows : (step + 1) * self._plan.slice_rows]


def split_slice(piece: Slice, num_parts: int) -> list[Slice]:
    """Return the slice in `num_parts` parts of equal shape, which its number of rows must allow."""
    if num_parts == 1:
        return [piece]
    columns = zip(*(tensor.chunk(num_parts) for tensor in (piece.inputs, piece.targets, piece.weights)), strict=True)
    return [Slice(piece.virtual_rank, *column) for column in columns]
