"""Sixty-four members: one table on any number of ranks and after a kill, and each hash that of the member alone."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, launch
from test_ensemble_runs import OPENMPI, SMALL, ensemble, hashes_of, start

MANY = [*SMALL, "ensemble.members=64", "training.epochs=2"]
# Trains the members of the folder that it is given, one after the other, each as a run of its own.
ALONE = """
import sys
from pathlib import Path
from mpitrain.cli.main import main
folder, alone = map(Path, sys.argv[1:])
for member in sorted((folder / "members").iterdir()):
    code = main(["train", str(member / "config.yaml"), f"output.model_dir={alone / member.name}"])
    assert code == 0, member
"""


@pytest.fixture(scope="module")
def many(
    tmp_path_factory: pytest.TempPathFactory, small_history: Path, request: pytest.FixtureRequest
) -> tuple[Path, list[str]]:
    """An ensemble of 64 members on one rank, and its settings."""
    if not request.config.getoption("--full"):
        pytest.skip("with --full")
    folder, words = tmp_path_factory.mktemp("many") / "one", [f"data.data_path={small_history}", *MANY]
    done = ensemble(None, folder, *words)
    assert done.returncode == 0, done.stderr
    assert len(set(hashes_of(folder))) == 64
    return folder, words


def test_each_is_the_member_alone(many, tmp_path):
    folder, _ = many
    done = launch(["-c", ALONE, str(folder), str(tmp_path)])
    assert done.returncode == 0, done.stderr
    pages = [(tmp_path / f"{number:04d}/report.html").read_text() for number in range(64)]
    assert [re.findall(r"\b[0-9a-f]{64}\b", page)[0] for page in pages] == hashes_of(folder)


@pytest.mark.lab
@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_the_table_is_the_same_on_any_number_of_ranks(many, tmp_path, num_ranks):
    folder, words = many
    done = ensemble(num_ranks, tmp_path / "many", *words)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "many/ensemble.csv").read_text() == (folder / "ensemble.csv").read_text()


@pytest.mark.lab
@pytest.mark.skipif(OPENMPI is None, reason="needs MPITRAIN_OPENMPI_PYTHON")
@pytest.mark.parametrize("num_ranks", [2, 8])
def test_the_table_is_the_same_with_open_mpi(many, tmp_path, num_ranks):
    folder, words = many
    done = ensemble(num_ranks, tmp_path / "many", *words, python=str(OPENMPI))
    assert done.returncode == 0, done.stderr
    assert hashes_of(tmp_path / "many") == hashes_of(folder)


@pytest.mark.lab
def test_killed_and_resumed_on_other_numbers_of_ranks(many, tmp_path):
    """Killed twice, on two and on eight ranks, and ended on three."""
    expected, words = many
    folder, ended = tmp_path / "ens", 0
    for num_ranks in (2, 8):
        running = start(num_ranks, folder, *words, *(["--resume"] if ended else []))
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(list(folder.glob("members/*/member.json"))) < ended + 10 and running.poll() is None:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=TIMEOUT_S)
        ended = len(list(folder.glob("members/*/member.json")))
        assert 0 < ended < 64
    assert launch(["-m", "mpitrain", "ensemble", f"output.model_dir={folder}", "--resume"], 3).returncode == 0
    assert (folder / "ensemble.csv").read_text() == (expected / "ensemble.csv").read_text()
