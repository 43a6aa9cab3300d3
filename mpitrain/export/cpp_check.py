"""Comparison of an exported network's predictions in the C++ program, if it is built, with those in Python.

b  samples      F  input features
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from mpitrain.config import DomainSection, RunConfig
from mpitrain.data import (
    CICE_INPUTS,
    CICE_LATITUDE,
    CICE_LONGITUDE,
    CICE_OCEAN_MASK,
    CICE_TARGET,
    Samples,
    SampleSource,
    Selection,
    open_source,
)
from mpitrain.data.selection.settings import default_or_given_names
from mpitrain.errors import DataError, MissingDependencyError, OutputError
from mpitrain.models.activations import activation_name
from mpitrain.models.icenet import IceNet
from mpitrain.models.jacobian import scalar_jacobian
from mpitrain.native.build import build_program, program_path
from mpitrain.native.program import run_under_mpi
from mpitrain.native.toolchain import Toolchain, find_toolchain
from mpitrain.synthetic.history import write_history_fields, write_synthetic_history

_DERIVATIVES = ("dcdtair", "dcdtsfc", "dcdt", "dcds", "dcdhs", "dcdhi", "dcdsi")
Pole = Literal["north", "south"]
# The program repeats torch's operations, but another build of torch may round differently: no fault of the file.
TOLERANCE = 1e-6


def check_from_cpp(
    path: Path, model: nn.Module, config: RunConfig, source: SampleSource | None, inputs: torch.Tensor, build: bool
) -> str:
    """Predict with `path` in the C++ program and compare; return the result as one line.

    `inputs` (b, F) are used for a network whose inputs are not those that the program reads, or in another order.
    Raises OutputError if the program fails or predicts other values. If it is not built, it is built only if `build`.
    """
    reason = _not_its_network(model)
    if reason:
        return f"C++: not checked: {reason}"
    names = source.input_names if source is not None else default_or_given_names(config.variables)[0]
    pole: Pole = "south" if config.domain.pole == "south" else "north"
    file = source.files[0].path if source is not None and len(source.files) == 1 else None

    def history_in(folder: Path) -> Path:
        if names != CICE_INPUTS:
            return write_history_of(inputs, pole, folder / "history.nc")
        is_whole = file is not None and file.suffix == ".nc" and _has_measurements_alone(file, pole)
        return file if is_whole and file else write_synthetic_history(folder / "history.nc", seed=config.seed).path

    return _tried(path, model, pole, history_in, build) + _not_the_originals(model, names)


def _tried(path: Path, model: nn.Module, pole: Pole, history_in: Callable[[Path], Path], build: bool) -> str:
    """Predict with the program and compare, for the CICE history file that `history_in(folder)` writes or finds."""
    try:
        toolchain = find_toolchain()
    except MissingDependencyError as error:
        return f"C++: not checked: {error}"
    program = program_path(toolchain)
    if not program.exists():
        if not build:
            return "C++: not checked: the C++ program is not built; --build builds it"
        program = build_program(toolchain, lambda line: None)
    with tempfile.TemporaryDirectory() as folder:
        history = history_in(Path(folder))
        found = _predict(toolchain, program, path, model, history, pole, Path(folder) / "prediction.nc")
        return _compared(path, model, _read(history, pole), found)


def _not_its_network(model: nn.Module) -> str | None:
    is_its_own = isinstance(model, IceNet) and model.input_mean.numel() == 7 and model.fc2.out_features == 1
    if not is_its_own:
        return "the C++ program supports only IceNet with 7 inputs and 1 output (torch::jit::load reads any model)"
    if not isinstance(model.output_activation, nn.Sigmoid):
        return "the C++ program applies a sigmoid to its outputs"
    if model.get_buffer("input_mean").dtype != torch.float32:
        return "the C++ program predicts in float32"
    return None


def _hidden_activation(model: nn.Module) -> str:
    return activation_name(model.get_submodule("activation"))


def _not_the_originals(model: nn.Module, names: tuple[str, ...]) -> str:
    """Return why the original program, which has no flags, would predict other values, as text; "" if it would not."""
    reasons = []
    if _hidden_activation(model) != "none":
        reasons.append("has no activation between the layers")
    if names != CICE_INPUTS:
        reasons.append(f"reads {', '.join(CICE_INPUTS)} in this order, not {', '.join(names)}")
    if not reasons:
        return ""
    # It would load the file and the side file next to it, and predict wrong values without an error message.
    text = " and ".join(reasons)
    return f"; the original program would predict other values: it {text}; load this file with torch::jit::load"


def _has_measurements_alone(history: Path, pole: Pole) -> bool:
    """Return whether no selected point of a file has a fill value, which the program would read as a measurement."""
    try:
        return bool(np.isfinite(_read(history, pole).inputs).all())
    except DataError:
        return False


def _read(history: Path, pole: Pole) -> Samples:
    return open_source(Selection(files=(str(history),), domain=DomainSection(pole=pole))).read_all()


def write_history_of(inputs: torch.Tensor, pole: str, path: Path) -> Path:
    """Write a history file whose selected points are `inputs` (b, F), in the columns that the C++ program reads."""
    shape = (1, 1, len(inputs))
    grid = {CICE_LATITUDE: 80.0 if pole == "north" else -80.0, CICE_LONGITUDE: 0.0, CICE_OCEAN_MASK: 1.0}
    fields = {name: np.full(shape[1:], value) for name, value in grid.items()}
    fields[CICE_TARGET] = np.full(shape, 0.5)  # clean: neither 0 nor above 1
    fields |= {name: column.reshape(shape) for name, column in zip(CICE_INPUTS, inputs.numpy().T, strict=True)}
    write_history_fields(path, fields)
    return path


def _predict(
    toolchain: Toolchain, program: Path, path: Path, model: nn.Module, history: Path, pole: Pole, output: Path
) -> dict[str, Any]:
    import netCDF4

    flags = ["--predict-only", "--history", str(history), "--model", str(path), "--prediction", str(output)]
    flags += ["--pole", pole, "--hidden-activation", _hidden_activation(model)]
    run_under_mpi(toolchain.mpirun, 1, [str(program), *flags], timeout_s=300.0)
    with netCDF4.Dataset(str(output)) as dataset:
        dataset.set_auto_maskandscale(False)
        return {name: np.asarray(variable[:]) for name, variable in dataset.variables.items()}


def _compared(path: Path, model: nn.Module, samples: Samples, found: dict[str, Any]) -> str:
    outputs, jacobian = scalar_jacobian(model, torch.from_numpy(samples.inputs))
    ours = dict(zip(("aice_ffnn", *_DERIVATIVES), (outputs.numpy(), *jacobian.numpy().T), strict=True))
    largest = 0.0
    for name, expected in ours.items():
        if found[name].shape != expected.shape:
            raise OutputError(f"{path}: C++ predicts {found[name].shape} values of {name}, Python {expected.shape}")
        largest = max(largest, float(np.abs(found[name] - expected).max()))
    if not largest <= TOLERANCE:
        raise OutputError(f"{path}: C++ and Python predict values that differ by up to {largest:.2g}; report this")
    result = "the same bits" if largest == 0 else f"the same to {largest:.1g}"
    hidden = _hidden_activation(model)
    flag = "" if hidden == "none" else f" with --hidden-activation {hidden}"
    return f"checked: C++ predicts {len(samples)} points and their 7 derivatives{flag}, {result}"
