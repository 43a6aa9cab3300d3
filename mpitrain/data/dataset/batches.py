"""The batches of an epoch: global batch k consists of every virtual rank's k-th microbatch of its shuffled samples.

B  global batch size      V  virtual ranks      b = B / V  rows per microbatch      F  input features
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Array
from mpitrain.data.random_streams import Stream, keyed_permutation

_BLOCK_POINTS = 65_536
# Samples of a virtual rank: a slice, or an array of indices of any shape.
Chosen = slice | npt.NDArray[np.int64]


@dataclass(frozen=True)
class VirtualRankSamples:
    """One virtual rank's n samples (n may be 0), followed by one row of zeros with weight 0, for padding.

    The arrays are numpy's, or converted by `Dataset.converted`: `padded_inputs` (n + 1, F, ...), `padded_targets`
    (n + 1, O, ...), `padded_weights` (n + 1, 1 or O, ...); `grid_index` (n,) is each sample's position in its source.
    With `places` (n + 1,) these arrays hold the samples of several virtual ranks; `places` are the rows of this one's
    samples and of the row of zeros.
    """

    virtual_rank: int
    padded_inputs: Array
    padded_targets: Array
    padded_weights: Array
    grid_index: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.grid_index)

    @property
    def inputs(self) -> Array:
        """The samples' inputs (n, F, ...)."""
        return self.padded_inputs[self.rows(slice(0, -1))]

    @property
    def targets(self) -> Array:
        """The samples' targets (n, O, ...)."""
        return self.padded_targets[self.rows(slice(0, -1))]

    @property
    def weights(self) -> Array:
        """The weights of the targets (n, 1 or O, ...)."""
        return self.padded_weights[self.rows(slice(0, -1))]

    def rows(self, chosen: Chosen) -> Chosen:
        """Return the rows of the arrays that hold the samples with the indices `chosen`."""
        return chosen if self.places is None else self.places[chosen]

    def blocks(self) -> Iterator[Microbatch]:
        """See `EvaluationSource.blocks`."""
        points_a_row = math.prod(self.padded_targets.shape[1:]) // self.padded_targets.shape[1]
        num_rows = max(1, _BLOCK_POINTS // max(1, points_a_row))
        for first in range(0, len(self), num_rows):
            yield self.microbatch_of(slice(first, min(first + num_rows, len(self))))

    def microbatch_of(self, chosen: Chosen) -> Microbatch:
        """Return the samples with the indices `chosen`; the index n stands for the row of zeros."""
        rows = self.rows(chosen)
        columns = (self.padded_inputs, self.padded_targets, self.padded_weights)
        return Microbatch(self.virtual_rank, *(column[rows] for column in columns))


@dataclass(frozen=True)
class Microbatch:
    """One virtual rank's part of a batch, or a block of its samples; b rows.

    Attributes
    ----------
    virtual_rank : int
        Virtual rank that owns the samples, from 0.
    inputs : ndarray or Tensor in the model's dtype, shape (b, F) or (b, F, H, W)
        In physical units, not normalised. In fields the mean of an input replaces its missing values.
    targets : ndarray or Tensor in the model's dtype, shape (b, O) or (b, O, H, W)
        In physical units, or transformed by `model.output_transforms`. In fields missing values are 0.
    weights : ndarray or Tensor in the model's dtype, shape (b, 1) or (b, O, H, W)
        Weights of the targets in the loss; 0 for padding rows, and for masked or missing points of fields.
    """

    virtual_rank: int
    inputs: Array
    targets: Array
    weights: Array


class MicrobatchSource(Protocol):
    """The source of one virtual rank's microbatches, in memory or in files."""

    @property
    def virtual_rank(self) -> int:
        """The virtual rank of these microbatches."""

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """Prepare the microbatches of `epoch` (from 0) from step `first_step` on."""

    def microbatch(self, step: int) -> Microbatch:
        """Return microbatch number `step` of the epoch; steps are requested in order."""


class EvaluationSource(Protocol):
    """The source of one virtual rank's samples for an evaluation, held-out samples or training samples."""

    def blocks(self) -> Iterator[Microbatch]:
        """Yield all samples in order, in blocks.

        Yields
        ------
        Microbatch
            Consecutive samples, without padding rows. Samples in memory and from files: at most 65,536 points, or one
            sample if it has more.

        Raises
        ------
        DataError
            While streaming: a file has changed or cannot be read. Raised on this rank only.

        Notes
        -----
        Not collective. The sizes of the blocks do not depend on the number of ranks, except in `reference` semantics,
        where all samples of a rank are one block.
        """


@dataclass(frozen=True)
class BatchPlan:
    """The sizes that define the batches, the same on all ranks.

    In `standard` semantics they depend on the number of ranks only if the global batch size does.

    Attributes
    ----------
    num_samples : int
        Number of training samples of all ranks.
    num_virtual_ranks : int
        V, the number of microbatches in a step.
    microbatch_rows : int
        b, the rows of each microbatch; rows of weight 0 pad a microbatch with fewer samples.
    steps_per_epoch : int
        Number of batches in an epoch; the last one may have fewer samples.
    exact_batch_size : int or None
        B, if V need not divide it: the microbatches of a step may differ by one sample. None (default): all have the
        same size.
    """

    num_samples: int
    num_virtual_ranks: int
    microbatch_rows: int
    steps_per_epoch: int
    exact_batch_size: int | None = None

    @property
    def global_batch_size(self) -> int:
        """B, at most all samples; rounded up to a multiple of V if all microbatches have the same size."""
        return self.exact_batch_size or self.microbatch_rows * self.num_virtual_ranks


def plan_batches(
    num_samples: int, global_batch_size: int | str, num_virtual_ranks: int, largest_share: int | None = None,
    *, is_exact: bool = False,
) -> BatchPlan:  # fmt: skip
    """Return the sizes of batches and the number of steps of an epoch; "full" makes one step of all samples.

    A step has B samples if `is_exact`, otherwise B rounded up to a multiple of V. `largest_share` is the largest number
    of samples of a virtual rank, if they are not distributed evenly.
    """
    if is_exact and global_batch_size != "full" and int(global_batch_size) <= num_samples:
        size = int(global_batch_size)
        steps = -(-num_samples // size)
        return BatchPlan(num_samples, num_virtual_ranks, -(-size // num_virtual_ranks), steps, size)
    largest_share = largest_share or -(-num_samples // num_virtual_ranks)
    rows = largest_share if global_batch_size == "full" else -(-int(global_batch_size) // num_virtual_ranks)
    rows = min(rows, largest_share)
    return BatchPlan(num_samples, num_virtual_ranks, rows, -(-largest_share // rows))


class VirtualRankBatches:
    """Microbatches of equal shape of one virtual rank's samples, shuffled in each epoch by (seed, epoch, v)."""

    def __init__(self, samples: VirtualRankSamples, plan: BatchPlan, seed: int, shuffle: bool) -> None:
        self.virtual_rank = samples.virtual_rank
        self.samples = samples
        self._order = EpochOrder(samples.virtual_rank, len(samples), plan, seed, shuffle)

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """See `MicrobatchSource.start_epoch`."""
        self._order.start_epoch(epoch)

    def epoch_rows(self) -> npt.NDArray[np.int64]:
        """Return the rows of the arrays for the epoch's microbatches (steps, b); padding is the row of zeros."""
        numbers, places = self._order.all_rows(), self.samples.places
        return numbers if places is None else places[numbers]

    def microbatch(self, step: int) -> Microbatch:
        """See `MicrobatchSource.microbatch`."""
        return self.samples.microbatch_of(self._order.rows(step))


class EpochOrder:
    """The samples of each microbatch of a virtual rank with `num_samples` samples; index `num_samples` is padding."""

    def __init__(self, virtual_rank: int, num_samples: int, plan: BatchPlan, seed: int, shuffle: bool) -> None:
        self._keys = (seed, Stream.SHUFFLE)
        self._virtual_rank, self._num_samples, self._plan = virtual_rank, num_samples, plan
        # One microbatch of all samples need not be shuffled, and is read fastest in stored order.
        self._shuffle = shuffle and plan.steps_per_epoch > 1
        self._places = _places_of(virtual_rank, num_samples, plan)
        self._order, self._epoch = np.empty(0, dtype=np.int64), -1
        self.start_epoch(0)

    def start_epoch(self, epoch: int) -> None:
        """Shuffle for `epoch` (from 0)."""
        if epoch == self._epoch:
            return
        self._epoch = epoch
        count, num_rows = self._num_samples, self._plan.microbatch_rows * self._plan.steps_per_epoch
        order = np.full(num_rows, count, dtype=np.int64)
        keys = (*self._keys, epoch, self._virtual_rank)
        order[self._places] = keyed_permutation(keys, count) if self._shuffle else np.arange(count)
        self._order = order

    def all_rows(self) -> npt.NDArray[np.int64]:
        """Return the sample indices of all microbatches (steps, b)."""
        return self._order.reshape(self._plan.steps_per_epoch, self._plan.microbatch_rows)

    def rows(self, step: int) -> npt.NDArray[np.int64]:
        """Return the sample indices of microbatch `step` (b,)."""
        return self._order[step * self._plan.microbatch_rows : (step + 1) * self._plan.microbatch_rows]


def _places_of(v: int, num_samples: int, plan: BatchPlan) -> npt.NDArray[np.int64]:
    """Return the row of an epoch's microbatches for each of a virtual rank's samples, in their order (n,)."""
    numbers = np.arange(num_samples)
    if plan.exact_batch_size is None:
        return numbers
    # Sample n of virtual rank v is sample n V + v of all samples; B consecutive ones of these make a step.
    num_virtual_ranks, size = plan.num_virtual_ranks, plan.exact_batch_size
    steps = (numbers * num_virtual_ranks + v) // size
    before = np.maximum(0, -((v - steps * size) // num_virtual_ranks))
    return steps * plan.microbatch_rows + numbers - before


def split_microbatch(whole: Microbatch, num_parts: int) -> list[Microbatch]:
    """Return the microbatch in `num_parts` parts of equal shape; `num_parts` must divide its number of rows."""
    if num_parts == 1:
        return [whole]
    rows = len(whole.inputs) // num_parts
    parts = [slice(first, first + rows) for first in range(0, len(whole.inputs), rows)]
    return [Microbatch(whole.virtual_rank, whole.inputs[at], whole.targets[at], whole.weights[at]) for at in parts]


def members_of(virtual_rank: int, num_virtual_ranks: int, num_samples: int) -> npt.NDArray[np.int64]:
    """Return the indices of the samples that virtual rank v always owns: v, v + V, v + 2V, ...; none if v >= V."""
    stop = num_samples if virtual_rank < num_virtual_ranks else virtual_rank
    return np.arange(virtual_rank, stop, num_virtual_ranks)
