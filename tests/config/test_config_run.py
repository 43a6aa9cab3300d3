"""What null means in each semantics, and configurations made in Python."""

from __future__ import annotations

import pytest
from networks import network_settings
from pydantic import ValidationError

from mpitrain.config import (
    DataSection,
    DistributedSection,
    OutputSection,
    RunConfig,
    TrainingSection,
    VariablesSection,
)


def test_what_null_means() -> None:
    standard, reference = RunConfig(), RunConfig(semantics="reference")
    assert (standard.validation_split, standard.shuffle, standard.exported_weights) == (0.1, True, "best")
    assert (reference.validation_split, reference.shuffle, reference.exported_weights) == (0.0, False, "final")


def test_what_is_given_wins_over_what_null_means() -> None:
    config = RunConfig(data=DataSection(validation_split=0.0), training=TrainingSection(shuffle=False))
    assert (config.validation_split, config.shuffle, config.exported_weights) == (0.0, False, "final")
    assert RunConfig(output=OutputSection(weights="final")).exported_weights == "final"


def test_checks_hold_for_configurations_made_in_python() -> None:
    with pytest.raises(ValidationError, match="not possible with"):
        RunConfig(training=TrainingSection(reduction="fixed"), distributed=DistributedSection(fp16_allreduce=True))


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        RunConfig().training.epochs = 3  # type: ignore[misc]


@pytest.mark.parametrize(("size", "fits"), [(None, True), (2, True), (7, False)])
def test_input_size_is_that_of_the_listed_variables(size: int | None, fits: bool) -> None:
    model, variables = network_settings(input_size=size), VariablesSection(input_variables=["sst", "sss"])
    if fits:
        assert RunConfig(model=model, variables=variables).model.input_size == size
        return
    with pytest.raises(ValidationError, match=r"variables\.input_variables has 2 names"):
        RunConfig(model=model, variables=variables)


@pytest.mark.parametrize("values", [{"scheduler": {"type": "none"}}, {"batch_size": "full"}, {"shuffle": False}])
def test_reference_takes_the_value_that_changes_nothing(values: dict[str, object]) -> None:
    training = TrainingSection.model_validate(values)
    assert RunConfig(semantics="reference", training=training).training == training
