"""What ranks load, and when they leave: at the end the root draws alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import launch

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
