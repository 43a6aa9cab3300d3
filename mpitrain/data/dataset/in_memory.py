"""What `standard` semantics trains on, held in memory: the samples of this rank's virtual ranks.

V  virtual ranks      F  input features      O  targets
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mpitrain.comm.session import Session
from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.data.dataset.batches import BatchPlan, EvaluationSource, SampleBlocks, SliceSource, VirtualRankBatches
from mpitrain.data.dataset.ownership import run_of, send_to_owners
from mpitrain.data.dataset.split import validation_flags
from mpitrain.data.dataset.virtual_rank_samples import VirtualRankSamples
from mpitrain.data.moments import Moments, allreduce_moments
from mpitrain.data.sample_moments import moments_of_samples
from mpitrain.data.samples import Samples, is_measured, missing_of, valid_rows
from mpitrain.errors import DataError


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of each input (F,) and target (O,), dtype of the model, the same on all ranks."""

    mean: torch.Tensor
    std: torch.Tensor
    output_mean: torch.Tensor
    output_std: torch.Tensor


@dataclass(frozen=True)
class DataSummary:
    """Numbers about all ranks' samples, the same on all ranks.

    `num_missing` counts for each input and target the selected values that are no measurement. `largest_share` is the
    most samples that a virtual rank trains on, None where they are shared out evenly.
    """

    num_training_samples: int
    num_validation_samples: int
    num_dropped_samples: int
    normalization: Normalization
    moments: Moments
    input_names: tuple[str, ...]
    target_names: tuple[str, ...]
    num_missing: tuple[int, ...] = ()
    largest_share: int | None = None

    @property
    def target_mean(self) -> npt.NDArray[np.float64]:
        """Mean of each target over the training samples (O,)."""
        return self.moments.mean[len(self.input_names) :]

    @property
    def constant_features(self) -> tuple[str, ...]:
        """Names of the inputs and targets that have one value only."""
        names = (*self.input_names, *self.target_names)
        return tuple(name for name, constant in zip(names, is_constant(self.moments), strict=True) if constant)


@dataclass(frozen=True)
class TrainingData:
    """What `standard` semantics trains on: the owned virtual ranks' samples, and numbers about all ranks' samples."""

    training: Sequence[VirtualRankSamples]
    validation: Sequence[VirtualRankSamples]
    summary: DataSummary

    def slice_sources(self, plan: BatchPlan, seed: int, shuffle: bool) -> list[SliceSource]:
        """Return where each owned virtual rank's slices come from."""
        return [VirtualRankBatches(own, plan, seed, shuffle) for own in self.training]

    def evaluation_sources(self, held_out: bool = True) -> list[EvaluationSource]:
        """Return each owned virtual rank's held-out samples, or those that it trains on."""
        return [SampleBlocks(own) for own in (self.validation if held_out else self.training)]


def share_out(
    samples: Samples, session: Session, virtual_ranks: VirtualRanks, validation_split: float, seed: int,
    dtype: torch.dtype,
) -> TrainingData:  # fmt: skip
    """Drop unusable samples, split off the validation set, and send each sample to its owner. Collective.

    `samples` is this rank's run of the selection: the ranks' runs, laid end to end, are the whole selection in its
    order. Raises DataError, on all ranks, when nothing is left to train on.
    """
    kept = samples.take(np.flatnonzero(valid_rows(samples)))
    selected, run = run_of(len(samples), session), run_of(len(kept), session)
    is_validation = validation_flags(run.first, len(kept), validation_split, seed)
    training, validation = (
        send_to_owners(kept.take(np.flatnonzero(chosen)), session, virtual_ranks)
        for chosen in (~is_validation, is_validation)
    )
    num_training, num_validation = (
        run_of(sum(map(len, owned.values())), session).total for owned in (training, validation)
    )
    if num_training == 0:
        raise DataError(
            f"{selected.total} samples selected, {selected.total - run.total} dropped as NaN or fill value: "
            f"none is left to train on"
        )
    num_missing = np.sum(session.gather_object(missing_of(samples)), axis=0)
    moments = allreduce_moments(
        [moments_of_samples(training[v]) for v in virtual_ranks.owned], session.control, virtual_ranks
    )
    normalization = normalization_of(moments, samples.inputs.shape[1], session.device, dtype)
    return TrainingData(
        _to_tensors(training, normalization, session, dtype),
        _to_tensors(validation, normalization, session, dtype),
        DataSummary(
            num_training, num_validation, selected.total - run.total, normalization, moments, samples.input_names,
            samples.target_names, tuple(num_missing.tolist()),
        ),
    )  # fmt: skip


def is_constant(moments: Moments) -> npt.NDArray[np.bool_]:
    """Tell which features (C,) have one value only.

    The range tells it exactly; the standard deviation may come out as rounding noise.
    """
    constant: npt.NDArray[np.bool_] = moments.minimum >= moments.maximum
    return constant


def normalization_of(moments: Moments, num_inputs: int, device: torch.device, dtype: torch.dtype) -> Normalization:
    """Return what normalises `num_inputs` inputs and the targets behind them.

    A constant feature carries nothing: it is centred, and dividing by 1 keeps it finite.
    """
    std = np.where(is_constant(moments), 1.0, moments.std)
    parts = (moments.mean[:num_inputs], std[:num_inputs], moments.mean[num_inputs:], std[num_inputs:])
    return Normalization(*(torch.from_numpy(part).to(device, dtype) for part in parts))


def _to_tensors(
    owned: Mapping[int, Samples], normalization: Normalization, session: Session, dtype: torch.dtype
) -> list[VirtualRankSamples]:
    """Return the owned virtual ranks' samples, one behind the other in one memory."""
    parts = [padded_tensors(samples, normalization, session.device, dtype) for samples in owned.values()]
    lengths = [len(samples) + 1 for samples in owned.values()]
    inputs, targets, weights = (torch.cat(column).split(lengths) for column in zip(*parts, strict=True))
    return [
        VirtualRankSamples(v, *tensors, samples.grid_index)
        for (v, samples), tensors in zip(owned.items(), zip(inputs, targets, weights, strict=True), strict=True)
    ]


def padded_tensors(
    samples: Samples, normalization: Normalization, device: torch.device, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return inputs, targets and weights as tensors with one row of zeros behind them.

    What a field has not measured becomes the mean of its input, which normalises to 0, and a target of no weight.
    """
    inputs, targets = (_padded(torch.from_numpy(array), device, dtype) for array in (samples.inputs, samples.targets))
    if samples.inputs.ndim == 2:
        weights = targets.new_ones((len(targets), 1))
        weights[-1] = 0
        return inputs, targets, weights
    has_target, has_input = (torch.from_numpy(is_measured(array)) for array in (samples.targets, samples.inputs))
    weights = has_target if samples.weights is None else has_target * torch.from_numpy(samples.weights)
    mean = normalization.mean.view(-1, *[1] * (inputs.ndim - 2))
    inputs[:-1] = torch.where(has_input.to(device), inputs[:-1], mean)
    targets[:-1] = torch.where(has_target.to(device), targets[:-1], 0.0)  # 0 times a NaN would be one
    return inputs, targets, _padded(weights, device, dtype)


def _padded(rows: torch.Tensor, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    padded = torch.zeros((len(rows) + 1, *rows.shape[1:]), dtype=dtype, device=device)
    padded[:-1] = rows
    return padded
