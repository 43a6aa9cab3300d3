"""The samples of this rank's virtual ranks, held in memory.

V  virtual ranks      F  input features      O  targets
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Ranks, VirtualRanks
from mpitrain.data.dataset.batches import (
    BatchPlan,
    EvaluationSource,
    MicrobatchSource,
    VirtualRankBatches,
    VirtualRankSamples,
)
from mpitrain.data.dataset.dataset import (
    Convert,
    DataSummary,
    LayoutOfSamples,
    Normalization,
    check_some_are_left,
    normalization_of,
    settled,
)
from mpitrain.data.dataset.exchange import offset_of, send_to_virtual_ranks, total_left_out
from mpitrain.data.dataset.split_rule import TRAINING, VALIDATION, SplitRule
from mpitrain.data.dataset.step_microbatches import converted_samples
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

    def microbatches(self, plan: BatchPlan, seed: int, shuffle: bool) -> list[MicrobatchSource]:
        """See `Dataset.microbatches`."""
        return [VirtualRankBatches(own, plan, seed, shuffle) for own in self.training]

    def evaluation(self, held_out: bool = True) -> list[EvaluationSource]:
        """See `Dataset.evaluation`."""
        return list(self.validation if held_out else self.training)

    def converted(self, convert: Convert) -> InMemoryDataset:
        """See `Dataset.converted`."""
        training, validation = (converted_samples(own, convert) for own in (self.training, self.validation))
        return replace(self, training=training, validation=validation)


def distribute(
    samples: Samples, ranks: Ranks, layout: LayoutOfSamples, rule: SplitRule, dtype: npt.DTypeLike
) -> InMemoryDataset:
    """Drop unusable samples, separate the held-out ones, and send each sample to its owner. Collective.

    `samples` are this rank's part of the selection: the parts of all ranks, in rank order, are the selection in its
    order. Raises DataError, on all ranks, if nothing is left to train on.
    """
    kept = samples.take(np.flatnonzero(valid_rows(samples)))
    selected, usable = offset_of(len(samples), ranks), offset_of(len(kept), ranks)
    roles = rule.roles(kept.grid_index, usable.first)
    num_training, num_validation = (
        offset_of(int((roles == role).sum()), ranks).total for role in (TRAINING, VALIDATION)
    )
    check_some_are_left(selected.total, selected.total - usable.total, num_training)
    virtual_ranks = settled(layout, usable.total, num_training)
    training, validation = (
        send_to_virtual_ranks(kept.take(np.flatnonzero(roles == role)), ranks, virtual_ranks)
        for role in (TRAINING, VALIDATION)
    )
    num_missing = np.sum(ranks.gather_object(missing_of(samples)), axis=0)
    moments = allreduce_moments(
        [moments_of_samples(training[v]) for v in virtual_ranks.owned], ranks.cpu, virtual_ranks
    )
    normalization = normalization_of(moments, samples.inputs.shape[1], dtype)
    summary = DataSummary(
        num_training, num_validation, selected.total - usable.total, normalization, moments, samples.input_names,
        samples.target_names, tuple(num_missing.tolist()), split=rule,
        num_test_samples=usable.total - num_training - num_validation, left_out=total_left_out(ranks, samples),
    )  # fmt: skip
    own, held_out = (_padded_samples(owned, normalization, dtype) for owned in (training, validation))
    return InMemoryDataset(own, held_out, summary, virtual_ranks, summary.split_notices)


def _padded_samples(
    owned: Mapping[int, Samples], normalization: Normalization, dtype: npt.DTypeLike
) -> list[VirtualRankSamples]:
    """Return the owned virtual ranks' samples, contiguous in memory."""
    parts = [padded_columns(samples, normalization.mean, dtype) for samples in owned.values()]
    ends = np.cumsum([len(samples) + 1 for samples in owned.values()])[:-1]
    inputs, targets, weights = (np.split(np.concatenate(column), ends) for column in zip(*parts, strict=True))
    return [
        VirtualRankSamples(v, *columns, samples.grid_index)
        for (v, samples), columns in zip(owned.items(), zip(inputs, targets, weights, strict=True), strict=True)
    ]


Column = npt.NDArray[Any]


def padded_columns(samples: Samples, input_mean: Column, dtype: npt.DTypeLike) -> tuple[Column, Column, Column]:
    """Return inputs, targets and weights, each followed by one row of zeros.

    In fields, missing inputs become `input_mean` (F,), which normalises to 0, and missing targets get weight 0.
    """
    inputs, targets = (padded(array, len(array) + 1, dtype) for array in (samples.inputs, samples.targets))
    if samples.inputs.ndim == 2:
        weights = np.ones((len(targets), 1), dtype)
        if samples.weights is not None:
            weights[:-1] = samples.weights
        weights[-1] = 0
        return inputs, targets, weights
    has_target, has_input = is_measured(samples.targets), is_measured(samples.inputs)
    counts = has_target if samples.weights is None else has_target * samples.weights
    mean = input_mean.reshape(-1, *[1] * (inputs.ndim - 2))
    inputs[:-1] = np.where(has_input, inputs[:-1], mean)
    targets[:-1] = np.where(has_target, targets[:-1], 0.0)  # a weight of 0 times NaN would be NaN
    return inputs, targets, padded(counts, len(counts) + 1, dtype)


def padded(rows: Column, num_rows: int, dtype: npt.DTypeLike) -> Column:
    """Return the rows followed by zeros, `num_rows` rows in all."""
    found = np.zeros((num_rows, *rows.shape[1:]), dtype=dtype)
    found[: len(rows)] = rows
    return found
