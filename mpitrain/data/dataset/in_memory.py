"""The samples of this rank's virtual ranks, held in memory.

V  virtual ranks      F  input features      O  targets
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mpitrain.comm.ranks import Ranks
from mpitrain.comm.reduction import FixedTreeReducer
from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.data.dataset.batches import (
    BatchPlan,
    EvaluationSource,
    SliceSource,
    VirtualRankBatches,
    VirtualRankSamples,
)
from mpitrain.data.dataset.dataset import DataSummary, Normalization, check_some_are_left, normalization_of
from mpitrain.data.dataset.exchange import offset_of, send_to_virtual_ranks
from mpitrain.data.dataset.split import SplitRule, split_notices
from mpitrain.data.moments import allreduce_moments, moments_of_samples
from mpitrain.data.samples import Samples, is_measured, missing_of, valid_rows


@dataclass(frozen=True)
class InMemoryDataset:
    """`Dataset` of samples in memory: those of the owned virtual ranks."""

    training: Sequence[VirtualRankSamples]
    validation: Sequence[VirtualRankSamples]
    summary: DataSummary
    virtual_ranks: VirtualRanks
    notices: tuple[str, ...] = ()

    def microbatches(self, plan: BatchPlan, seed: int, shuffle: bool) -> list[SliceSource]:
        """See `Dataset.microbatches`."""
        return [VirtualRankBatches(own, plan, seed, shuffle) for own in self.training]

    def evaluation(self, held_out: bool = True) -> list[EvaluationSource]:
        """See `Dataset.evaluation`."""
        return list(self.validation if held_out else self.training)

    def mean_predictor_mse(
        self, output_std: torch.Tensor, ranks: Ranks, target_weights: Sequence[float] = ()
    ) -> float | None:
        """See `Dataset.mean_predictor_mse`. Collective."""
        mean = torch.from_numpy(self.summary.target_mean).to(ranks.device)
        sources = self.evaluation(held_out=self.summary.holds_out)
        counts = mean.new_tensor(target_weights or [1.0] * len(mean))
        sums = torch.stack([_squared_errors(source, mean, output_std.double(), counts) for source in sources])
        total, weight = FixedTreeReducer(ranks.tensors, self.virtual_ranks).reduce(sums).tolist()
        return float(total / weight) if weight else None


def share_out(
    samples: Samples, ranks: Ranks, virtual_ranks: VirtualRanks, rule: SplitRule, dtype: torch.dtype
) -> InMemoryDataset:
    """Drop unusable samples, split off the validation set, and send each sample to its owner. Collective.

    `samples` are this rank's part of the selection: the ranks' parts, laid end to end, are the selection in its order.
    Raises DataError, on all ranks, when nothing is left to train on.
    """
    kept = samples.take(np.flatnonzero(valid_rows(samples)))
    selected, usable = offset_of(len(samples), ranks), offset_of(len(kept), ranks)
    is_validation = rule.flags(kept.grid_index, usable.first)
    training, validation = (
        send_to_virtual_ranks(kept.take(np.flatnonzero(chosen)), ranks, virtual_ranks)
        for chosen in (~is_validation, is_validation)
    )
    num_training, num_validation = (
        offset_of(sum(map(len, owned.values())), ranks).total for owned in (training, validation)
    )
    check_some_are_left(selected.total, selected.total - usable.total, num_training)
    num_missing = np.sum(ranks.gather_object(missing_of(samples)), axis=0)
    moments = allreduce_moments(
        [moments_of_samples(training[v]) for v in virtual_ranks.owned], ranks.cpu, virtual_ranks
    )
    normalization = normalization_of(moments, samples.inputs.shape[1], ranks.device, dtype)
    return InMemoryDataset(
        _to_tensors(training, normalization, ranks, dtype),
        _to_tensors(validation, normalization, ranks, dtype),
        DataSummary(
            num_training, num_validation, selected.total - usable.total, normalization, moments, samples.input_names,
            samples.target_names, tuple(num_missing.tolist()),
        ),
        virtual_ranks,
        split_notices(rule, num_validation),
    )  # fmt: skip


def _to_tensors(
    owned: Mapping[int, Samples], normalization: Normalization, ranks: Ranks, dtype: torch.dtype
) -> list[VirtualRankSamples]:
    """Return the owned virtual ranks' samples, one after the other in one memory."""
    parts = [padded_tensors(samples, normalization.mean, ranks.device, dtype) for samples in owned.values()]
    lengths = [len(samples) + 1 for samples in owned.values()]
    inputs, targets, weights = (torch.cat(column).split(lengths) for column in zip(*parts, strict=True))
    return [
        VirtualRankSamples(v, *tensors, samples.grid_index)
        for (v, samples), tensors in zip(owned.items(), zip(inputs, targets, weights, strict=True), strict=True)
    ]


def padded_tensors(
    samples: Samples, input_mean: torch.Tensor, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs, targets and weights as tensors with one row of zeros after them.

    What a field has not measured becomes the mean of its input (F,), which normalises to 0, and a target of no weight.
    """
    inputs, targets = (_padded(torch.from_numpy(array), device, dtype) for array in (samples.inputs, samples.targets))
    if samples.inputs.ndim == 2:
        weights = targets.new_ones((len(targets), 1))
        if samples.weights is not None:
            weights[:-1] = torch.from_numpy(samples.weights)
        weights[-1] = 0
        return inputs, targets, weights
    has_target, has_input = (torch.from_numpy(is_measured(array)) for array in (samples.targets, samples.inputs))
    weights = has_target if samples.weights is None else has_target * torch.from_numpy(samples.weights)
    mean = input_mean.to(device).view(-1, *[1] * (inputs.ndim - 2))
    inputs[:-1] = torch.where(has_input.to(device), inputs[:-1], mean)
    targets[:-1] = torch.where(has_target.to(device), targets[:-1], 0.0)  # 0 times a NaN would be one
    return inputs, targets, _padded(weights, device, dtype)


def _padded(rows: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    padded = torch.zeros((len(rows) + 1, *rows.shape[1:]), dtype=dtype, device=device)
    padded[:-1] = rows
    return padded


def _squared_errors(
    source: EvaluationSource, mean: torch.Tensor, std: torch.Tensor, target_weights: torch.Tensor
) -> torch.Tensor:
    """Return the weighted sum of squared errors of `mean` (O,), and the sum of weights (2,), float64."""
    sums = torch.zeros(2, dtype=torch.float64, device=mean.device)
    for block in source.blocks():
        axes = [-1, *[1] * (block.targets.ndim - 2)]
        errors = (block.targets.double() - mean.view(axes)) / (std.view(axes) if std.ndim else std)
        weights = block.weights.double() * target_weights.view(axes)
        weights = weights.expand_as(errors)
        sums += torch.stack([(weights * errors**2).sum(), weights.sum()])
    return sums
