"""Every member is a run: the same bits alone, on any number of ranks, in any groups, after a kill, beside a failure."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, Finished, find_mpirun, launch, launcher_environment

from mpitrain.runs.reproduction.stored_record import read_record

OPENMPI = os.environ.get("MPITRAIN_OPENMPI_PYTHON")
SEEDS_AND_FOLDS = ["ensemble.members=2", "ensemble.folds=2", "training.epochs=2"]
SMALL = ["model.name=mlp", "model.hidden_size=8"]


def ensemble(num_ranks: int | None, folder: Path, *words: str, **options: object) -> Finished:
    return launch(["-m", "mpitrain", "ensemble", f"output.model_dir={folder}", *words], num_ranks, **options)  # type: ignore[arg-type]


def table_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "ensemble.csv").open() as file:
        return list(csv.DictReader(file))


def hashes_of(folder: Path) -> list[str]:
    return [row["weights_sha256"] for row in table_of(folder)]


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory, small_history: Path) -> tuple[Path, list[str]]:
    """An ensemble on one rank, and its settings."""
    folder = tmp_path_factory.mktemp("ensemble") / "one"
    words = [*SEEDS_AND_FOLDS, *SMALL, f"data.data_path={small_history}"]
    done = ensemble(None, folder, *words)
    assert done.returncode == 0, done.stderr
    return folder, words


def test_members_differ_and_leave_run_folders(usual: tuple[Path, list[str]]):
    folder, _ = usual
    assert len(set(hashes_of(folder))) == 4
    for member in (folder / "members").iterdir():
        left = {path.name for path in member.iterdir()}
        assert left >= {"config.yaml", "metrics.jsonl", "checkpoints", "model.pt", "normalization.model.pt"}
        assert left >= {"run_record.json", "statistics.json", "logs"}
        record = read_record(member / "run_record.json")
        assert record["result"]["weights_sha256"] == hashes_of(folder)[int(member.name)]
        assert "done: 2 epochs" in (member / "logs" / "rank-0000.log").read_text()


def test_a_member_is_trained_again_from_its_record(usual: tuple[Path, list[str]], tmp_path: Path):
    folder, _ = usual
    member, again = folder / "members" / "0003", tmp_path / "again"
    done = launch(["-m", "mpitrain", "reproduce", str(member), "--output", str(again)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith(f"reproduced: equal, SHA-256 {hashes_of(folder)[3][:12]}")
    found = [json.loads((one / "statistics.json").read_text()) for one in (member, again)]
    assert found[0]["variables"] == found[1]["variables"]
    done = launch(["-m", "mpitrain", "report", str(member)])
    assert done.returncode == 0, done.stderr
    assert hashes_of(folder)[3] in (member / "report.html").read_text()


@pytest.mark.lab
def test_each_member_alone_has_the_same_hash(usual: tuple[Path, list[str]], tmp_path: Path):
    folder, _ = usual
    for number, expected in enumerate(hashes_of(folder)):
        config, alone = folder / f"members/{number:04d}/config.yaml", tmp_path / f"alone{number}"
        done = launch(["-m", "mpitrain", "train", str(config), f"output.model_dir={alone}"], 2 if number == 0 else None)
        assert done.returncode == 0, done.stderr
        found = re.search(r"\b[0-9a-f]{64}\b", (alone / "report.html").read_text())
        assert found
        assert found[0] == expected


COUNTING = """
import sys
from mpitrain.cli.main import main
from mpitrain.train.compiled.engine import CompiledEngine

built, build = [], CompiledEngine.__init__
def count(self, *arguments):
    built.append(self)
    build(self, *arguments)
