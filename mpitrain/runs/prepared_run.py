"""A prepared run: the network, data and engine that the preparation passes to the training and to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mpitrain.comm import Ranks
from mpitrain.config import RunConfig
from mpitrain.data import BatchPlan, Dataset, EvaluationSource, SampleSource
from mpitrain.inference.page.baselines import Levels, baseline_losses, levels_of
from mpitrain.models import ModelDescription
from mpitrain.models.files.record import store_run
from mpitrain.runs.layout import RunLayout
from mpitrain.train.engine_choice import EngineChoice
from mpitrain.train.engines.contract import StepEngine


@dataclass(frozen=True)
class PreparedRun:
    """What a run trains with, and the facts that it reports at its start and its end.

    `choice`: the engine and the reason for it; `settings`: those that a checkpoint stores; `units`: of inputs and
    targets, by name; `levels`: what the grid indices of samples mean, for the baselines.
    """

    config: RunConfig
    dataset: Dataset
    layout: RunLayout
    model: Any
    plan: BatchPlan
    engine: StepEngine
    choice: EngineChoice
    settings: dict[str, Any]
    notices: tuple[str, ...]
    units: Mapping[str, str]
    levels: Levels = field(default_factory=Levels)
    left_out: tuple[int, int] = (0, 0)

    def of_source(self, source: SampleSource, notices: Sequence[str], ranks: Ranks) -> PreparedRun:
        """Return the run with `notices` added before its own, and with the levels of `source`. Collective."""
        left_out = source.left_out(self.dataset.summary.left_out)
        lines = source.layout.lines_of(left_out, source.num_points)
        notices = (*notices, *lines, *self.notices)
        return replace(self, notices=notices, levels=levels_of(source, ranks), left_out=left_out)

    def baseline_losses(self, ranks: Ranks) -> dict[str, float]:
        """Return the losses of simple predictors, by name, on the samples of the reported losses. Collective."""
        of_run = self.config.training, self.dataset, self.model, self.levels, self.layout.virtual_ranks
        return baseline_losses(*of_run, ranks)

    @property
    def description(self) -> ModelDescription:
        """Names and units of inputs and targets, and ranges of inputs, as stored with the model."""
        summary = self.dataset.summary
        input_units, target_units = (
            tuple(self.units.get(name, "") for name in names) for names in (summary.input_names, summary.target_names)
        )
        moments, num_inputs = summary.moments, len(summary.input_names)
        limits = [] if moments is None else [one[:num_inputs].tolist() for one in (moments.minimum, moments.maximum)]
        of_inputs = tuple(f"{low!r} {high!r}" for low, high in zip(*limits, strict=True))
        known = {*summary.input_names, *summary.target_names}
        read = tuple(f"{name}={one}" for name, one in self.units.items() if one and name not in known)
        names = summary.input_names, summary.target_names
        return ModelDescription(*names, input_units, target_units, of_inputs, read)

    def store_run(self, run: str) -> None:
        """Set the identity `run` of the launch that trains the model, which is stored in the model's files."""
        store_run(self.model, run)

    @property
    def preview(self) -> Sequence[EvaluationSource]:
        """The samples that plots show: the held-out ones if there are any, otherwise training samples."""
        return self.dataset.evaluation(held_out=self.dataset.summary.holds_out)
