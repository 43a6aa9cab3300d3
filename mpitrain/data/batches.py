"""Which samples make global batch k of an epoch: every virtual rank's k-th slice of its own shuffled samples.

B  global batch size      V  virtual ranks      b = B / V  rows a slice      F  input features
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from mpitrain.data.keyed_random import keyed_permutation

_SHUFFLE_STREAM = 2


@dataclass(frozen=True)
class Slice:
    """One virtual rank's part of a batch: `inputs` (b, F), `targets` (b,), `weights` (b,): 1 a sample, 0 padding."""

    virtual_rank: int
    inputs: torch.Tensor
    targets: torch.Tensor
    weights: torch.Tensor


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


def plan_batches(num_samples: int, global_batch_size: int | str, num_virtual_ranks: int) -> BatchPlan:
    """Round B up to a multiple of V and count the steps of an epoch; "full" makes one step of all samples."""
    largest_share = -(-num_samples // num_virtual_ranks)
    rows = largest_share if global_batch_size == "full" else -(-int(global_batch_size) // num_virtual_ranks)
    rows = min(rows, largest_share)
    return BatchPlan(num_samples, num_virtual_ranks, rows, -(-largest_share // rows))


class VirtualRankBatches:
    """The samples of one virtual rank, cut into slices of equal shape, reshuffled each epoch from (seed, epoch, v)."""

    def __init__(
        self, virtual_rank: int, inputs: torch.Tensor, targets: torch.Tensor, plan: BatchPlan, seed: int, shuffle: bool
    ) -> None:
        self.virtual_rank = virtual_rank
        self._plan = plan
        self._seed = seed
        self._shuffle = shuffle
        self.num_samples = len(targets)
        padding = plan.slice_rows * plan.steps_per_epoch - len(targets)
        # Padding rows lie behind the samples and weigh nothing; zeros keep their products finite.
        self._inputs = torch.cat([inputs, inputs.new_zeros((padding, inputs.shape[1]))])
        self._targets = torch.cat([targets, targets.new_zeros(padding)])
        self._weights = torch.cat([torch.ones_like(targets), targets.new_zeros(padding)])
        self._order = torch.arange(len(self._targets))

    def start_epoch(self, epoch: int) -> None:
        """Shuffle for `epoch` (from 0)."""
        if self._shuffle:
            keys = (self._seed, _SHUFFLE_STREAM, epoch, self.virtual_rank)
            order = keyed_permutation(keys, self.num_samples)
            tail = np.arange(self.num_samples, len(self._targets))
            self._order = torch.from_numpy(np.concatenate([order, tail]))

    def rows(self, step: int) -> torch.Tensor:
        """Return which of its own samples make slice number `step` (b,); those from the sample count on are padding."""
        return self._order[step * self._plan.slice_rows : (step + 1) * self._plan.slice_rows]

    def slice(self, step: int) -> Slice:
        """Return slice number `step` of the epoch."""
        rows = self.rows(step)
        return Slice(self.virtual_rank, self._inputs[rows], self._targets[rows], self._weights[rows])
