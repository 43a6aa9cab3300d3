"""Every component is a class of its room's table, described and explained from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpitrain.config import RunConfig, load_run_config
from mpitrain.config.advice.explain import explain_settings
from mpitrain.config.component import Room
from mpitrain.config.run import rooms
from mpitrain.errors import ConfigError
from mpitrain.export.command import EXPORTS

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


# Each default of each component, as the settings write them; the name alone of those without options. What a newer
# version changes here changes the runs of users whose settings do not name it.
NETWORK = {"input_size": None, "output_size": None, "normalize_outputs": None, "initial_weights": None}
HIDDEN = {"hidden_size": 16, "hidden_activation": None, "output_activation": None}
LAYERS = {**HIDDEN, "hidden_layers": 1, "dropout": 0.0, "batch_norm": False, "output_transforms": None}
OF_FIELDS = {**LAYERS, "kernel_size": 3, "periodic": False, "linear_part": False, "grid": None}
OF_POINTS = {**LAYERS, "layer_norm": False, "residual": False}
RATE = {"learning_rate": 0.001, "weight_decay": 0.0}
ADAM = {**RATE, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
WARMUP = {"warmup_epochs": 0}
CODE = "package.module:name"
EXPORT_FORMATS = "torchscript", "saber", "mom6", "pumas", "pt2", "onnx", "c", "c++", "trainer", "fortran"
DEFAULTS: dict[str, dict[str | None, dict[str, object]]] = {
    "model": {
        "icenet": {**NETWORK, **HIDDEN},
        "mlp": {**NETWORK, **OF_POINTS},
        "cnn": {**NETWORK, **OF_FIELDS},
        "unet": {**NETWORK, **OF_FIELDS},
        CODE: {**NETWORK, "output_transforms": None, "options": {}},
        None: {**NETWORK, **OF_POINTS},
    },
    "data.reader": {
        **{name: {} for name in ("netcdf", "hdf5", "zarr", "npz", "pt", "csv", "parquet")},
        CODE: {"options": {}},
    },
    "training.optimizer": {
        "adam": ADAM,
        "adamw": ADAM,
        "sgd": {**RATE, "momentum": 0.0},
        CODE: {"learning_rate": 0.001, "options": {}},
    },
    "training.scheduler": {
        "step": {**WARMUP, "step_size": 30, "gamma": 0.5},
        "cosine": {**WARMUP, "min_learning_rate": 0.0},
        "plateau": {**WARMUP, "gamma": 0.5, "patience": 10, "min_learning_rate": 0.0},
        "none": WARMUP,
        CODE: {**WARMUP, "options": {}},
    },
    "training.loss_function": {"mse": {}, "mae": {}, "huber": {}, CODE: {"options": {}}},
    "tracking.tracker": {"tensorboard": {}, "wandb": {}, "mlflow": {}, CODE: {"options": {}}},
    "--format": {
        **{name: {} for name in EXPORT_FORMATS},
        CODE: {},
    },
}
DEFAULT_COMPONENTS = {
    "model": None, "data.reader": None, "training.optimizer": "adam", "training.scheduler": None,
    "training.loss_function": "mse", "tracking.tracker": None, "--format": "torchscript",
}  # fmt: skip


@pytest.mark.parametrize("room", [*rooms(), EXPORTS], ids=lambda room: room.key)
def test_each_default_is_the_one_of_the_table(room: Room) -> None:
    unnamed = [None] if room.may_be_unnamed else []
    found = {name: room.component(name)(**{room.name_field: name}) for name in (*room.table, CODE, *unnamed)}
    options = {name: one.model_dump(exclude={room.name_field}) for name, one in found.items()}
    assert options == DEFAULTS[room.key]
    assert room.default == DEFAULT_COMPONENTS[room.key]
    # 0 equals False, and is another default.
    assert {name: repr(sorted(one.items())) for name, one in options.items()} == {
        name: repr(sorted(one.items())) for name, one in DEFAULTS[room.key].items()
    }


def test_options_of_other_components_have_no_effect_and_are_named():
    loaded = load_run_config(None, ["training.optimizer={type: sgd, beta1: 0.5, beta2: 0.999}"])
    assert loaded.notices == (
        "training.optimizer.beta1=0.5: has no effect: it is an option of adam and adamw, and "
        "training.optimizer.type is sgd",
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
            "has no effect on named code; remove the key, and give your own",
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
