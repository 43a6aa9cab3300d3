"""Skill of a network: checks of its predictions, and errors by target on test files.

N  samples      O  targets      C  chunks of files
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Ranks, host_array
from mpitrain.config import RunConfig
from mpitrain.data import EvaluationSource, SampleSource, open_source_on_root, selection_of, valid_rows
from mpitrain.data.dataset.batches import VirtualRankSamples
from mpitrain.data.dataset.in_memory import padded_columns
from mpitrain.errors import DataError, TrainingError
from mpitrain.inference.quality.answers import answers_of
from mpitrain.inference.quality.judge import Judge
from mpitrain.inference.quality.judge import judge_of as judge_of  # for skill_on_files
from mpitrain.observe import TargetSkill, TestSkill

DoubleArray = npt.NDArray[np.float64]


def check_predictions(model: Any, sources: Sequence[EvaluationSource]) -> None:
    """Raise TrainingError where predictions of the first target are not finite, for some of this rank's own samples."""
    answers = answers_of(model)
    for block in (block for source in sources for block in itertools.islice(source.blocks(), 1)):
        counts = np.broadcast_to(host_array(block.weights), block.targets.shape)[:, 0] > 0
        check_finite(answers.physical(block.inputs)[:, 0][counts])


def check_finite(prediction: npt.NDArray[Any]) -> None:
    """Raise TrainingError for predictions that are not finite."""
    if not np.isfinite(prediction).all():
        # The loss of the last step is the one before it: without validation no loss of these weights was computed.
        raise TrainingError(
            "the trained weights give predictions that are not finite; lower training.optimizer.learning_rate or look "
            "for extreme inputs"
        )


def open_test_files(config: RunConfig, trained_on: SampleSource, ranks: Ranks) -> SampleSource | None:
    """Open the files of `data.test_path` before the training, None where there are none. Collective.

    Raises DataError, on all ranks, where one cannot serve or is trained on.
    """
    if not config.data.test_entries:
        return None
    selection = selection_of(config, config.data.test_entries, without_held_out=True, to_learn=True)
    selection = replace(
        selection, max_patterns=None, thin_fraction=1.0, units=trained_on.units, longitude_ranges=_ranges(trained_on)
    )
    ranks.on_root(lambda: trained_on.refuse_again(selection, "data.test_path"))
    return open_source_on_root(selection, ranks)


def _ranges(source: SampleSource) -> dict[str, tuple[float, float]]:
    """Return the smallest and the largest value of each input without time, by its name."""
    inputs = {name: values for name, values in source.layout.statics.items() if name in source.input_names}
    return {name: (float(np.nanmin(one)), float(np.nanmax(one))) for name, one in inputs.items()}


def skill_on_files(judge: Judge, source: SampleSource, ranks: Ranks) -> TestSkill:
    """Return how good a model is on all samples of `source`, the same bits on any number of ranks. Collective.

    Its targets must be what is learnt. Raises DataError, on all ranks, where a file cannot be read or has no sample.
    """
    own = ranks.on_all_ranks(
        lambda: {c: _of_chunk(judge, source, c) for c in range(ranks.rank, len(source.chunks), ranks.world_size)}
    )
    source.close()
    found = {c: sums for part in ranks.gather_object(own) for c, sums in part.items()}
    counts = np.sum([found[c][0] for c in range(len(found))] or [(0, 0)], axis=0)
    ranks.on_all_ranks(lambda: _check_some(source, int(counts[0]), int(counts[1])))
    total = np.sum([found[c][1] for c in range(len(found))], axis=0)  # (O, 8)
    weight = float(total[:, 2].sum())
    return TestSkill(
        files=tuple(map(str, source.paths)),
        num_samples=int(counts[1]),
        num_dropped=int(counts[0] - counts[1]),
        loss=float(total[:, 0].sum() / weight),
        mean_predictor_loss=float(total[:, 1].sum() / weight),
        targets=tuple(
            _skill(name, source.units.get(name, ""), *sums[3:])
            for name, sums in zip(source.target_names, total.tolist(), strict=True)
        ),
    )


def _of_chunk(judge: Judge, source: SampleSource, chunk: int) -> tuple[tuple[int, int], DoubleArray]:
    """Return a chunk's numbers of selected and of usable samples, and its sums (O, 8)."""
    samples, mean = source.read(source.chunks[chunk]), host_array(judge.summary.normalization.mean)
    kept = samples.take(np.flatnonzero(valid_rows(samples)))
    padded = padded_columns(kept, mean, mean.dtype)
    return (len(samples), len(kept)), judge.sums([VirtualRankSamples(0, *padded, kept.grid_index)])


def _check_some(source: SampleSource, num_selected: int, num_usable: int) -> None:
    source.check_selection(num_selected, [1] * (len(source.input_names) + len(source.target_names)))
    if num_usable == 0:
        raise DataError(f"{source.files[0].path}: all {num_selected} selected samples hold a NaN or a fill value")


def _skill(
    name: str, units: str, weight: float, error: float, squared_error: float, distance: float, squared_distance: float
) -> TargetSkill:
    bias = error / weight if weight else math.nan
    variance = squared_distance - distance**2 / weight if weight else 0.0
    r2 = 1 - squared_error / variance if variance > 0 else None
    return TargetSkill(name, units, bias, math.sqrt(squared_error / weight) if weight else math.nan, r2)
