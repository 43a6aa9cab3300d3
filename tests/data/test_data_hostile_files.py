"""Files made to deceive: one line each, little memory, nothing read that is not theirs, no name a terminal obeys."""

from __future__ import annotations

import cProfile
import os
import pstats
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr
from conftest import TIMEOUT_S
from field_files import config_of
from hostile_files import ESCAPES, HOSTILE, zarr_3

from mpitrain.data.formats.open import open_field_file
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import DataError, MpitrainError

MOST_BYTES = 10**9
# Prints what is said of a file, and the memory that it took.
WORKER = """
import resource, sys
from pathlib import Path
from test_data_hostile_files import said_of
print(said_of(Path(sys.argv[1])))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def said_of(path: Path) -> str:
    """Open a file and read all of its variables, as a run and `data inspect` do; return what is said of it."""
    said = []
    try:
        file = open_field_file(path)
        said = [f"variable {name!r} is not read: {why}" for name, why in file.refused.items()]
        for name, info in file.variables.items():
            if info.is_text:
                said.append(f"variable {name!r} holds text, expected numbers")
            else:
                file.read_stored(name, tuple(slice(None) for _ in info.shape))
    except MpitrainError as error:
        said.append(str(error))
    assert all(line.isprintable() for line in said), said
    return "; ".join(said)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs:UserWarning")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_named_in_a_line(tmp_path: Path, name: str) -> None:
    file, write, what = HOSTILE[name]
    said = said_of(write(tmp_path / file))
    assert said == "" if what is None else re.search(what, said), said


@pytest.mark.lab
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_takes_little(tmp_path: Path, name: str) -> None:
    file, write, _ = HOSTILE[name]
    path = write(tmp_path / file)
    assert sum(one.stat().st_size for one in [path, *path.rglob("*")]) < 10 * 10**6
    done = subprocess.run(
        [sys.executable, "-c", WORKER, path], capture_output=True, text=True, timeout=TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout.splitlines()[-1])
    assert peak < MOST_BYTES, f"{peak / 1e6:.0f} MB"


def test_no_name_of_a_store_reaches_the_terminal_as_it_is(tmp_path: Path) -> None:
    path = zarr_3(tmp_path / "f.zarr", dimension_names=[ESCAPES, "ni"], attributes={"units": ESCAPES, ESCAPES: 1})
    zarr.open_group(str(path), mode="a").create_array(ESCAPES.replace("/", ""), shape=(2,), dtype="f4")
    file = open_field_file(path)
    texts = [text for info in file.variables.values() for text in (info.name, *info.dimensions, *info.attributes)]
    assert len(file.variables) == 2
    assert any("x1b" in text for text in texts)
    assert all(text.isprintable() for text in texts), texts
    assert file.variables["x"].units.isprintable()


def test_what_links_inside_of_a_store_is_read(tmp_path: Path) -> None:
    path = zarr_3(tmp_path / "f.zarr")
    chunk = path / "x" / "c" / "0" / "0"
    chunk.rename(path / "x" / "moved")
    chunk.symlink_to(path / "x" / "moved")
    assert (open_field_file(path).read_stored("x", (slice(None), slice(None))) == 1).all()


def test_variables_that_fit_one_by_one_may_not_fit_together(tmp_path: Path) -> None:
    names = [f"v{number}" for number in range(20)]
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for name in names:
            file.create_dataset(name, shape=(10, 1000, 1000), dtype="f4", chunks=(1, 1000, 1000), fillvalue=1.0)
    few = f"variables.input_variables=[{names[0]}]", f"variables.output_variables=[{names[-1]}]"
    open_source(selection_of(config_of(tmp_path / "f.h5", *few)))
    every = f"variables.input_variables=[{','.join(names[:-1])}]", few[1]
    with pytest.raises(
        DataError, match="the variables that are read cannot all be in the file: it claims 800000000 bytes"
    ):
        open_source(selection_of(config_of(tmp_path / "f.h5", *every)))


def _calls_to_open(folder: Path, kind: str, count: int) -> int:
    """Return how many functions are called to open a file of so many variables, all of which are read."""
    path, values = folder / f"{kind}{count}", np.zeros((2, 3), "f4")
    names = [f"v{number}" for number in range(count)]
    if kind == "zarr":
        group = zarr.open_group(str(path), mode="w")
        for name in names:
            group.create_array(name, shape=(2, 3), dtype="f4")[:] = 1.0
    elif kind == "groups":
        with h5py.File(path, "w") as file:
            for name in names:
                file[f"g/{name}"] = values
    else:
        import netCDF4

        with netCDF4.Dataset(path, "w") as file:
            file.createDimension("time", 2)
            file.createDimension("x", 3)
            for name in names:
                file.createVariable(name, "f4", ("time", "x"))[:] = values
    words = f"variables.input_variables=[{','.join(names[:-1])}]", f"variables.output_variables=[{names[-1]}]"
    selection = selection_of(config_of(path, *words))
    with cProfile.Profile() as profile:
        open_source(selection).read_all()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["netcdf", "groups", "zarr"])
def test_the_work_to_open_a_file_grows_with_its_variables_alone(tmp_path: Path, kind: str) -> None:
    """Counted in calls of functions, which other work on this computer does not change: four times for four times."""
    if kind == "zarr":
        _calls_to_open(tmp_path, kind, 5)  # what it imports
    few, many = (_calls_to_open(tmp_path, kind, count) for count in (75, 300))
    assert many < 5 * few, (few, many)


def test_levels_are_found_in_time_that_grows_with_them(tmp_path: Path) -> None:
    import netCDF4

    def calls(count: int) -> int:
        path = tmp_path / f"{count}.nc"
        with netCDF4.Dataset(path, "w") as file:
            for name, size in (("time", 2), ("z", count), ("x", 3)):
                file.createDimension(name, size)
            file.createVariable("z", "f8", ("z",))[:] = np.arange(count)
            file.createVariable("v", "f4", ("time", "z", "x"))[:] = 1.0
            file.createVariable("y", "f4", ("time", "x"))[:] = 1.0
        words = "variables.input_variables=['v[z=:]']", "variables.output_variables=[y]"
        with cProfile.Profile() as profile:
            open_source(selection_of(config_of(path, *words))).read_all()
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

    few, many = calls(75), calls(300)
    assert many < 5 * few, (few, many)


def test_a_library_that_never_comes_back_ends_in_a_line(tmp_path: Path) -> None:
    """As netCDF's does in one damaged file of a thousand."""
    (tmp_path / "f.npz").write_bytes(b"")
    program = (
        "import sys; from pathlib import Path; from mpitrain.data.formats import open as opening\n"
        "def endless(path, reading, on_built):\n    while True: pass\n"
        "opening.MOST_CPU_S, opening.open_field_file = 0.3, endless\n"
        "with opening.opened(Path(sys.argv[1])): pass\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path / "f.npz"], capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == 2
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith(f"mpitrain: error: {tmp_path / 'f.npz'}: damaged: its library does not finish reading it")
