"""What a run's page tells of the trained network: skill, points to plot, derivatives, where the errors are.

b  samples of a block   O  targets   F  inputs   V  virtual ranks
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mpitrain.comm.ranks import Ranks
from mpitrain.data.dataset.batches import EvaluationSource, Slice
from mpitrain.inference.page.findings import try_error_map
from mpitrain.inference.run_weights import open_data
from mpitrain.inference.skill import check_finite
from mpitrain.models.jacobian import input_jacobian
from mpitrain.models.output_transforms import answering_physically, physical_targets
from mpitrain.observe.page.derivatives import Derivatives, DerivativeSums
from mpitrain.observe.page.findings import Findings
from mpitrain.observe.page.skill import ErrorSums, Skill
from mpitrain.observe.page.words import describe_settings
from mpitrain.observe.report import write_report
from mpitrain.observe.summary import RunSummary
from mpitrain.runs.prepared_run import PreparedRun

_POINTS_PLOTTED, _SAMPLES_DERIVED, _MOST_DERIVATIVES = 5000, 512, 2000
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Part:
    """What one virtual rank's samples give; the same on whatever rank they are."""

    virtual_rank: int
    sums: Sequence[ErrorSums]
    truth: Array
    prediction: Array
    derivatives: DerivativeSums | None


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
        of_samples=_words(prepared, is_whole, sums[0].count),
        truth=np.concatenate([part.truth for part in parts]),
        prediction=np.concatenate([part.prediction for part in parts]),
        derivatives=_derivatives(prepared, [part.derivatives for part in parts]),
    )


def write_page(
    run_folder: Path, summary: RunSummary, found: Findings, prepared: PreparedRun, files: Sequence[str]
) -> None:  # fmt: skip
    """Write `report.html`, with a map of the errors where the data has a grid. For the root. Raises OutputError."""
    names = prepared.dataset.summary
    words = describe_settings(prepared.config, names.input_names, names.target_names, asdict(summary))
    source, picture = open_data(prepared.config, list(files)), None
    gc.disable()  # importing matplotlib makes much that stays: looking through it is an eighth of the page's time
    try:
        if source is not None:  # else it has been moved since: the page does without
            picture = try_error_map(prepared.model, source, prepared.units.get(source.target_names[0], ""))
        write_report(run_folder, summary, replace(found, error_map=picture, settings=words))
    finally:
        gc.enable()


def _parts(prepared: PreparedRun, is_whole: bool) -> list[_Part]:
    found = [_part_of(prepared, source, is_whole) for source in prepared.preview]
    return [part for part in found if part is not None]


def _part_of(prepared: PreparedRun, source: EvaluationSource, is_whole: bool) -> _Part | None:
    num_parts = prepared.layout.virtual_ranks.num_virtual_ranks
    sums: list[ErrorSums] = []
    first: tuple[Slice, Array, Array] | None = None
    for block in itertools.islice(source.blocks(), None if is_whole else 1):
        targets, answers = _evaluate(prepared, block)
        if first is None:
            sums = [ErrorSums() for _ in range(targets.shape[1])]
            first = block, targets[:, 0][np.isfinite(targets[:, 0])], answers[:, 0][np.isfinite(targets[:, 0])]
        for number, one in enumerate(sums):
            one.add(targets[:, number], answers[:, number] - targets[:, number])
    if first is None:
        return None
    block, truth, prediction = first
    check_finite(prediction)
    chosen = _spread(len(truth), -(-_POINTS_PLOTTED // num_parts))
    derivatives = _derivatives_of(prepared, block, -(-_SAMPLES_DERIVED // num_parts))
    return _Part(block.virtual_rank, sums, truth[chosen], prediction[chosen], derivatives)


def _spread(count: int, most: int) -> npt.NDArray[np.int64]:
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


@torch.no_grad()
def _evaluate(prepared: PreparedRun, block: Slice) -> tuple[Array, Array]:
    """Return targets and answers (b, O, ...) in float64; targets are NaN where they do not count."""
    prepared.model.eval()
    with answering_physically(prepared.model):
        answers = prepared.model(block.inputs).double().cpu().numpy()
        targets = physical_targets(prepared.model, block.targets).double().cpu().numpy()
    counts = (block.weights.expand_as(block.targets) > 0).cpu().numpy()
    return np.where(counts, targets, np.nan), answers


def _derivatives_of(prepared: PreparedRun, block: Slice, most: int) -> DerivativeSums | None:
    """Return the derivatives at some points; None where they would cost much or cannot be had."""
    num_derivatives = block.targets.shape[1] * block.inputs.shape[1]
    if block.inputs.dim() != 2 or num_derivatives > _MOST_DERIVATIVES:
        return None
    rows = torch.nonzero((block.weights > 0).any(dim=1)).flatten().cpu().numpy()
    if len(rows) == 0:
        return None
    inputs = block.inputs[torch.from_numpy(rows[_spread(len(rows), most)]).to(block.inputs.device)]
    try:
        with answering_physically(prepared.model):
            jacobian = input_jacobian(prepared.model, inputs)[1]
    except RuntimeError:  # a network of the user's own need not have any
        return None
    return DerivativeSums.of(jacobian.double().cpu().numpy())


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


def _words(prepared: PreparedRun, is_whole: bool, count: int) -> str:
    if is_whole:
        return f"Over all held-out samples, {count:,} values of each target."
    if prepared.dataset.summary.holds_out:
        return f"Over the first held-out samples, {count:,} values of each target."
    return f"Over samples that it was trained on, for none is held out: {count:,} values of each target."
