"""Restart files that another made: of other shapes than the library writes, and refused before they are read."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
from conftest import TIMEOUT_S
from settings_files import compiler_flags, settings

from mpitrain.datatools.collection import write_collection
from mpitrain.native.toolchain import find_next_to_python

PROGRAM = Path(__file__).parent / "programs" / "restarts.c"
# The sanitizer ends the program at the first byte that is not its own.
STRICT = [
    "-std=c99",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover",
]
FILE_FAILED = "-4"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    folder = tmp_path_factory.mktemp("restarts")
    write_collection(folder)
    (folder / "settings.yaml").write_text(settings(str(folder / "unused.nc"), 60))
    words = [str(find_next_to_python("mpicc")), *STRICT, str(PROGRAM), "-o", "restarts", *compiler_flags(folder)]
    subprocess.run(words, check=True, cwd=folder)

    def run(*words: str) -> str:
        environ = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # MPI's own
        done = subprocess.run(
            ["./restarts", "settings.yaml", *words],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr[:2000]
        return done.stdout.strip()

    return run


@pytest.fixture(scope="module")
def whole(run: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "whole.nc"
    assert run("write", str(path)).split()[0] == "0"
    assert run("read", str(path)).split()[0] == "0"
    return path


def rewritten(source: Path, path: Path, change: Callable[[str, np.ndarray], np.ndarray], **attributes: object) -> Path:
    """Copy a restart file with other values of its variables, and other attributes."""
    with netCDF4.Dataset(source) as old, netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_DATA") as new:
        for name, variable in old.variables.items():
            values = change(name, np.asarray(variable[:]))
            own = [f"{name}_{axis}" for axis in range(values.ndim)]
            same = values.shape == variable.shape
            dimensions = variable.dimensions if same else own
            for dimension, size in zip(dimensions, values.shape, strict=True):
                if dimension not in new.dimensions:
                    new.createDimension(dimension, size)
            new.createVariable(name, values.dtype, dimensions)[:] = values
        new.setncatts({name: old.getncattr(name) for name in old.ncattrs()} | attributes | {"checksum": "0" * 16})
    content = path.read_bytes()
    path.write_bytes(content.replace(b"0" * 16, fnv1a(content).encode(), 1))
    return path


def fnv1a(content: bytes) -> str:
    """The published function (Fowler, Noll, Vo) of 64 bits."""
    state = 0xCBF29CE484222325
    for byte in content:
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return f"{state:016x}"


NAMES = ("step", "stratum", "a", "c", "sum_digits", "square_digits", "ordered_range", "shown")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("more_axes", [1, 2])
def test_a_variable_of_more_axes_is_refused(
    run: Callable[..., str], whole: Path, tmp_path: Path, name: str, more_axes: int
) -> None:
    def change(one: str, values: np.ndarray) -> np.ndarray:
        return (
            np.broadcast_to(values[(..., *[None] * more_axes)], (*values.shape, *[50] * more_axes))
            if one == name
            else values
        )

    said = run("read", str(rewritten(whole, tmp_path / "r.nc", change)))
    assert said.split()[0] == FILE_FAILED, said


def test_numbers_of_other_counts_are_refused(run: Callable[..., str], whole: Path, tmp_path: Path) -> None:
    def same(_: str, values: np.ndarray) -> np.ndarray:
        return values

    assert run("read", str(rewritten(whole, tmp_path / "same.nc", same))).split()[0] == "0"
    many = rewritten(whole, tmp_path / "many.nc", same, samples_left_out=np.arange(10_000))
    assert run("read", str(many)).split()[0] == FILE_FAILED
    strata = rewritten(whole, tmp_path / "s.nc", lambda name, values: values + 2**30 if name == "stratum" else values)
    assert run("read", str(strata)).split()[0] == FILE_FAILED
    cut = Path(shutil.copy(whole, tmp_path / "cut.nc"))
    for length in range(0, whole.stat().st_size, 499):
        cut.write_bytes(whole.read_bytes()[:length])
        assert run("read", str(cut)).split()[0] in ("0", "-4", "-5")


def test_each_flipped_bit_is_noticed(run: Callable[..., str], whole: Path, tmp_path: Path, tries: Any) -> None:
    content = whole.read_bytes()
    stored = content[content.index(b"checksum") + 20 :][:16]
    assert stored.decode() == fnv1a(content.replace(stored, b"0" * 16))
    for place in np.random.default_rng(5).integers(8 * len(content), size=20 * tries(60)):
        flipped = bytearray(content)
        flipped[place // 8] ^= 1 << (place % 8)
        (tmp_path / "flipped.nc").write_bytes(flipped)
        assert run("read", str(tmp_path / "flipped.nc")).split()[0] == FILE_FAILED, f"bit {place}"


def test_a_device_stays_and_null_pointers_are_said(run: Callable[..., str], tmp_path: Path) -> None:
    assert run("write", "/dev/full").split()[0] == FILE_FAILED
    assert Path("/dev/full").is_char_device()
    assert run("null", "").startswith("-2 ")


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(
    run: Callable[..., str], whole: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes").write_text("mine")
    (tmp_path / "linked.nc.partial").symlink_to(tmp_path / "notes")
    assert run("write", str(tmp_path / "linked.nc")).split()[0] == "0"
    assert (tmp_path / "notes").read_text() == "mine"
    assert (tmp_path / "linked.nc").read_bytes() == whole.read_bytes()
