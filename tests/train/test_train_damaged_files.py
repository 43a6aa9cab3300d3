"""Damaged files: one line each, whatever they do to the library that reads them."""

from __future__ import annotations

import re
import time
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
from conftest import TIMEOUT_S, launch
from many_runs import run_many

from mpitrain.data.formats.open import open_field_file
from mpitrain.errors import MpitrainError


def write_table(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["inputs"] = np.linspace(-1, 1, 60, dtype="f4").reshape(20, 3)
        file["targets"] = np.linspace(0, 1, 20, dtype="f4")


def declared_without_shape(path: Path) -> None:
    write_table(path)
    with h5py.File(path, "a") as file:
        file["empty"] = h5py.Empty("f4")
        file["inputs"].attrs["nothing"] = h5py.Empty("f4")


def sparse(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("inputs", shape=(10**15, 3), dtype="f4", chunks=(1000, 3))
        file.create_dataset("targets", shape=(10**15,), dtype="f4", chunks=(1000,))


def names_that_are_not_text(path: Path) -> None:
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_DATA") as file:
        file.createDimension("n", 4)
        file.createVariable("temperature", "f4", ("n",))[:] = 1
    path.write_bytes(path.read_bytes().replace(b"temperature", b"\xff\xfetemperatu"))


def dimensions_without_end(path: Path) -> None:
    """The library goes through them for hours."""
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("n", 4)
        file.createVariable("t", "f4", ("n",))[:] = 1
    content = bytearray(path.read_bytes())
    content[12:16] = b"\x7f\xff\xff\xff"
    path.write_bytes(content)


def damaged_metadata(path: Path) -> None:
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("n", 4)
        file.createVariable("t", "f4", ("n",))[:] = 1
    content = bytearray(path.read_bytes())
    for position in range(200, 700, 7):
        content[position] ^= 0x55
    path.write_bytes(content)


def claims_25_tib(path: Path) -> None:
    whole = BytesIO()
    np.save(whole, np.zeros((4, 2), "f4"))
    header = whole.getvalue().replace(b"(4, 2), }     ", b"(4, 1717986918400), }".ljust(14)[:21])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inputs.npy", header)
        archive.writestr("targets.npy", whole.getvalue())


DAMAGED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "sparse": ("x.h5", sparse, r"'inputs' is not read: it claims 12000000000000000 bytes in a file of \d+"),
    "names not text": ("x.nc", names_that_are_not_text, "cannot be read as NetCDF"),
    "endless header": ("x.nc", dimensions_without_end, r"the header is damaged: 2147483647 items in a file of"),
    "metadata": ("x.nc", damaged_metadata, r"cannot be read as NetCDF"),
    "25 TiB": ("x.npz", claims_25_tib, r"cannot be read \(.*\); give an \.npz"),
}


def test_runs_say_one_line_each(tmp_path: Path) -> None:
    jobs = []
    for number, (file, write, _) in enumerate(DAMAGED.values()):
        (tmp_path / f"{number}").mkdir()
        write(tmp_path / f"{number}" / file)
        jobs.append(
            ["train", f"output.model_dir={tmp_path / 'run'}", f"data.data_path={tmp_path / f'{number}' / file}"]
        )
    for (name, (_, _, what)), outcome in zip(DAMAGED.items(), run_many(tmp_path / "logs", 2, jobs), strict=True):
        assert outcome.codes == [2, 2], f"{name}: {outcome.stderr}"
        (line,) = outcome.our_lines
        assert re.search(what, line), line
        assert "Traceback" not in outcome.stderr
        assert not (tmp_path / "run").exists()


# Stands for a library that crashes: of ten thousand damaged files none does that to those of today.
CRASHES = """
import os, signal
from mpitrain.data.formats import open as opening
from mpitrain.comm.agent.shared_memory import shared_memory_of
def crash(path):
    print("HOLDS", *shared_memory_of(os.getpid()), flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
opening.format_of = crash
import sys
from mpitrain.cli.main import main
sys.exit(main())
"""


def test_a_library_that_crashes_ends_all_ranks_with_a_line_that_names_the_file(tmp_path: Path) -> None:
    write_table(tmp_path / "x.h5")
    done = launch(["-c", CRASHES, "train", f"data.data_path={tmp_path / 'x.h5'}", "compute.device=cpu"], 2, tmp_path)
    assert done.returncode != 0
    (line,) = done.our_lines
    # The launcher may end the other rank before anybody has seen the first one's end.
    assert re.search(
        r"rank 0 on \S+ \(process \d+\).* exited without an error message( at the same moment)? while opening", line
    )
    assert f"{tmp_path / 'x.h5'}: the library that reads it crashed" in line
    assert "HOLDS" in done.stdout
    held = {word for line in done.stdout.splitlines() if line.startswith("HOLDS") for word in line.split()[1:]}
    deadline_s = time.monotonic() + TIMEOUT_S
    while any(path for name in held for path in Path("/dev/shm").glob(f"{name}*")):  # until the agent has ended
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


@pytest.mark.lab
def test_inspect_says_one_line_at_once(tmp_path: Path) -> None:
    jobs = []
    for number, (file, write, _) in enumerate(DAMAGED.values()):
        (tmp_path / f"{number}").mkdir()
        write(tmp_path / f"{number}" / file)
        jobs.append(["data", "inspect", str(tmp_path / f"{number}" / file)])
    outcomes = run_many(tmp_path / "logs", None, jobs)
    for (name, (_, _, what)), outcome in zip(DAMAGED.items(), outcomes, strict=True):
        assert "Traceback" not in outcome.stderr
        if name == "sparse":
            assert outcome.codes == [0], outcome.stderr
            assert "not read: inputs: it claims 12000000000000000 bytes" in outcome.stdout
        else:
            assert outcome.codes == [2], outcome.stderr
            (line,) = outcome.our_lines
            assert re.search(what, line), line


def test_what_is_declared_without_a_shape_is_left_out(tmp_path: Path) -> None:
    declared_without_shape(tmp_path / "x.h5")
    file = open_field_file(tmp_path / "x.h5")
    assert set(file.variables) == {"inputs", "targets"}
    assert "no shape and no values" in file.refused["empty"]


HOSTILE_NAME = "sst\x1b[31m\x07\nmpitrain: done"


@pytest.mark.lab
def test_no_name_of_a_file_reaches_the_terminal_as_it_is(tmp_path: Path) -> None:
    write_table(tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5", "a") as file:
        file[HOSTILE_NAME] = np.zeros(20)
        file[HOSTILE_NAME].attrs["units"] = "K\x1b]0;owned\x07"
        file["link"] = h5py.ExternalLink("\x1b[2J.h5", "/x")
        file["soft"] = h5py.SoftLink("/\x1b[2J")
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("n", 4)
        file.createVariable("t", "f4", ("n",)).units = "K\x1b[31m"
    jobs = [
        ["data", "inspect", str(tmp_path / "x.h5")],
        ["data", "inspect", str(tmp_path / "x.nc")],
        ["data", "inspect", str(tmp_path / "x.h5"), "--json"],
        ["data", "inspect", str(tmp_path / "x.h5"), "variables.input_variables=[a\x1b]"],
    ]
    for done in run_many(tmp_path / "logs", None, jobs):
        assert "x1b" in done.stdout + done.stderr, "else nothing hostile was shown, and this says nothing"
        assert all(line.isprintable() for line in (done.stdout + done.stderr).splitlines()), done
        assert not any(line.startswith("mpitrain: done") for line in done.stdout.splitlines())
    assert "\x1b" not in str(MpitrainError("\x1b[2J"))
