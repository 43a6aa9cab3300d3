"""What a run's page tells of the trained network: skill, points to plot, derivatives, where the errors are.

b  samples of a block   O  targets   F  inputs   V  virtual ranks
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Ranks, host_array
from mpitrain.data import DataSummary, EvaluationSource, Microbatch
from mpitrain.inference.quality.answers import Answers, answers_of
from mpitrain.inference.quality.skill import check_finite
from mpitrain.observe import ErrorSums, Findings, PlaceErrors, RunSummary, Skill, TargetSkill
from mpitrain.observe.page.derivatives import Derivatives, DerivativeSums
from mpitrain.runs.prepared_run import PreparedRun

_POINTS_PLOTTED, _SAMPLES_DERIVED, _MOST_DERIVATIVES = 5000, 512, 2000
_MOST_PLACED = 4_000_000  # samples of a virtual rank whose errors are told place by place
# The RMSE of so many independent errors is known to about 13 %: 1 / sqrt(2 N).
_FEWEST_TO_JUDGE = 30
_HOW_TO_JUDGE = "; too few to judge by: mpitrain ensemble with ensemble.folds=5 holds out each sample once"
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Part:
    """What one virtual rank's samples give; the same on whatever rank they are."""

    virtual_rank: int
    sums: Sequence[ErrorSums]
    truth: Array
    prediction: Array
    derivatives: DerivativeSums | None
    places: PlaceErrors | None = None


def gather_findings(ranks: Ranks, prepared: PreparedRun) -> Findings:
    """Return what the ranks' samples tell, on the root; elsewhere nothing. Collective.

    Of held-out samples where there are any, all of them unless they are streamed; else of some that it was trained on.
    The numbers are the same on any number of ranks. Raises TrainingError, on all ranks, for predictions that are not
    finite.
    """
    is_whole = prepared.dataset.summary.holds_out and not prepared.config.data.streaming
    own = ranks.on_all_ranks(lambda: _parts(prepared, is_whole))
    gathered = ranks.gather_object(own)
    parts = sorted((part for one in gathered or () for part in one), key=lambda part: part.virtual_rank)
    if not ranks.is_root or not parts:
        return Findings()
    names, units = prepared.dataset.summary.target_names, prepared.units
    sums = [ErrorSums() for _ in names]
    for part in parts:
        for total, more in zip(sums, part.sums, strict=True):
            total.merge(more)
    return Findings(
        skills=[Skill(name, units.get(name, ""), one) for name, one in zip(names, sums, strict=True)],
        of_samples=words_of_samples(prepared.dataset.summary, is_whole, sums[0].count),
        truth=np.concatenate([part.truth for part in parts]),
        prediction=np.concatenate([part.prediction for part in parts]),
        derivatives=_derivatives(prepared, [part.derivatives for part in parts]),
        places=_together([part.places for part in parts]),
    )


def _together(parts: Sequence[PlaceErrors | None]) -> PlaceErrors | None:
    known = [part for part in parts if part is not None]
    return PlaceErrors.together(known) if known else None


def skill_of(found: Findings, summary: RunSummary) -> RunSummary:
    """Return the summary with the errors of each target, where there are any."""
    skills = [
        TargetSkill(one.name, one.units, one.sums.bias, one.sums.rmse, one.sums.r2)
        for one in found.skills
        if one.sums.count
    ]
    samples = found.of_samples[:1].lower() + found.of_samples[1:].rstrip(".")
    return replace(summary, skills=tuple(skills), skill_samples=samples) if skills else summary


def _parts(prepared: PreparedRun, is_whole: bool) -> list[_Part]:
    answers = answers_of(prepared.model, prepared.dataset.summary.num_validation_samples or 0)
    found = [_part_of(prepared, answers, source, is_whole) for source in prepared.preview]
    return [part for part in found if part is not None]


