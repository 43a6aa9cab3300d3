"""Wrong launches, as users make them: each says once what is wrong and how to fix it, with exit code 3, at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import find_mpirun
from refused_launches import MEETING, _no_launcher_variables, assert_refused, start  # noqa: F401  fixtures that pytest finds by name


@pytest.mark.mpi([2])
@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "0", "WORLD_SIZE": "4", **MEETING}, ("ranks is 2 (MPI) and 4 (RANK and", "unset RANK")),
        ({"RANK": "7", "WORLD_SIZE": "2", **MEETING}, ("RANK=7 with WORLD_SIZE=2: allowed are 0 to 1", "unset RANK")),
        ({"RANK": "1", "WORLD_SIZE": "2", **MEETING}, ("this process is rank 0 (MPI) and 1", "unset")),
    ],
    ids=["other size", "impossible rank", "other rank"],
)  # fmt: skip
def test_mpi_and_variables_that_contradict_it(tmp_path: Path, environ: dict[str, str], words: tuple[str, ...]) -> None:
    done = start([find_mpirun(), "-np", "2"], tmp_path / "run", environ)
    assert_refused(done, words, tmp_path / "run")
