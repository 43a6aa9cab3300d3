"""Whether an exported network answers the same in the C++ program, where that is built."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from mpitrain.config import DomainSection, RunConfig
from mpitrain.data.samples import Samples
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import Selection
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import DataError, MissingDependencyError, OutputError
from mpitrain.models.icenet import IceNet
from mpitrain.models.jacobian import scalar_jacobian
from mpitrain.native.build import build_program, program_path
from mpitrain.native.program import run_under_mpi
from mpitrain.native.toolchain import Toolchain, find_toolchain
from mpitrain.synthetic.history import write_synthetic_history

_DERIVATIVES = ("dcdtair", "dcdtsfc", "dcdt", "dcds", "dcdhs", "dcdhi", "dcdsi")
# Its loops and torch's differ in nothing, but a rebuilt torch may: rounding is not a fault of the file.
TOLERANCE = 1e-6


def check_from_cpp(path: Path, model: nn.Module, config: RunConfig, source: SampleSource | None, build: bool) -> str:
    """Let the C++ program predict with `path` and compare; return a line that says what was found.

    Raises OutputError where it fails or answers otherwise. Where the program is not built, it is built only if `build`.
    """
    reason = _not_its_network(model)
    if reason:
        return f"C++: not checked: {reason}"
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
        history = _history(source, config, Path(folder))
        found = _predict(toolchain, program, path, history, config, Path(folder) / "prediction.nc")
        return _compared(path, model, history, config, found)


def _not_its_network(model: nn.Module) -> str | None:
    is_its_own = isinstance(model, IceNet) and model.input_mean.numel() == 7 and model.fc2.out_features == 1
    if not is_its_own:
        return "the C++ program knows IceNet of 7 inputs only (torch::jit::load reads any model)"
    if not isinstance(model.output_activation, nn.Sigmoid):
        return "the C++ program's predictions end in a sigmoid"
    if model.get_buffer("input_mean").dtype != torch.float32:
        return "the C++ program predicts in float32"
    return None


def _history(source: SampleSource | None, config: RunConfig, folder: Path) -> Path:
    """Return a CICE history file: the run's own, if it is one of one file, else a synthetic one."""
    if source is not None and len(source.files) == 1 and source.files[0].path.suffix == ".nc":
        try:
            _read(source.files[0].path, config)
            return source.files[0].path
        except DataError:
            pass
    return write_synthetic_history(folder / "history.nc", seed=config.seed).path


def _read(history: Path, config: RunConfig) -> Samples:
    domain = DomainSection(pole=_pole(config))
    return open_source(Selection(files=(str(history),), domain=domain)).read_all()


def _pole(config: RunConfig) -> Literal["north", "south"]:
    return config.domain.pole if config.domain.pole != "both" else "north"


def _predict(
    toolchain: Toolchain, program: Path, path: Path, history: Path, config: RunConfig, output: Path
) -> dict[str, Any]:
    import netCDF4

    flags = ["--predict-only", "--history", str(history), "--model", str(path), "--prediction", str(output)]
    flags += ["--pole", _pole(config)]
    if config.model.hidden_activation not in (None, "none"):
        flags += ["--hidden-activation", str(config.model.hidden_activation)]
    run_under_mpi(toolchain.mpirun, 1, [str(program), *flags], timeout_s=300.0)
    with netCDF4.Dataset(str(output)) as dataset:
        dataset.set_auto_maskandscale(False)
        return {name: np.asarray(variable[:]) for name, variable in dataset.variables.items()}


def _compared(path: Path, model: nn.Module, history: Path, config: RunConfig, found: dict[str, Any]) -> str:
    samples = _read(history, config)
    outputs, jacobian = scalar_jacobian(model, torch.from_numpy(samples.inputs))
    ours = dict(zip(("aice_ffnn", *_DERIVATIVES), (outputs.numpy(), *jacobian.numpy().T), strict=True))
    largest = 0.0
    for name, expected in ours.items():
        if found[name].shape != expected.shape:
            raise OutputError(f"{path}: C++ gives {found[name].shape} values of {name}, Python {expected.shape}")
        largest = max(largest, float(np.abs(found[name] - expected).max()))
    if not largest <= TOLERANCE:
        raise OutputError(f"{path}: C++ answers otherwise than Python, by up to {largest:.2g}; report this")
    how = "the same bits" if largest == 0 else f"the same to {largest:.1g}"
    return f"checked: C++ predicts {len(samples)} points and their 7 derivatives, {how}"
