"""What the steps of the corridor hand on to training and to its end; one that has ended can begin again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from mpitrain.comm.ranks import Ranks
from mpitrain.config import RunConfig
from mpitrain.data.dataset.batches import BatchPlan, EvaluationSource
from mpitrain.data.dataset.dataset import Dataset
from mpitrain.models.files.torchscript import ModelDescription
from mpitrain.models.first_weights import can_be_drawn_anew, draw_first_weights
from mpitrain.runs.layout import RunLayout
from mpitrain.runs.model import Models
from mpitrain.train.choose_engine import Kernels
from mpitrain.train.compiled.engine import CompiledEngine
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
        moments, num_inputs = summary.moments, len(summary.input_names)
        limits = [] if moments is None else [one[:num_inputs].tolist() for one in (moments.minimum, moments.maximum)]
        of_inputs = tuple(f"{low!r} {high!r}" for low, high in zip(*limits, strict=True))
        known = {*summary.input_names, *summary.target_names}
        read = tuple(f"{name}={one}" for name, one in self.units.items() if one and name not in known)
        names = summary.input_names, summary.target_names
        return ModelDescription(*names, input_units, target_units, of_inputs, read)

    @property
    def preview(self) -> Sequence[EvaluationSource]:
        """The samples that plots show: held-out ones where there are any."""
        return self.dataset.evaluation(held_out=self.dataset.summary.holds_out)


@dataclass
class KnownParts:
    """What one run after the other in a process need not find out again. Belongs to the same ranks in all of them."""

    kernels: Kernels = field(default_factory=dict)
    models: Models = field(default_factory=dict)
    answers: set[str] = field(default_factory=set)
    """Networks that are known to answer in the targets' shape."""
    ended: PreparedRun | None = None
    """A run that has ended well, and whose network and engine nobody uses any more."""

    def take_ended(self) -> PreparedRun | None:
        """Return `ended`, once."""
        ended, self.ended = self.ended, None
        return ended


def restarted(
    ended: PreparedRun | None, config: RunConfig, dataset: Dataset, layout: RunLayout, ranks: Ranks
) -> PreparedRun | None:
    """Return `ended` as a run of `config`, the same bits as one built anew; None where that cannot be.

    It can where one rank trains by the compiled engine, from first weights that are drawn, on the same samples, and the
    settings differ in the seed and the folder alone. Not collective: other groups of ranks get None.
    """
    if ended is None or ranks.world_size > 1 or dataset is not ended.dataset or layout != ended.layout:
        return None
    engine, known = ended.engine, ended.config
    if not isinstance(engine, CompiledEngine) or not can_be_drawn_anew(ended.model):
        return None
    if config.model.initial_weights is not None or config.data.streaming:
        return None
    if config != known.model_copy(update={"seed": config.seed, "output": config.output}):
        return None
    draw_first_weights(ended.model, config.seed)
    engine.restart(config, lambda: dataset.microbatches(ended.plan, config.seed, config.shuffle))
    return replace(ended, config=config, settings={**ended.settings, "seed": config.seed})
