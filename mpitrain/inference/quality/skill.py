"""Skill of a network: check for finite predictions, and errors by target on test samples.

N  samples      F  inputs      O  targets
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Ranks
from mpitrain.config import RunConfig
from mpitrain.data import TEST, EvaluationSource, SampleSource, SplitRule, name_files, open_source_on_root, selection_of
from mpitrain.data.dataset.batches import VirtualRankSamples
from mpitrain.data.dataset.in_memory import padded_columns
from mpitrain.data.streaming.first_pass import SplitChunk, split_chunks, take_where
from mpitrain.errors import DataError, TrainingError
from mpitrain.inference.quality.answers import answers_of
from mpitrain.inference.quality.evaluation import Evaluation, Evaluator, together
from mpitrain.observe import TargetSkill, TestSkill

Array = npt.NDArray[Any]


def check_predictions(model: Any, sources: Sequence[EvaluationSource]) -> None:
    """Raise TrainingError if predictions of the first target are not finite, in the first blocks of this rank."""
    evaluator = Evaluator(answers_of(model))
    found = (evaluator.evaluate(source, is_whole=False) for source in sources)
    check_finite(all(one.is_finite for one in found if one is not None))


def check_finite(is_finite: bool) -> None:
    """Raise TrainingError for predictions that are not finite."""
    if not is_finite:
        # The loss of the last step is computed before its update: without validation the final weights have no loss.
        raise TrainingError(
            "the trained weights give predictions that are not finite; lower training.optimizer.learning_rate or look "
            "for extreme inputs"
        )


def open_test_files(config: RunConfig, trained_on: SampleSource, ranks: Ranks) -> SampleSource | None:
    """Open the files of `data.test_path` before the training; return None if there are none. Collective.

    Raises DataError on all ranks if a file cannot be used or is also trained on.
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
    """Return the smallest and the largest value of each input that has no time dimension, by name."""
    inputs = {name: values for name, values in source.layout.statics.items() if name in source.input_names}
    return {name: (float(np.nanmin(one)), float(np.nanmax(one))) for name, one in inputs.items()}


def skill_on_files(evaluator: Evaluator, input_mean: Array, source: SampleSource, ranks: Ranks) -> TestSkill:
    """Return the skill of a network on all samples of `source`; see `skill_on_part`."""
    every, more = SplitRule(0.0, 0.0, 0, test=1.0), len(source.paths) - 1
    of = name_files([str(source.paths[0])]) + (f" and {more} more" if more else "")
    return skill_on_part(evaluator, input_mean, source, every, ranks, of)


def skill_on_part(
    evaluator: Evaluator, input_mean: Array, source: SampleSource, rule: SplitRule, ranks: Ranks,
    of: str = "a part used neither for training nor for choosing the epoch",
) -> TestSkill:  # fmt: skip
    """Return the skill of a network on the samples of `source` that `rule` assigns to the test. Collective.

    The same bits on any number of ranks. Targets must be transformed as in training; `input_mean` (F,): the training
    means; `of`: a description of the samples. Raises DataError on all ranks if a file cannot be read or no sample is
    usable.
    """
    own, rows = dict[tuple[int, int], tuple[int, Evaluation | None]](), list[tuple[int, ...]]()
    for chunk, counts in split_chunks(source, ranks, rule):
        rows += counts
        own |= ranks.on_all_ranks(partial(_of_chunk, evaluator, input_mean, chunk, rule))
    source.close()
    found = {key: one for of_rank in ranks.gather_object(own) for key, one in of_rank.items()}
    num_selected, num_kept, num_usable = (sum(row[which] for row in rows) for which in range(3))
    ranks.on_all_ranks(lambda: _check_some(source, num_selected, num_usable))
    by_part: dict[int, list[Evaluation]] = {}
    for (_, part), (_, one) in sorted(found.items(), key=lambda item: item[0]):
        if one is not None:
            by_part.setdefault(part, []).append(one)
    total = together([one for part in by_part.values() for one in part])
    of_parts = [together(by_part[part]).targets for part in sorted(by_part)] if len(by_part) > 1 else []
    losses = [math.nan if one is None else one for one in (total.mean_of("loss"), total.mean_of("loss_of_mean"))]
    return TestSkill(
        of=of,
        num_samples=sum(count for count, _ in found.values()),
        num_dropped=num_kept - num_usable if rule.test == 1.0 else 0,
        loss=losses[0],
        mean_predictor_loss=losses[1],
        targets=tuple(
            TargetSkill.of(name, source.units.get(name, ""), one.errors, [part[number].errors for part in of_parts])
            for number, (name, one) in enumerate(zip(source.target_names, total.targets, strict=True))
        ),
        parts="" if rule.places is None or rule.places.parts is None else rule.places.part_kind,
    )


def _of_chunk(
    evaluator: Evaluator, input_mean: Array, chunk: SplitChunk | None, rule: SplitRule
) -> dict[tuple[int, int], tuple[int, Evaluation | None]]:  # fmt: skip
    """Return the number of test samples and their evaluation, by (number of the chunk, number of the part)."""
    found: dict[tuple[int, int], tuple[int, Evaluation | None]] = {}
    if chunk is None:
        return found
    of_chunk = chunk.of_role(TEST)
    parts = np.zeros(len(of_chunk)) if rule.places is None else rule.places.parts_of(of_chunk.grid_index)
    for part in np.unique(parts):
        tested = take_where(of_chunk, parts == part)
        columns = padded_columns(tested, input_mean, input_mean.dtype)
        samples = VirtualRankSamples(0, *columns, tested.grid_index)
        found[chunk.number, int(part)] = len(tested), evaluator.evaluate(samples, is_whole=True)
    return found


def _check_some(source: SampleSource, num_selected: int, num_usable: int) -> None:
    source.check_selection(num_selected, [1] * (len(source.input_names) + len(source.target_names)))
    if num_usable == 0:
        raise DataError(f"{source.files[0].path}: all {num_selected} selected samples hold a NaN or a fill value")
