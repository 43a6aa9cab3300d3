"""What the tests of predictions share: networks with known weights as files, and predictions without a launch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import torch
from conftest import REFERENCE_CASE
from played_ranks import on_played_ranks, played_session

from mpitrain.config import RunConfig, load_run_config
from mpitrain.config.model_section import ModelSection
from mpitrain.data.history_file import INPUTS, TARGET
from mpitrain.data.samples import read_samples
from mpitrain.data.source import open_source
from mpitrain.models.build import build_model
from mpitrain.models.icenet import IceNet, build_icenet
from mpitrain.models.initial_weights import load_initial_weights
from mpitrain.models.stored_network import load_network
from mpitrain.models.torchscript import ModelDescription, save_model, save_normalization
from mpitrain.train.prediction import Prediction, predict_to_file

HISTORY = REFERENCE_CASE / "cice_history.nc"
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
    model: torch.nn.Module, path: Path, inputs: tuple[str, ...] = INPUTS, targets: tuple[str, ...] = (TARGET,)
) -> Path:
    """Write a model as a run does."""
    save_model(model, path, ModelDescription(inputs, targets))
    save_normalization(model.get_buffer("input_mean"), model.get_buffer("input_std"), path)
    return path


def mlp(num_inputs: int, num_outputs: int = 1, **settings: Any) -> torch.nn.Module:
    """A small network with statistics that are not 0 and 1."""
    section = ModelSection(**{"name": "mlp", "hidden_size": 8, "hidden_layers": 2, **settings})
    model: Any = build_model(section, num_inputs, num_outputs, seed=5)
    ones = torch.ones(num_inputs)
    model.set_normalization(0.5 * ones, 3 * ones, torch.full((num_outputs,), 0.25), torch.full((num_outputs,), 2.0))
    return model.eval()


def predict_played(
    model: Path,
    config: RunConfig,
    output: Path,
    num_ranks: int = 1,
    with_jacobian: bool = True,
    chunk_bytes: int = 2**20,
) -> Prediction:
    """Predict on ranks that are threads of this process (more than one: with data that threads may read)."""

    def body(communicator: Any) -> Prediction:
        session = played_session(communicator)
        network = load_network(model)
        source = session.on_root(lambda: open_source(config, chunk_bytes, network.num_outputs))
        return predict_to_file(network, source, output, session, with_jacobian)

    return on_played_ranks(num_ranks, body)[0]


def config_of(path: Path | list[str], *settings: str) -> RunConfig:
    """Settings for data at `path`."""
    return load_run_config(None, [f"data.data_path={path}", *settings]).config


def read(path: Path) -> dict[str, np.ndarray]:
    """All variables as stored."""
    with netCDF4.Dataset(str(path)) as dataset:
        dataset.set_auto_maskandscale(False)
        return {name: np.array(variable[...]) for name, variable in dataset.variables.items()}


def left_behind(folder: Path) -> list[str]:
    """Names of the files in a folder, temporary ones too."""
    return sorted(path.name for path in folder.iterdir())
