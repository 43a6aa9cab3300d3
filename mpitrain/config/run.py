"""`RunConfig`: what one run is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from mpitrain.config.checks import (
    CROSS_CHECK,
    Problem,
    fold_problems,
    network_problems,
    reference_problems,
    training_problems,
)
from mpitrain.config.data import DataSection, DomainSection, VariablesSection
from mpitrain.config.ensemble import EnsembleSection, ensemble_problems
from mpitrain.config.model import ModelSection, named_for, normalizes_outputs
from mpitrain.config.output import OutputSection, PredictionSection, TrackingSection
from mpitrain.config.section import CountOrZero, Section
from mpitrain.config.training import ComputeSection, DistributedSection, TrainingSection

DEFAULT_VALIDATION_SPLIT = 0.1


class RunConfig(Section):
    """What one training run is."""

    semantics: Literal["standard", "reference"] = "standard"
    """`standard`: the best correct training; `reference`: what the C++ program does, bit for bit."""
    seed: CountOrZero = 0
    """Seed of every random number: first weights, validation choice, shuffling."""
    model: ModelSection = Field(default_factory=ModelSection)
    """The network."""
    variables: VariablesSection = Field(default_factory=VariablesSection)
    """Which variables of the data file are read."""
    domain: DomainSection = Field(default_factory=DomainSection)
    """Which points of the grid are samples."""
    data: DataSection = Field(default_factory=DataSection)
    """Where the samples come from."""
    training: TrainingSection = Field(default_factory=TrainingSection)
    """The training loop."""
    compute: ComputeSection = Field(default_factory=ComputeSection)
    """Where the computation runs and what carries the messages."""
    distributed: DistributedSection = Field(default_factory=DistributedSection)
    """Settings of distributed training."""
    prediction: PredictionSection = Field(default_factory=PredictionSection)
    """The prediction written after training."""
    output: OutputSection = Field(default_factory=OutputSection)
    """What is written, and where."""
    ensemble: EnsembleSection | None = None
    """The members of `mpitrain ensemble`; a single run leaves this section alone."""
    tracking: TrackingSection = Field(default_factory=TrackingSection)
    """Experiment trackers."""

    @property
    def validation_split(self) -> float:
        """Fraction of the samples held out: one fold, `data.validation_split`, or what null means here."""
        if self.data.folds is not None:
            return 1 / self.data.folds
        if self.data.validation_split is not None:
            return self.data.validation_split
        return DEFAULT_VALIDATION_SPLIT if self.semantics == "standard" else 0.0

    @property
    def split_seed(self) -> int:
        """Seed of which samples are kept and held out: `data.split_seed`, or the run's own."""
        return self.seed if self.data.split_seed is None else self.data.split_seed

    @property
    def most_samples(self) -> int | None:
        """The limit of `data.max_patterns`, and of `data.num_samples` for synthetic data, which come in whole times."""
        asked = [self.data.max_patterns, self.data.num_samples if self.data.data_path is None else None]
        return min((number for number in asked if number is not None), default=None)

    @property
    def network(self) -> ModelSection:
        """The section `model` with the network's name, null resolved."""
        targets = self.variables.output_variables
        return named_for(self.model, targets if self.semantics == "standard" else None)

    @property
    def normalizes_outputs(self) -> bool:
        """Whether the targets' statistics go into the model; the C++ program normalises its inputs only."""
        return self.semantics == "standard" and normalizes_outputs(self.network)

    @property
    def exported_weights(self) -> Literal["best", "final"]:
        """Which weights are exported: `output.weights`, or what null means in these semantics."""
        if self.output.weights is not None:
            return self.output.weights
        return "best" if self.semantics == "standard" and self.validation_split > 0 else "final"

    @property
    def shuffle(self) -> bool:
        """Whether each epoch has its own order: `training.shuffle`, or what null means in these semantics."""
        return self.semantics == "standard" if self.training.shuffle is None else self.training.shuffle

    @model_validator(mode="after")
    def _check_together(self) -> RunConfig:
        problems = tuple(self._problems())
        if problems:
            raise PydanticCustomError(CROSS_CHECK, "{text}", {"text": str(problems[0]), "problems": problems})
        return self

    def _problems(self) -> Iterator[Problem]:
        yield from training_problems(self.training, self.distributed)
        yield from network_problems(self.network, self.variables)
        yield from fold_problems(self.data)
        if self.ensemble is not None:
            yield from (Problem(*found) for found in ensemble_problems(self.ensemble))
        if self.semantics == "reference":
            yield from reference_problems(self)


def render_schema() -> str:
    """Return the JSON schema of a configuration, with the description of every key."""
    return json.dumps(RunConfig.model_json_schema(), indent=2) + "\n"