CompiledEngine.__init__ = count
code = main(sys.argv[1:])
print("engines built:", len(built))
sys.exit(code)
"""


@pytest.mark.lab
@pytest.mark.parametrize(
    ("words", "num_built"),
    [
        (["model.dropout=0.2", "model.layer_norm=true", "training.optimizer.type=adamw"], 1),
        (["training.optimizer.type=sgd", "training.optimizer.momentum=0.9", "training.validation_split=0"], 1),
        (["ensemble.members=1", "ensemble.folds=3"], 3),
        (["model.batch_norm=true"], 3),
    ],
    ids=["dropout and layer norm", "momentum", "other samples", "batch norm"],
)
def test_an_engine_that_begins_again_takes_the_steps_of_a_new_one(
    words: list[str], num_built: int, small_history: Path, tmp_path: Path
):
    (tmp_path / "counting.py").write_text(COUNTING)
    words = [*SMALL, "ensemble.members=3", *words, "training.epochs=3", f"data.data_path={small_history}"]
    done = launch([str(tmp_path / "counting.py"), "ensemble", *words, f"output.model_dir={tmp_path / 'ens'}"])
    assert done.returncode == 0, done.stderr
    assert f"engines built: {num_built}" in done.stdout
    config = tmp_path / "ens/members/0002/config.yaml"
    done = launch(["-m", "mpitrain", "train", str(config), f"output.model_dir={tmp_path / 'alone'}"])
    assert done.returncode == 0, done.stderr
    found = re.search(r"\b[0-9a-f]{64}\b", (tmp_path / "alone/report.html").read_text())
    assert found
    assert found[0] == hashes_of(tmp_path / "ens")[2]


@pytest.mark.parametrize(("num_ranks", "word"), [(2, "auto"), (3, "2"), (2, "2"), (3, "auto"), (8, "auto")])
def test_nothing_depends_on_ranks_and_groups(usual, tmp_path, num_ranks, word, request):
    if (num_ranks, word) not in ((2, "auto"), (3, "2")) and not request.config.getoption("--full"):
        pytest.skip("with --full")
    folder, words = usual
    done = ensemble(num_ranks, tmp_path / "many", *words, f"ensemble.ranks_per_member={word}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "many/ensemble.csv").read_text() == (folder / "ensemble.csv").read_text()


@pytest.mark.lab
@pytest.mark.skipif(OPENMPI is None, reason="needs MPITRAIN_OPENMPI_PYTHON")
def test_open_mpi_gives_the_same(usual, tmp_path):
    folder, words = usual
    done = ensemble(3, tmp_path / "open", *words, "ensemble.ranks_per_member=2", python=str(OPENMPI))
    assert done.returncode == 0, done.stderr
    assert hashes_of(tmp_path / "open") == hashes_of(folder)


@pytest.mark.lab
@pytest.mark.parametrize("word", ["data.streaming=true", "model.name=unet", "training.reduction=any"])
def test_other_kinds_of_runs_are_members_too(tmp_path, small_history, word):
    words = [f"data.data_path={small_history}", "ensemble.members=2", "training.epochs=1", word]
    words += ["data.samples=fields", "domain.mask_mode=ocean"] if "unet" in word else []
    done = ensemble(2, tmp_path / "ens", *words)
    assert done.returncode == 0, done.stderr
    assert [row["status"] for row in table_of(tmp_path / "ens")] == ["done", "done"]
    if word == "data.streaming=true":
        config, alone = tmp_path / "ens/members/0001/config.yaml", tmp_path / "alone"
        assert launch(["-m", "mpitrain", "train", str(config), f"output.model_dir={alone}"], 3).returncode == 0
        assert hashes_of(tmp_path / "ens")[1] in (alone / "report.html").read_text()


def test_one_member_s_failure_is_its_own(usual, tmp_path):
    folder, words = usual
    rates = "ensemble.grid.training.optimizer.learning_rate=[0.001,1e30,-1]"
    done = ensemble(2, tmp_path / "ens", *words, rates)
    assert done.returncode == 0, done.stderr
    rows = table_of(tmp_path / "ens")
    good = [row for row in rows if row["training.optimizer.learning_rate"] == "0.001"]
    assert [row["weights_sha256"] for row in good] == hashes_of(folder)
    assert {row["status"] for row in rows if row["training.optimizer.learning_rate"] == "1e+30"} == {"diverged"}
    (bad,) = {row["message"] for row in rows if row["training.optimizer.learning_rate"] == "-1"}
    assert bad.startswith("training.optimizer.learning_rate=-1")


def start(num_ranks: int, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    command = [find_mpirun(), "-np", str(num_ranks), sys.executable, "-m", "mpitrain", "ensemble"]
    return subprocess.Popen(
        [*command, f"output.model_dir={folder}", *words], env=launcher_environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


LONGER = [*SMALL, "ensemble.members=4", "training.epochs=150"]


@pytest.fixture(scope="module")
def longer(tmp_path_factory, small_history) -> list[str]:
    """The hashes of an ensemble that takes long enough to be interrupted."""
    folder = tmp_path_factory.mktemp("ensemble") / "whole"
    assert ensemble(2, folder, f"data.data_path={small_history}", *LONGER).returncode == 0
    return hashes_of(folder)


@pytest.mark.lab
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_ensemble_goes_on_elsewhere(tmp_path, small_history, number, longer):
    words = [f"data.data_path={small_history}", *LONGER]
    folder = tmp_path / "ens"
    running = start(2, folder, *words)
    deadline_s = time.monotonic() + TIMEOUT_S
    while not list(folder.glob("members/*/member.json")) and running.poll() is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    os.killpg(running.pid, number)
    _, stderr = running.communicate(timeout=TIMEOUT_S)
    assert running.returncode == (5 if number == signal.SIGTERM else -number), stderr
    ended = list(folder.glob("members/*/member.json"))
    assert 0 < len(ended) < 4
    before = {path: path.stat().st_mtime_ns for path in ended}
    done = launch(["-m", "mpitrain", "ensemble", f"output.model_dir={folder}", "--resume"], 3)
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in ended} == before, "a finished member was trained again"
    assert hashes_of(folder) == longer


@pytest.mark.lab
def test_more_members_are_added_by_a_resume(usual, tmp_path):
    folder, words = usual
    ens = tmp_path / "ens"
    assert ensemble(None, ens, *words, "ensemble.members=1").returncode == 0
    done = launch(["-m", "mpitrain", "ensemble", f"output.model_dir={ens}", "--resume", "--members", "2"], 2)
    assert done.returncode == 0, done.stderr
    assert hashes_of(ens) == hashes_of(folder)


@pytest.mark.lab
def test_a_job_script_trains_the_members(usual, tmp_path):
    folder, words = usual
    command = ["-m", "mpitrain", "launch", "--ensemble", "--scheduler", "local", "-n", "2", "--submit"]
    done = launch([*command, *words, "output.model_dir=ens"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert hashes_of(tmp_path / "ens") == hashes_of(folder)


def test_the_folder_is_guarded(usual):
    folder, words = usual
    again = ensemble(None, folder, *words)
    assert (again.returncode, len(again.our_lines)) == (2, 1)
    assert "--resume" in again.stderr
    other = launch(["-m", "mpitrain", "ensemble", f"output.model_dir={folder}", "--resume", "model.hidden_size=9"])
    assert other.returncode == 2
    assert "model.hidden_size=8 there, 9 here" in other.stderr


def test_a_dry_run_lists_the_members_and_writes_nothing(tmp_path, small_history):
    words = [f"data.data_path={small_history}", *SEEDS_AND_FOLDS, "ensemble.grid.model.hidden_size=[8,-1]", "--dry-run"]
    done = ensemble(2, tmp_path / "ens", *words)
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stdout.splitlines() if re.match(r"\d{4} ", line)]) == 8
    assert "model.hidden_size=-1: not allowed" in done.stdout
    assert not (tmp_path / "ens").exists()
