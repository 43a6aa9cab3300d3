"""What the tests of predictions share: networks with known weights as files, and predictions without a launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import torch
from conftest import REFERENCE_CASE
from history_samples import read_samples
from networks import build_icenet, network_settings
from played_ranks import on_played_ranks, played_ranks_of

from mpitrain.config import RunConfig, load_run_config
from mpitrain.data.describe.names import CICE_INPUTS, CICE_TARGET
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.inference.output_grid import Layout
from mpitrain.inference.predictor import Prediction, predict_to_file
from mpitrain.models.build import build_model
from mpitrain.models.files.initial_weights import load_initial_weights
from mpitrain.models.files.stored_network import load_network
from mpitrain.models.files.torchscript import ModelDescription, save_model, save_normalization
from mpitrain.models.icenet import IceNet

HISTORY = REFERENCE_CASE / "cice_history.nc"
XY = ("variables.input_variables=[x, z]", "variables.output_variables=[y]", "domain.mask_mode=all")
DERIVATIVES = ("dcdtair", "dcdtsfc", "dcdt", "dcds", "dcdhs", "dcdhi", "dcdsi")


def golden_icenet() -> IceNet:
    """IceNet with the weights of the original program on one rank, and the moments of its samples by its formula."""
    model = build_icenet(7, 16, "none", seed=0)
    load_initial_weights(model, REFERENCE_CASE / "weights_np1.nc")
    inputs = torch.from_numpy(read_samples(HISTORY, "north", True).inputs)
    mean = inputs.sum(dim=0) / len(inputs)
    model.set_normalization(mean, torch.sqrt(inputs.pow(2).sum(dim=0) / len(inputs) - mean.pow(2)))
    return model.eval()


def save(
    model: torch.nn.Module, path: Path, inputs: tuple[str, ...] = CICE_INPUTS, targets: tuple[str, ...] = (CICE_TARGET,)
) -> Path:
    """Write a model as a run does."""
    save_model(model, path, ModelDescription(inputs, targets))
    save_normalization(model.get_buffer("input_mean"), model.get_buffer("input_std"), path)
    return path


def mlp(num_inputs: int, num_outputs: int = 1, **settings: Any) -> torch.nn.Module:
    """A small network with statistics that are not 0 and 1."""
    section = network_settings(**{"name": "mlp", "hidden_size": 8, "hidden_layers": 2, **settings})
    model: Any = build_model(section, num_inputs, num_outputs, seed=5)
    ones = torch.ones(num_inputs)
    model.set_normalization(0.5 * ones, 3 * ones, torch.full((num_outputs,), 0.25), torch.full((num_outputs,), 2.0))
    return model.eval()


def write_grid(path: Path, num_times: int = 3, first_day: int = 0, since: str = "2000-01-01") -> Path:
    """x, y, z on a (time, lat, lon) grid of 4 x 5 with land at two points and a hole in x and in y."""
    shape, random = (num_times, 4, 5), np.random.default_rng(first_day)
    values = {name: random.normal(size=shape).astype("f4") for name in "xyz"}
    for name in "xyz":
        values[name][:, 0, :2] = 1e30
    values["x"][1, 2, 2], values["y"][1, 3, 3] = np.nan, np.nan
    with netCDF4.Dataset(str(path), "w") as dataset:
        for name, size in (("time", num_times), ("lat", 4), ("lon", 5)):
            dataset.createDimension(name, size)
        for name, units, numbers in (
            ("time", f"days since {since}", np.arange(num_times) + first_day),
            ("lat", "degrees_north", [10.0, 20.0, 30.0, 40.0]),
            ("lon", "degrees_east", [0.0, 1.0, 2.0, 3.0, 4.0]),
        ):
            variable = dataset.createVariable(name, "f8", (name,))
            variable.units = units
            variable[:] = numbers
        for name, array in values.items():
            variable = dataset.createVariable(name, "f4", ("time", "lat", "lon"), chunksizes=(1, 4, 5))
            variable.units = {"x": "m/s", "y": "K", "z": "m"}[name]
            variable[:] = array
    return path


def predict_played(
    model: Path,
    config: RunConfig,
    output: Path,
    num_ranks: int = 1,
    with_jacobian: bool = True,
    chunk_bytes: int = 2**20,
    layout: Layout = "auto",
) -> Prediction:
    """Predict on ranks that are threads of this process (more than one: with data that threads may read)."""

    def body(communicator: Any) -> Prediction:
        ranks = played_ranks_of(communicator)
        network = load_network(model)
        source = ranks.on_root(lambda: open_source(selection_of(config), chunk_bytes, network.num_outputs))
        return predict_to_file(network, source, output, ranks, with_jacobian, written_as=layout)

    return on_played_ranks(num_ranks, body)[0]


def config_of(path: Path | list[str], *settings: str) -> RunConfig:
    """Settings for data at `path`."""
    return load_run_config(None, [f"data.data_path={path}", *settings]).config


def read(path: Path) -> dict[str, np.ndarray]:
    """All variables as stored."""
    with netCDF4.Dataset(str(path)) as dataset:
        dataset.set_auto_maskandscale(False)
        return {name: np.array(variable[...]) for name, variable in dataset.variables.items()}


def copy_without(path: Path, *names: str) -> Path:
    """Copy a file without some of its variables, beside it; return the copy."""
    copy = path.with_name(f"without.{path.name}")
    with netCDF4.Dataset(str(path)) as whole, netCDF4.Dataset(str(copy), "w") as dataset:
        for name, dimension in whole.dimensions.items():
            dataset.createDimension(name, len(dimension))
        for name, variable in whole.variables.items():
            if name in names:
                continue
            variable.set_auto_maskandscale(False)
            attributes = {key: variable.getncattr(key) for key in variable.ncattrs()}
            fill = attributes.pop("_FillValue", None)
            new = dataset.createVariable(name, variable.dtype, variable.dimensions, fill_value=fill)
            new.set_auto_maskandscale(False)
            new.setncatts(attributes)
            new[...] = variable[...]
    return copy


def left_behind(folder: Path) -> list[str]:
    """Names of the files in a folder, temporary ones too."""
    return sorted(path.name for path in folder.iterdir())
