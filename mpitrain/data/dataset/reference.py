"""The data set of `reference` semantics: the C++ program's partition and its one-pass statistics.

P  real ranks      n  samples of a rank, the same on all      F  input features
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mpitrain.comm import Ranks
from mpitrain.data.dataset.batches import BatchPlan, EvaluationSource, Microbatch, MicrobatchSource
from mpitrain.data.dataset.dataset import Convert, DataSummary, Normalization
from mpitrain.data.dataset.exchange import offset_of, send_to_ranks, total_left_out
from mpitrain.data.samples import Samples, first_invalid_feature
from mpitrain.errors import DataError

# The C++ program's own limit of samples a rank.
MOST_SAMPLES_PER_RANK = 400_000
Moments = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class ReferenceDataset:
    """`Dataset` of `reference` semantics: this rank's n samples as one microbatch; `targets` (n, 1)."""

    inputs: torch.Tensor
    targets: torch.Tensor
    grid_index: npt.NDArray[np.int64]
    summary: DataSummary
    virtual_rank: int
    notices: tuple[str, ...] = ()

    @property
    def training(self) -> list[ReferenceDataset]:
        """This rank's samples, in the form of `InMemoryDataset.training`."""
        return [self]

    def microbatches(self, plan: BatchPlan, seed: int, shuffle: bool) -> list[MicrobatchSource]:
        """See `Dataset.microbatches`: all samples, always in the same order."""
        return [self]

    def evaluation(self, held_out: bool = True) -> list[EvaluationSource]:
        """See `Dataset.evaluation`: nothing is held out, so these are the samples that are trained on."""
        return [self]

    def converted(self, convert: Convert) -> ReferenceDataset:
        """See `Dataset.converted`: nothing is converted, as the samples are already tensors on the CPU, as needed."""
        return self

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """See `MicrobatchSource.start_epoch`: every epoch is the same."""

    def microbatch(self, step: int) -> Microbatch:
        """See `MicrobatchSource.microbatch`: all samples."""
        return Microbatch(self.virtual_rank, self.inputs, self.targets, torch.ones_like(self.targets))

    def blocks(self) -> Iterator[Microbatch]:
        """See `EvaluationSource.blocks`: all samples as one block."""
        yield self.microbatch(0)


def share_out_as_reference(samples: Samples, ranks: Ranks, dtype: torch.dtype) -> ReferenceDataset:
    """Partition by grid index, truncate to the smallest rank's count, and compute one-pass statistics. Collective.

    `samples` are this rank's part of the selection (see `read_own_chunks`). Raises DataError, on all ranks,
    for a NaN or fill value, a rank without samples, or a feature whose standard deviation is 0 or not a number.
    """
    _refuse_invalid(samples, ranks)
    num_selected, left_out = offset_of(len(samples), ranks).total, total_left_out(ranks, samples)
    own = truncate_to_smallest(partition_round_robin(samples, ranks), num_selected, ranks)
    inputs, targets = (torch.from_numpy(array).to(dtype) for array in (own.inputs, own.targets))
    mean, std = one_pass_moments(inputs, ranks)
    _refuse_degenerate(std, samples.input_names)
    num_kept = offset_of(len(own), ranks).total
    # The C++ program normalises its inputs only.
    unchanged = torch.zeros(1, dtype=dtype), torch.ones(1, dtype=dtype)
    summary = DataSummary(
        num_kept, None, num_selected - num_kept, Normalization(mean, std, *unchanged), None, samples.input_names,
        samples.target_names, largest_share=len(own), left_out=left_out,
    )  # fmt: skip
    return ReferenceDataset(inputs, targets, own.grid_index, summary, ranks.rank)


def partition_round_robin(samples: Samples, ranks: Ranks) -> Samples:
    """Return this rank's samples in grid order: at most 400000, at grid points rank, rank + P, ... Collective."""
    destinations = samples.grid_index % ranks.world_size
    own, _ = send_to_ranks(samples, destinations, samples.grid_index, ranks)
    return own.take(np.arange(min(len(own), MOST_SAMPLES_PER_RANK)))


def truncate_to_smallest(own: Samples, num_selected: int, ranks: Ranks) -> Samples:
    """Return the first n of `own`; n is the smallest count of all ranks. Collective. Raises DataError if n is 0."""
    smallest = torch.tensor([len(own)])
    ranks.cpu.all_reduce(smallest, "min")
    n = int(smallest[0])
    if n == 0:
        raise DataError(
            f"semantics=reference: one of {ranks.world_size} ranks has none of the {num_selected} samples; "
            f"use fewer ranks, or semantics=standard"
        )
    return own.take(np.arange(n))


def one_pass_moments(inputs: torch.Tensor, ranks: Ranks) -> Moments:
    """Return mean and std (F,) of all ranks' rows (n, F) in the C++ program's order of operations. Collective."""
    total = float(len(inputs) * ranks.world_size)
    sums, squares = torch.sum(inputs, dim=0), torch.sum(torch.pow(inputs, 2), dim=0)
    ranks.all_reduce(sums)
    ranks.all_reduce(squares)
    mean = sums / total
    return mean, torch.sqrt(squares / total - torch.pow(mean, 2))


def _refuse_invalid(samples: Samples, ranks: Ranks) -> None:
    names = (*samples.input_names, *samples.target_names)
    found = set(ranks.gather_object(first_invalid_feature(samples)))
    bad = next((name for name in names if name in found), None)
    if bad is not None:
        raise DataError(
            f"feature '{bad}' holds a NaN or a fill value, which semantics=reference would train on; "
            f"use semantics=standard, which drops such samples"
        )


def _refuse_degenerate(std: torch.Tensor, names: tuple[str, ...]) -> None:
    for name, value in zip(names, std.tolist(), strict=True):
        if not value > 0:  # also NaN: a one-pass variance may come out negative
            raise DataError(
                f"feature '{name}' has standard deviation {value} in float32 one-pass statistics "
                f"(semantics=reference): "
                "it cannot be normalised; use semantics=standard"
            )
