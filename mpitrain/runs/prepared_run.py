"""What the steps of the corridor hand on to training and to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from mpitrain.config import RunConfig
from mpitrain.data.dataset.batches import BatchPlan, EvaluationSource
from mpitrain.data.dataset.dataset import Dataset
from mpitrain.models.files.torchscript import ModelDescription
from mpitrain.runs.layout import RunLayout
from mpitrain.train.engine_choice import EngineChoice
from mpitrain.train.engines.contract import StepEngine


@dataclass(frozen=True)
class PreparedRun:
    """What a run trains with, and what its beginning and its end tell about it.

    `choice` says which engine it is and why; `settings` are those that a checkpoint stores; `units` those of inputs and
    targets by name.
    """

    config: RunConfig
    dataset: Dataset
    layout: RunLayout
    model: nn.Module
    plan: BatchPlan
    engine: StepEngine
    choice: EngineChoice
    settings: dict[str, Any]
    notices: tuple[str, ...]
    units: Mapping[str, str]

    @property
    def description(self) -> ModelDescription:
        """Names and units of inputs and targets."""
        summary = self.dataset.summary
        input_units, target_units = (
            tuple(self.units.get(name, "") for name in names) for names in (summary.input_names, summary.target_names)
        )
        ranges = [] if summary.moments is None else zip(summary.moments.minimum, summary.moments.maximum, strict=True)
        of_inputs = tuple(f"{float(low)!r} {float(high)!r}" for low, high in list(ranges)[: len(summary.input_names)])
        known = {*summary.input_names, *summary.target_names}
        read = tuple(f"{name}={one}" for name, one in self.units.items() if one and name not in known)
        names = summary.input_names, summary.target_names
        return ModelDescription(*names, input_units, target_units, of_inputs, read)

    @property
    def preview(self) -> Sequence[EvaluationSource]:
        """The samples that plots show: held-out ones where there are any."""
        return self.dataset.evaluation(held_out=self.dataset.summary.holds_out)