def _part_of(prepared: PreparedRun, network: Answers, source: EvaluationSource, is_whole: bool) -> _Part | None:
    num_parts = prepared.layout.virtual_ranks.num_virtual_ranks
    sums: list[ErrorSums] = []
    first: tuple[Microbatch, Array, Array] | None = None
    errors: list[Array] = []
    for block in itertools.islice(source.blocks(), None if is_whole else 1):
        targets, answers = _evaluate(network, block)
        if first is None:
            sums = [ErrorSums() for _ in range(targets.shape[1])]
            first = block, targets[:, 0][np.isfinite(targets[:, 0])], answers[:, 0][np.isfinite(targets[:, 0])]
        for number, one in enumerate(sums):
            one.add(targets[:, number], answers[:, number] - targets[:, number])
        errors.append(answers[:, 0] - targets[:, 0])
    if first is None:
        return None
    block, truth, prediction = first
    check_finite(prediction)
    chosen = _spread(len(truth), -(-_POINTS_PLOTTED // num_parts))
    derivatives = _derivatives_of(network, block, -(-_SAMPLES_DERIVED // num_parts))
    places = _places_of(source, np.concatenate(errors)) if is_whole else None
    return _Part(block.virtual_rank, sums, truth[chosen], prediction[chosen], derivatives, places)


def _places_of(source: EvaluationSource, errors: Array) -> PlaceErrors | None:
    """Return the errors (b,) or (b, J, I) of all samples of a source by their positions; None of too many."""
    index = getattr(source, "grid_index", None)
    if index is None or len(index) > _MOST_PLACED:
        return None
    inside = index if errors.ndim == 1 else np.tile(np.arange(errors[0].size), len(errors))
    return PlaceErrors.of(inside, errors.reshape(-1))


def _spread(count: int, most: int) -> npt.NDArray[np.int64]:
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def _evaluate(network: Answers, block: Microbatch) -> tuple[Array, Array]:
    """Return targets and answers (b, O, ...) in float64; targets are NaN where they do not count."""
    answers = network.physical(block.inputs).astype(np.float64)
    targets = network.restore(host_array(block.targets)).astype(np.float64)
    counts = np.broadcast_to(host_array(block.weights) > 0, targets.shape)
    return np.where(counts, targets, np.nan), answers


def _derivatives_of(network: Answers, block: Microbatch, most: int) -> DerivativeSums | None:
    """Return the derivatives at some points; None where they would cost much or cannot be had."""
    num_derivatives = block.targets.shape[1] * block.inputs.shape[1]
    if block.inputs.ndim != 2 or num_derivatives > _MOST_DERIVATIVES:
        return None
    rows = np.flatnonzero((host_array(block.weights) > 0).any(axis=1))
    if len(rows) == 0:
        return None
    inputs = host_array(block.inputs)[rows[_spread(len(rows), most)]]
    try:
        jacobian = network.jacobian(inputs)
    except RuntimeError:  # a network of the user's own need not have any
        return None
    return DerivativeSums.of(jacobian.astype(np.float64))


def _derivatives(prepared: PreparedRun, parts: Sequence[DerivativeSums | None]) -> Derivatives | None:
    known = [part for part in parts if part is not None]
    if not known:
        return None
    for part in known[1:]:
        known[0].merge(part)
    summary, units = prepared.dataset.summary, prepared.units
    of_targets, of_inputs = (
        [units.get(name, "") for name in names] for names in (summary.target_names, summary.input_names)
    )
    return Derivatives(known[0], summary.target_names, summary.input_names, of_targets, of_inputs)


def words_of_samples(summary: DataSummary, is_whole: bool, count: int) -> str:
    """Return which samples a skill over `count` values is of; of few it says that they are no measure."""
    if not summary.holds_out:
        return f"Over samples that it was trained on, for none is held out: {count:,} values of each target."
    number = summary.num_validation_samples or 0
    values = f"{count:,} value{'' if count == 1 else 's'} of each target"
    fields = f"{number:,} field{'' if number == 1 else 's'}, " if is_whole and count > number else ""
    few = _HOW_TO_JUDGE if number < _FEWEST_TO_JUDGE else ""
    return f"Over {'all' if is_whole else 'the first'} held-out samples, {fields}{values}{few}."
