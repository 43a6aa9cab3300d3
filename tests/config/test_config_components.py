"""Every component is a class of its room's table, described and explained from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpitrain.config import RunConfig, load_run_config
from mpitrain.config.advice.explain import explain_settings
from mpitrain.config.run import rooms
from mpitrain.errors import ConfigError

PACKAGE = Path(__file__).parents[2] / "mpitrain"
NAMED = [(room, name) for room in rooms() for name in room.table]


@pytest.mark.parametrize(("room", "name"), NAMED, ids=[f"{room.key}={name}" for room, name in NAMED])
def test_a_component_is_made_explained_and_described(room, name):
    component = room.validate({room.name_field: name})
    assert component.name == name
    assert isinstance(component.describe(), str)
    assert room.validate(room.dump(component)) == component
    assert name in explain_settings([f"{room.key}.{room.name_field}"])
    for option in type(component).model_fields:
        assert f"{room.key}.{option}" in explain_settings([f"{room.key}.{option}"])


def test_options_of_other_components_have_no_effect_and_are_named():
    loaded = load_run_config(None, ["training.optimizer={type: sgd, beta1: 0.5, beta2: 0.999}"])
    assert loaded.notices == (
        "training.optimizer.beta1=0.5: of no effect, an option of adam and adamw: training.optimizer.type is sgd",
    )
    assert RunConfig.model_validate({"training": {"optimizer": {"type": "sgd", "beta1": 0.5}}}).training.optimizer == (
        RunConfig.model_validate({"training": {"optimizer": "sgd"}}).training.optimizer
    )


# The section `model` of a run folder before networks were components: every key, whatever the network.
OLDER_MODEL = {
    "name": None, "input_size": None, "hidden_size": 16, "hidden_layers": 1, "output_size": None,
    "hidden_activation": None, "output_activation": None, "dropout": 0.0, "batch_norm": False, "layer_norm": False,
    "residual": False, "normalize_outputs": None, "output_transforms": None, "kernel_size": 3, "periodic": False,
    "initial_weights": None,
}  # fmt: skip


@pytest.mark.parametrize("name", ["icenet", "mlp", "cnn", "unet", "my_network:Shortcut", None])
def test_the_section_model_of_older_run_folders_is_read(name):
    older = RunConfig.model_validate({"model": {**OLDER_MODEL, "name": name}})
    assert older.model == RunConfig.model_validate({"model": {"name": name}}).model
    assert RunConfig.model_validate(older.model_dump(mode="json")) == older


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            "model={name: cnn, residual: true}",
            "residual=true: cnn has no such option; remove the key or give model.name=mlp",
        ),
        (
            "model={name: my:Net, dropout: 0.1}",
            "of no effect on named code; remove the key, and give your own",
        ),
        ("model={name: mlp, widht: 3}", "unknown key; mlp has input_size, output_size, normalize_outputs"),
        ("model.hiden_size=3", "unknown key; did you mean 'model.hidden_size'?"),
        ("data.reader=netcdf4", "not allowed; give one of netcdf, hdf5, zarr, npz, pt, csv, parquet, or a library's"),
    ],
)
def test_an_option_that_a_component_does_not_have_is_one_line(settings, line):
    with pytest.raises(ConfigError) as refused:
        load_run_config(None, [settings])
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
