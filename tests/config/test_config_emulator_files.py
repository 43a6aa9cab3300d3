"""Training files of emulators for data assimilation, as their trainers read them: each key takes effect, or is said."""

from __future__ import annotations

from pathlib import Path

import netCDF4
import numpy as np
import pytest

from mpitrain.config import load_run_config
from mpitrain.config.load import LoadedConfig
from mpitrain.data.samples import Samples
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import ConfigError

SURFACE = """
model: {hidden_size: 64, hidden_layers: 3, activation: gelu}
variables:
  input_variables: [sst, sss, tair, tsfc, hi, hs, sice, uocn, vocn, uatm, vatm, qref, flwdn, fswdn]
  output_variables: [aice]
  max_input_features: null
domain: {mask_mode: sea_ice, min_ice_concentration: 0.00001}
data: {data_path: aice.npz, validation_split: 0.1, num_workers: 0, max_patterns: 400000, thin_fraction: 1.0}
training:
  epochs: 100000
  batch_size: 1000
  optimizer: {type: adam, learning_rate: 0.0001, weight_decay: 0.0001}
  scheduler: null
  loss_function: mse
  early_stopping_patience: 50
  min_epochs: 3000
  save_interval: 20
  track_jacobian: true
  jacobian_freq: 5
  use_log_scale_loss: true
  use_ema: false
  ema_decay: 0.999
output: {model_dir: models_aice/}
use_cuda: true
"""
COLUMNS = """
model: {emulator_type: salinity_profile, hidden_size: 128, hidden_layers: 4, activation: gelu, use_conv1d: false,
        conv_channels: 32, conv_kernel_size: 5}
variables:
  input_variables: [sea_water_potential_temperature, sea_water_cell_thickness]
  output_variables: [sea_water_salinity]
  num_levels: 75
  target_num_levels: 3
  reduced_grid: {method: temperature_gradient, gradient_weight: 10.0}
domain: {mask_mode: ocean, min_ice_concentration: 0.15}
data: {data_path: salt.npz, validation_split: 0.1}
training:
  epochs: 10000
  batch_size: 2048
  optimizer: {type: adam, learning_rate: 0.0001}
  regularization: {vertical_smoothness: {enabled: false, weight: 0.1, order: 2}}
  convergence_threshold: 1e-12
  use_log_scale_loss: false
"""


def loaded(folder: Path, text: str, *overrides: str) -> LoadedConfig:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load_run_config(path, overrides)


def test_a_surface_emulators_file_is_read_without_a_word(tmp_path: Path) -> None:
    found = loaded(tmp_path, SURFACE)
    assert found.notices == ()
    config = found.config
    network = config.network
    assert (network.name, network.hidden_activation, network.hidden_layers, network.hidden_size) == (
        "mlp", "gelu", 3, 64,
    )  # fmt: skip
    assert (config.domain.mask_mode, config.domain.min_ice_concentration) == ("sea_ice", 1e-5)
    assert len(config.variables.input_variables) == 14


def test_a_columns_file_names_each_level_and_says_what_is_not_read(tmp_path: Path) -> None:
    found = loaded(tmp_path, COLUMNS)
    names = ["sea_water_potential_temperature", "sea_water_cell_thickness"]
    assert found.config.variables.input_variables == [f"{name}[{level}]" for name in names for level in range(3)]
    assert found.config.variables.output_variables == [f"sea_water_salinity[{level}]" for level in range(3)]
    heads = [line.partition(":")[0] for line in found.notices]
    assert heads == [
        "training.convergence_threshold",
        "model.emulator_type, variables.num_levels, variables.reduced_grid.method, "
        "variables.reduced_grid.gradient_weight",
        "training.use_log_scale_loss=false",
    ]


def test_levels_of_a_grid_file_are_those_of_the_file(tmp_path: Path) -> None:
    found = loaded(tmp_path, COLUMNS, "data.data_path=columns.nc")
    assert found.config.variables.output_variables == ["sea_water_salinity"]


@pytest.mark.parametrize(
    ("older", "kept"), [("training: {min_epochs_jacobian: 9}", "training.jacobian_tolerance"),
                        ("training: {use_jacobian_stopping: true}", "training.jacobian_tolerance"),
                        ("training: {jacobian_convergence_tolerance: 1e-13}", "training.jacobian_tolerance"),
                        ("training: {jacobian_convergence_window: 5}", "training.jacobian_tolerance"),
                        ("training: {convergence_tolerance: 1e-16}", "training.early_stopping_patience"),
                        ("training: {convergence_window: 5}", "training.early_stopping_patience")],
)  # fmt: skip
def test_a_rule_that_is_not_read_names_the_one_that_is(tmp_path: Path, older: str, kept: str) -> None:
    (line,) = loaded(tmp_path, older).notices
    assert f"ignored; {kept} ends a run" in line


