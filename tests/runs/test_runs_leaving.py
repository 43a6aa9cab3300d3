"""What ranks load, and when they leave: at the end the root draws alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, launch

PROGRAM = str(Path(__file__).with_name("leaving_program.py"))
# What reads files, and what draws.
OF_READERS = {"netCDF4", "h5py", "matplotlib", "pandas", "xarray"}


@pytest.mark.mpi(ranks=3)
def test_ranks_leave_before_the_report_and_load_no_reader_without_a_share_of_the_files(
    tmp_path: Path, small_history: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    words = ["--data", str(small_history), "--epochs", "1"]
    done = launch([PROGRAM, str(notes), *words], 3, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (notes / "left").read_text().split() == ["process-1", "process-2"]
    # One small file is one chunk, which the last rank reads; the root has opened it.
    loaded = [set((notes / f"loaded-{rank}").read_text().split()) for rank in range(3)]
    assert [sorted(names & OF_READERS) for names in loaded] == [["h5py", "netCDF4"], [], ["h5py", "netCDF4"]]


PROFILED = "import sys; sys.setprofile(lambda *_: None); "
LEAVING = """
import atexit, os, torch
from mpitrain.__main__ import leave
class Last:
    def __del__(self, write=os.write):
        write(1, b"taken apart\\n")
last = Last()
atexit.register(lambda: print("at its end", flush=True))
leave(5)
"""


@pytest.mark.parametrize(("before", "ends_by_python"), [("", False), (PROFILED, True)])
def test_a_process_leaves_with_its_code_after_all_that_was_to_be_done(before: str, ends_by_python: bool) -> None:
    """A profiler writes when Python ends: then Python does end."""
    done = subprocess.run(
        [sys.executable, "-c", before + LEAVING], capture_output=True, text=True, check=False, timeout=TIMEOUT_S
    )
    assert done.returncode == 5, done.stderr
    assert done.stdout.splitlines() == ["at its end", *(["taken apart"] if ends_by_python else [])]
