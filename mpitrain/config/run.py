"""`RunConfig`: all settings of one run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from mpitrain.config.checks import (
    component_reference_problems,
    fold_problems,
    problems_of_test,
    reference_problems,
    size_problems,
    training_problems,
)
from mpitrain.config.component import Component, Room, cross_check, rooms_in
from mpitrain.config.data import FIRST_RULES, DataSection, DomainSection, VariablesSection
from mpitrain.config.ensemble import EnsembleSection, ensemble_problems
from mpitrain.config.model import NETWORKS
from mpitrain.config.output import OutputSection, PredictionSection, TrackingSection
from mpitrain.config.section import CountOrZero, Problem, Section
from mpitrain.config.training import AverageSection, ComputeSection, DistributedSection, TrainingSection

DEFAULT_VALIDATION_SPLIT = 0.1
# Validation fraction above which no test part is held out by default.
_MOST_BESIDE_A_TEST = 0.5


class RunConfig(Section):
    """All settings of one training run."""

    semantics: Literal["standard", "reference"] = "standard"
    """`standard`: mpitrain's own training; `reference`: the algorithm of the C++ program, bit for bit."""
    seed: CountOrZero = 0
    """Seed of all random numbers: initial weights, choice of validation samples, shuffling."""
    model: Annotated[Any, NETWORKS] = Field(default_factory=lambda: NETWORKS.validate({}))
    """The network."""
    variables: VariablesSection = Field(default_factory=VariablesSection)
    """Variables read from the data files."""
    domain: DomainSection = Field(default_factory=DomainSection)
    """Points of the grid that are samples."""
    data: DataSection = Field(default_factory=DataSection)
    """The source of the samples, and the choice of held-out samples."""
    training: TrainingSection = Field(default_factory=TrainingSection)
    """The training loop."""
    compute: ComputeSection = Field(default_factory=ComputeSection)
    """The device of the computation and the library of the collectives."""
    distributed: DistributedSection = Field(default_factory=DistributedSection)
    """Settings of distributed training."""
    prediction: PredictionSection = Field(default_factory=PredictionSection)
    """The prediction written after training."""
    output: OutputSection = Field(default_factory=OutputSection)
    """Files that are written."""
    ensemble: EnsembleSection | None = None
    """The members of `mpitrain ensemble`; a single run ignores this section."""
    tracking: TrackingSection = Field(default_factory=TrackingSection)
    """Experiment trackers."""

    @property
    def validation_split(self) -> float:
        """Fraction of the samples held out: one fold, `data.validation_split`, or its default if null."""
        if self.data.folds is not None:
            return 1 / self.data.folds
        if self.data.validation_split is not None:
            return self.data.validation_split
        return DEFAULT_VALIDATION_SPLIT if self.semantics == "standard" else 0.0

    @property
    def holds_out(self) -> bool:
        """Whether samples are held out for validation."""
        return bool(self.validation_split or self.data.validation_path)

    @property
    def split_seed(self) -> int:
        """Seed of the choice of kept and held-out samples: `data.split_seed`, or `seed` if null."""
        return self.seed if self.data.split_seed is None else self.data.split_seed

    def with_rules(self, rules: int) -> Self:
        """Return the settings with `data.rules` set to `rules` if it is null.

        Parameters
        ----------
        rules : int
            FIRST_RULES to NEWEST_RULES.

        Returns
        -------
        RunConfig
            A copy; these settings are not changed.
        """
        data = self.data.model_copy(update={"rules": self.data.rules or rules})
        return self.model_copy(update={"data": data})

    def with_split(self, held_out_by: Mapping[str, Any]) -> Self:
        """Return the settings with values from `held_out_by` for those keys that are still open.

        Parameters
        ----------
        held_out_by : mapping
            Values by key, as `DataSection.held_out_by`.

        Returns
        -------
        RunConfig
            A copy. `test_split` is open if it is null and there are neither folds nor validation files; the other keys
            are open together if `split` is auto.
        """
        may_test = self.data.folds is None and self.data.validation_path is None
        is_open = dict.fromkeys(held_out_by, self.data.split == "auto")
        is_open["test_split"] = may_test and self.data.test_split is None
        more = {key: value for key, value in held_out_by.items() if is_open[key]}
        return self.model_copy(update={"data": self.data.model_copy(update=more)})

    def as_recorded(self) -> Self:
        """Return the settings of a recorded run, with the defaults of earlier versions for keys that are not stated.

        Returns
        -------
        RunConfig
            A copy with `data.rules` 1, `data.test_split` 0 and without `training.average`, unless these are stated.
        """
        return self.with_rules(FIRST_RULES).with_split({"test_split": 0.0}).with_average(None)

    def with_average(self, average: Mapping[str, Any] | None) -> Self:
        """Return the settings with `training.average` set to `average` unless they state it.

        Parameters
        ----------
        average : mapping or None
            The section as plain values, such as {"decay": 0.999}; None: no average.

        Returns
        -------
        RunConfig
            A copy, or the settings themselves if they state `training.average`, also as null.
        """
        if "average" in self.training.model_fields_set:
            return self
        section = None if average is None else AverageSection.model_validate(average)
        return self.model_copy(update={"training": self.training.model_copy(update={"average": section})})

    def with_lag_step(self, days: float | None) -> Self:
        """Return the settings with `data.lag_step_days` set to the time step of the training data.

        Parameters
        ----------
        days : float or None
            The time step in days; 0: lags count time levels; None: not known.

        Returns
        -------
        RunConfig
            A copy; these settings are not changed.
        """
        return self.model_copy(update={"data": self.data.model_copy(update={"lag_step_days": days})})

    @property
    def split_data(self) -> DataSection:
        """The section `data` with `validation_split`, `split_seed` and `test_split`, as far as settings decide them."""
        resolved: dict[str, Any] = {"validation_split": self.validation_split, "split_seed": self.split_seed}
        others = self.data.folds, self.data.validation_path, self.data.test_path
        is_usual = 0 < self.validation_split <= _MOST_BESIDE_A_TEST and others == (None, None, None)
        if self.data.test_split is None and not is_usual:
            resolved["test_split"] = 0.0
        return self.data.model_copy(update=resolved)

    @property
    def most_samples(self) -> int | None:
        """The limit by `data.max_patterns`, and by `data.num_samples` for synthetic data (written in whole levels)."""
        asked = [self.data.max_patterns, self.data.num_samples if self.data.data_path is None else None]
        return min((number for number in asked if number is not None), default=None)

    @property
    def network(self) -> Any:
        """The section `model` as a `Network`, with its name and all null values resolved."""
        return self.model.resolved(self.variables.output_variables if self.semantics == "standard" else None)

    @property
    def normalizes_outputs(self) -> bool:
        """Whether the model normalises its targets; the C++ program normalises only the inputs."""
        return self.semantics == "standard" and bool(self.network.normalizes_outputs)

    @property
    def exported_weights(self) -> Literal["best", "final"]:
        """Which weights are exported: `output.weights`, or its default in these semantics if null."""
        if self.output.weights is not None:
            return self.output.weights
        return "best" if self.semantics == "standard" and self.validation_split > 0 else "final"

    @property
    def shuffle(self) -> bool:
        """Whether samples are shuffled in each epoch: `training.shuffle`, or its default in these semantics if null."""
        return self.semantics == "standard" if self.training.shuffle is None else self.training.shuffle

    @property
    def components(self) -> dict[str, tuple[Room, Component]]:
        """The components of the run, with their rooms, by key."""
        found: dict[str, tuple[Room, Any]] = {room.key: (room, attrgetter(room.key)(self)) for room in rooms()}
        found[NETWORKS.key] = (NETWORKS, self.network)
        return {key: (room, component) for key, (room, component) in found.items() if component is not None}

    @property
    def code_names(self) -> dict[str, str]:
        """All named code (`package.module:name`) in the settings, by key."""
        names = {room.type_key: component.name for room, component in self.components.values()}
        return {key: name for key, name in names.items() if ":" in name}

    def check_code(self) -> None:
        """Import the code named by components, which runs it. Not collective.

        Raises
        ------
        ConfigError
            The code cannot be imported or used, or its options are wrong.
        MissingDependencyError
            A component needs a package that is not installed.
        """
        for _, component in self.components.values():
            component.check()

    @model_validator(mode="after")
    def _check_together(self) -> RunConfig:
        problems = tuple(self._problems())
        if problems:
            raise cross_check(problems)
        return self

    def _problems(self) -> Iterator[Problem]:
        yield from training_problems(self.training, self.distributed)
        yield from size_problems(self.model, self.variables)
        yield from fold_problems(self.data)
        yield from problems_of_test(self.data, self.validation_split)
        if self.ensemble is not None:
            yield from (Problem(*found) for found in ensemble_problems(self.ensemble))
        if self.semantics == "reference":
            yield from reference_problems(self)
            for room in rooms():
                component = attrgetter(room.key)(self)
                if component is not None:
                    yield from component_reference_problems(room, component)
        yield from self._component_problems()

    def _component_problems(self) -> Iterator[Problem]:
        """Yield conflicting options of components, and options that the resolved network does not have."""
        try:
            components = self.components
        except PydanticCustomError as error:
            yield from (error.context or {})["problems"]
            return
        for key, (_, component) in components.items():
            yield from (Problem(f"{key}.{option}", value, what) for option, value, what in component.problems())


@cache
def rooms() -> tuple[Room, ...]:
    """Return the rooms of all components of a run."""
    return tuple(rooms_in(RunConfig))


def render_schema() -> str:
    """Return the JSON schema of all settings as text, with a description of every key.

    Returns
    -------
    str
        JSON, indented by 2, with a newline at the end.
    """
    return json.dumps(RunConfig.model_json_schema(), indent=2) + "\n"