@pytest.mark.parametrize(
    ("older", "advice"), [("training: {ema_decay: 0.9}", "training.average"),
                          ("model: {use_conv1d: true}", "model.name of your own"),
                          ("training: {regularization: {vertical_smoothness: {enabled: true, weight: 0.1}}}",
                           "training.loss_function of your own")],
)  # fmt: skip
def test_what_would_change_the_network_is_refused_in_a_line(tmp_path: Path, older: str, advice: str) -> None:
    with pytest.raises(ConfigError, match=r"unknown (key|section); give ") as refused:
        loaded(tmp_path, older)
    assert advice in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("limit", "expected"), [("2", ["sst", "sss"]), ("null", ["sst", "sss", "hi"]), ("9", ["sst", "sss", "hi"])]
)
def test_the_first_input_features(tmp_path: Path, limit: str, expected: list[str]) -> None:
    text = f"variables: {{input_variables: [sst, sss, hi], max_input_features: {limit}}}"
    assert loaded(tmp_path, text).config.variables.input_variables == expected


def test_a_number_of_features_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_input_features: unknown key"):
        loaded(tmp_path, "variables: {max_input_features: many}")


@pytest.mark.parametrize(
    "key", ["domain: {min_ice_concentration: 0.1}", "variables: {max_input_features: null}",
            "training: {use_log_scale_loss: true}"],
)  # fmt: skip
def test_a_deep_network_of_such_a_file_is_of_gelu_unless_said(tmp_path: Path, key: str) -> None:
    deep = f"{key}\nmodel: {{hidden_size: 64, hidden_layers: 3}}\n"
    found = loaded(tmp_path, deep)
    assert found.config.network.hidden_activation == "gelu"
    assert any(line.startswith("model.hidden_activation=gelu: implied by ") for line in found.notices)
    assert loaded(tmp_path, deep, "model.hidden_activation=relu").config.network.hidden_activation == "relu"
    own = deep.replace(key, "training: {epochs: 3}")
    assert loaded(tmp_path, own).config.network.hidden_activation != "gelu"


def test_a_prepared_table_with_a_dictionary_beside_its_arrays(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "salt.npz",
        inputs=np.ones((4, 6), np.float32),
        targets=np.ones((4, 3), np.float32),
        metadata=np.array({"input_size": 6}, dtype=object),
    )
    config = loaded(tmp_path, COLUMNS, f"data.data_path={tmp_path / 'salt.npz'}").config
    source = open_source(selection_of(config))
    assert source.input_names == tuple(config.variables.input_variables)
    assert source.num_points == 4


@pytest.mark.parametrize(
    ("mode", "bound", "expected"),
    [("sea_ice", "0.25", [0.5, 1.0]), ("ocean", "0.25", [0.0, 0.125]), ("sea_ice", "0.125", [0.5, 1.0]),
     ("ocean", "0.125", [0.0]), ("both", "0.25", [0.0, 0.125, 0.5, 1.0]), ("ocean", "null", [0.0, 0.125, 0.5, 1.0]),
     ("sea_ice", "null", [0.125, 0.5, 1.0])],
)  # fmt: skip
def test_the_least_ice_bounds_sea_ice_below_and_the_ocean_above(
    tmp_path: Path, mode: str, bound: str, expected: list[float]
) -> None:
    with netCDF4.Dataset(str(tmp_path / "ice.nc"), "w") as dataset:
        dataset.createDimension("nj", 1)
        dataset.createDimension("ni", 5)
        for name, row in {"aice_h": [0, 0.125, 0.5, 1, 0.5], "x": range(5), "umask": [1, 1, 1, 1, 0]}.items():
            dataset.createVariable(name, "f4", ("nj", "ni"))[:] = [[*row]]
    text = f"""
variables: {{input_variables: [x], output_variables: [aice_h]}}
domain: {{mask_mode: {mode}, min_ice_concentration: {bound}}}
data: {{data_path: {tmp_path / "ice.nc"}}}
"""
    assert [*_all_samples(open_source(selection_of(loaded(tmp_path, text).config))).targets[:, 0]] == expected


def _all_samples(source: SampleSource) -> Samples:
    return source.read(source.chunks[0])


def test_without_ice_the_bound_that_is_not_applied_is_named(tmp_path: Path) -> None:
    with netCDF4.Dataset(str(tmp_path / "x.nc"), "w") as dataset:
        dataset.createDimension("ni", 3)
        dataset.createVariable("x", "f4", ("ni",))[:] = 1
    text = "variables: {input_variables: [x], output_variables: [aice_h]}\n"
    text += f"domain: {{mask_mode: ocean, min_ice_concentration: 0.25}}\ndata: {{data_path: {tmp_path / 'x.nc'}}}\n"
    source = open_source(selection_of(loaded(tmp_path, text).config), num_predicted=1)
    assert any("the condition aice < 0.25 (domain.mask_mode=ocean) is not applied" in line for line in source.notices)
