"""Defaults by the number of samples: what they are, what stays as stated, and that they survive a settings file."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpitrain.config import LoadedConfig, RunConfig, load_run_config, render_yaml
from mpitrain.config.advice.defaults import Decided, OpenSettings, SampleCount, settings_for

TABLE = ("variables.input_variables=[a, b]", "variables.output_variables=[y]")
MANY = SampleCount("points", 5000)


def of_table(*overrides: str) -> RunConfig:
    return load_run_config(None, [*TABLE, *overrides]).config


def open_settings(config: RunConfig) -> tuple[str, ...]:
    return OpenSettings(config).keys


def decided(config: RunConfig, size: SampleCount = MANY) -> Decided:
    return OpenSettings(config).with_network().decide(size)


def decide(config: RunConfig, size: SampleCount = MANY) -> RunConfig:
    return decided(config, size).config


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("model.hidden_size=32",),
        ("variables.output_variables=[aice_h]", "variables.input_variables=[sst_h]"),
        ("variables.output_variables=[siconc]",),
        ("semantics=reference",),
    ],
)
def test_nothing_is_decided_for_the_ice_concentration_and_in_reference(settings: tuple[str, ...]) -> None:
    config = load_run_config(None, settings).config
    assert open_settings(config) == ()
    assert decide(config) is config
    assert OpenSettings(config).render() == render_yaml(config)


def test_a_table_of_5000_samples() -> None:
    config = decide(of_table())
    model, training = config.model, config.training
    assert (model.name, model.hidden_layers, model.hidden_size) == (None, 4, 128)
    assert (model.hidden_activation, model.residual) == ("silu", True)
    assert (training.epochs, training.global_batch_size, training.early_stopping_patience) == (90, 64, 30)
    assert training.scheduler.name == "cosine"
    assert training.optimizer.learning_rate == 0.005
    assert open_settings(config) == ()


def test_a_stated_value_is_kept_and_null_too() -> None:
    stated = {
        "model.hidden_layers": 1, "model.hidden_size": 7, "model.hidden_activation": None, "training.epochs": 3,
        "training.global_batch_size": None, "training.scheduler": None, "training.early_stopping_patience": None,
        "training.optimizer.learning_rate": 0.5, "training.average": None,
    }  # fmt: skip
    for key, value in stated.items():
        config = of_table(f"{key}={'null' if value is None else value}")
        assert key not in open_settings(config)
        here = decide(config)
        for name in key.split("."):
            here = getattr(here, name)
        assert here == value, key
    config = of_table(*(f"{key}={'null' if value is None else value}" for key, value in stated.items()))
    assert open_settings(config) == ()


def test_a_run_folder_of_earlier_versions_states_everything_and_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(render_yaml(of_table()))
    config = load_run_config(path).config
    assert open_settings(config) == ()
    assert (decide(config).training.epochs, config.model.hidden_size, config.training.scheduler) == (20, 16, None)


def test_what_was_decided_stands_in_the_settings_file_and_loads_equal(tmp_path: Path) -> None:
    path, config = tmp_path / "config.yaml", decide(of_table("training.optimizer.type=adamw"))
    path.write_text(render_yaml(config))
    assert load_run_config(path) == LoadedConfig(config, ())


def test_shown_settings_leave_out_what_is_open_and_load_as_open(tmp_path: Path) -> None:
    path, config = tmp_path / "run.yaml", of_table("training.epochs=7", "training.engine=ddp")
    assert config.training.reduction == "any"  # implied, and it states nothing else
    text = OpenSettings(config).render()
    path.write_text(text)
    assert text.startswith("# set from the number of samples: model.hidden_layers, ")
    assert "epochs: 7" in text
    assert "hidden_size" not in text.partition("\n")[2]
    again = load_run_config(path).config
    assert again == config
    assert open_settings(again) == open_settings(config)
    assert decide(again) == decide(config)


def test_settings_that_others_rule_out_stay_open_to_none() -> None:
    assert "training.global_batch_size" not in open_settings(of_table("training.batch_size=8"))
    assert "training.global_batch_size" not in open_settings(of_table("training.gradient_accumulation_steps=8"))
    assert "training.early_stopping_patience" not in open_settings(of_table("data.validation_split=0"))
    assert "training.early_stopping_patience" not in open_settings(of_table("training.jacobian_tolerance=0.1"))
    assert "training.optimizer.learning_rate" not in open_settings(of_table("training.optimizer.type=sgd"))
    assert "training.optimizer.learning_rate" not in open_settings(of_table("training.learning_rate_scaling=sqrt"))
    assert "model.residual" not in open_settings(of_table("model.hidden_layers=1"))
    of_own = open_settings(of_table("model.name=my.networks:Net"))
    assert not [key for key in of_own if key.startswith("model.")]
    assert "training.epochs" in of_own
    assert "training.average" not in of_own  # it may have batch norm
    assert "training.average" not in open_settings(of_table("model.name=mlp", "model.batch_norm=true"))
    assert "training.average" in open_settings(of_table("model.name=mlp"))


@pytest.mark.parametrize("kind", ["points", "fields"])
@pytest.mark.parametrize("number", [1, 2, 9, 40, 63, 200, 1999, 2000, 10**4, 10**6, 10**7, 10**9])
def test_any_number_of_samples_gives_settings_that_fit(kind: str, number: int) -> None:
    size = SampleCount(kind, number)
    found = settings_for(size)
    batch, epochs = found["training.global_batch_size"], found["training.epochs"]
    assert batch is None or 8 <= batch <= min(4096, number / 2)
    assert 4 <= epochs <= 500
    assert found["training.early_stopping_patience"] >= 10
    config = decide(of_table(*(["data.samples=fields"] if kind == "fields" else [])), size)
    assert open_settings(config) == ()
    assert config.model.name == ("cnn" if kind == "fields" else None)


def test_more_samples_take_fewer_epochs_and_larger_batches() -> None:
    found = [settings_for(SampleCount("points", number)) for number in (200, 5000, 10**5, 4 * 10**6, 10**7)]
    assert [one["training.epochs"] for one in found] == [383, 90, 23, 4, 4]
    assert [one["training.global_batch_size"] for one in found] == [32, 64, 256, 2048, 4096]


def test_the_line_tells_each_decided_setting_as_it_would_be_written() -> None:
    config = of_table("model.hidden_layers=3", "training.epochs=5")
    assert decided(config).notices == [
        "defaults for 5,000 samples: model.hidden_size=128 model.hidden_activation=silu model.residual=true "
        "training.global_batch_size=64 training.scheduler={type: cosine} training.average={decay: 0.999} "
        "training.early_stopping_patience=30 "
        "training.optimizer.learning_rate=0.005"
    ]


FIELDS = ("data.samples=fields",)
ON_GRID = SampleCount("fields", 100, (5, 6))


def test_fields_begin_at_a_regression_unless_a_network_is_named() -> None:
    model = decide(of_table(*FIELDS), ON_GRID).model
    assert (model.name, model.linear_part, model.grid) == ("cnn", True, [5, 6])
    assert decide(of_table(*FIELDS), SampleCount("fields", 100)).model.grid is None, "too large for each point"
    assert (
        decide(of_table(*FIELDS, "model.grid=null", "model.linear_part=true", "model.name=cnn"), ON_GRID).model.grid
        is None
    )
    named = decide(of_table(*FIELDS, "model.name=cnn"), ON_GRID).model
    assert (named.linear_part, named.grid) == (False, None)
    bounded = decide(of_table(*FIELDS, "model.output_activation=sigmoid"), ON_GRID).model
    assert (bounded.name, bounded.linear_part) == ("cnn", False)
