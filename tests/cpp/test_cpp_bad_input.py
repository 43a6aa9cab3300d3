"""Wrong input ends the C++ program on all ranks: exit status 2, one line that says what to do, nothing written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
from conftest import REFERENCE_CASE
from cpp_program import START, cpp_errors, cpp_program, run_cpp

HISTORY = REFERENCE_CASE / "cice_history.nc"
WEIGHTS = REFERENCE_CASE / "initial_weights.nc"


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    cpp_program()


def copy_but(target: Path, change: Callable[[str, np.ndarray], np.ndarray | None]) -> Path:
    """Copy the history with every variable changed; None leaves it out."""
    with netCDF4.Dataset(HISTORY) as old, netCDF4.Dataset(target, "w") as new:
        old.set_auto_maskandscale(False)
        for name, dimension in old.dimensions.items():
            new.createDimension(name, len(dimension))
        for name, variable in old.variables.items():
            values = change(name, variable[:])
            if values is not None:
                new.createVariable(name, values.dtype, variable.dimensions)[:] = values
    return target


def without_salinity(name: str, values: np.ndarray) -> np.ndarray | None:
    return None if name == "sss_h" else values


def one_sample(name: str, values: np.ndarray) -> np.ndarray:
    if name != "aice_h":
        return values
    alone = np.zeros_like(values)
    with netCDF4.Dataset(HISTORY) as dataset:
        j, i = np.argwhere((dataset["umask"][:] == 1) & (dataset["ULAT"][:] > 41))[0]
    alone[..., j, i] = 0.5
    return alone


def constant_temperature(name: str, values: np.ndarray) -> np.ndarray:
    return np.full_like(values, 4) if name == "sst_h" else values


def refused(folder: Path, *flags: Any, num_ranks: int = 2) -> str:
    """The program's one line; it must end by itself with status 2 and leave no file."""
    before = set(folder.rglob("*"))
    done = run_cpp(num_ranks, *map(str, flags))
    errors = cpp_errors(done)
    assert done.returncode == 2, done.stderr
    assert len(errors) == 1, done.stderr
    assert set(folder.rglob("*")) == before
    return errors[0].removeprefix("mpitrain_reference: error: ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_salinity, ("variable sss_h is missing",)),
        (one_sample, ("of 2 has no sample",)),
        (constant_temperature, ("sst_h", "variance")),
    ],
)
def test_a_history_file_that_cannot_serve(
    tmp_path: Path, change: Callable[[str, np.ndarray], np.ndarray | None], words: tuple[str, ...]
) -> None:
    history = copy_but(tmp_path / "history.nc", change)
    error = refused(tmp_path, "--history", history, "--initial-weights", WEIGHTS, "--trace", tmp_path / "trace.nc")
    assert all(word in error for word in words), error


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--history", "nowhere.nc", "--initial-weights", WEIGHTS], "nowhere.nc: cannot be read as NetCDF"),
        (["--history", __file__, "--initial-weights", WEIGHTS], "cannot be read as NetCDF"),
        (["--history", HISTORY, "--initial-weights", HISTORY], "fc1.weight is missing"),
        ([*START, "--histroy", "x"], "--histroy: unknown flag; --help"),
        ([*START, "--pole", "east"], "--pole east: not allowed; give north"),
        ([*START, "--epochs", "0"], "--epochs 0: not allowed; give a whole"),
        (["--history", HISTORY], "--initial-weights is missing"),
        (["--initial-weights", WEIGHTS], "--history is missing"),
    ],
)  # fmt: skip
def test_flags_and_files_that_cannot_serve(tmp_path: Path, flags: list[Any], message: str) -> None:
    assert message in refused(tmp_path, *flags, "--trace", tmp_path / "trace.nc")


def test_an_output_that_cannot_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    start = (*START, "--epochs", "1000000000")
    for flag in ("--trace", "--prediction", "--model-output"):
        path = tmp_path / "nowhere" / "out.nc"
        assert f"{path}: cannot be written" in refused(tmp_path, *start, flag, path)


def test_a_model_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"no archive")
    flags = ("--predict-only", "--history", HISTORY, "--prediction", tmp_path / "out.nc", "--model")
    assert "model.pt: cannot be read as a libtorch archive" in refused(tmp_path, *flags, tmp_path / "model.pt")
