"""Training inside of a model: one launch on four ranks trains on all tiles and restarts that are compared here."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import PROJECT, TIMEOUT_S, find_mpirun, launch
from settings_files import EXAMPLE, compiler_flags

from mpitrain.datatools.collection import write_collection
from mpitrain.native.toolchain import find_next_to_python

PROGRAMS = Path(__file__).parent / "programs"
CONFIG = PROJECT / "jobs" / "collection" / "tendency.yaml"
SAME_BITS = ("-std=c++17", "-O2", "-march=native", "-ffp-contract=off")
TILES = ("tiles_2x1", "tiles_1x3", "tiles_2x2", "tiles_4x1")
# Of the same samples: another optimiser, norm, noise, loss and order, and nothing held out.
OTHER = """\
model: {name: mlp, hidden_size: 12, hidden_layers: 2, dropout: 0.1, layer_norm: true}
training: {epochs: 3, global_batch_size: 200, optimizer: {type: adamw, weight_decay: 0.01}, loss_function: huber,
  gradient_clip_norm: 0.5, scheduler: {type: cosine, warmup_epochs: 1}, early_stopping_patience: null, average: null}
data: {data_path: collected.nc, validation_split: 0.0}
seed: 4
"""


def tool(name: str) -> str:
    return str(find_next_to_python(name))


def export(folder: Path, *arguments: str):
    return launch(["-m", "mpitrain", "export", *arguments, "--format", "trainer"], cwd=folder)


def build(folder: Path, config: str, output: str) -> None:
    done = export(folder, config, "--collection", "collect.yaml", "--output", "tendency.cpp")
    assert done.returncode == 0, done.stderr
    flags = [f"-I{folder}", "-Wall", "-Wextra", "-Werror", *SAME_BITS]
    subprocess.run([tool("mpicxx"), *flags, "-c", "tendency.cpp"], check=True, cwd=folder)
    caller = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{EXAMPLE}", f"-I{folder}"]
    flags = compiler_flags(folder)
    for source in (PROGRAMS / "trained.c", folder / "mpitrain_collection.c"):
        subprocess.run([tool("mpicc"), *caller, *flags, "-c", source], check=True, cwd=folder)
    objects = ["trained.o", "mpitrain_collection.o", "tendency.o", "-o", output]
    subprocess.run([tool("mpicxx"), *objects, *flags], check=True, cwd=folder)


def run(folder: Path, program: str, output: str) -> dict[str, list[str]]:
    (folder / output).mkdir(exist_ok=True)
    done = subprocess.run(
        [find_mpirun(), "-np", "4", f"./{program}", output, "collect.yaml"],
        check=True, text=True, stdout=subprocess.PIPE, timeout=TIMEOUT_S, cwd=folder,
    )  # fmt: skip
    said: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition(" ")
        said.setdefault(name, []).append(value)
    return said


def train(folder: Path, *arguments: str) -> str:
    """Train by the command, and return the hash of the exported weights."""
    done = launch(["-m", "mpitrain", "train", *arguments], cwd=folder)
    assert done.returncode == 0, done.stderr
    return next(line.split()[2] for line in done.stdout.splitlines() if line.startswith("Weights  SHA-256"))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of all runs, what the program said by name, and the hash of `mpitrain train` on the collected file."""
    folder = tmp_path_factory.mktemp("trainer")
    write_collection(folder)
    shutil.copy(EXAMPLE / "collect.yaml", folder)
    shutil.copy(CONFIG, folder / "run.yaml")
    build(folder, "run.yaml", "trained")
    said = run(folder, "trained", "runs")
    return folder, said, train(folder, "run.yaml", "output.model_dir=afterwards")


class TestOneHash:
    def test_training_inside_and_afterwards_give_it(self, trained):
        _, said, afterwards = trained
        assert said["tiles_1x1"][0].startswith(afterwards)

    @pytest.mark.parametrize("tiles", TILES)
    def test_it_is_the_same_on_any_tiles(self, trained, tiles):
        assert trained[1][tiles] == trained[1]["tiles_1x1"]

    def test_it_is_the_same_after_restarts_on_other_numbers(self, trained):
        _, said, _ = trained
        assert said["restart"] == ["0"] * 4
        assert said["restarted"] == said["tiles_1x1"]

    @pytest.mark.lab
    def test_it_is_that_of_other_networks_too(self, trained, tmp_path):
        for name in ("collected.nc", "collect.yaml", "mpitrain_collection.c", "mpitrain_collection.h"):
            shutil.copy(trained[0] / name, tmp_path)
        (tmp_path / "run.yaml").write_text(OTHER)
        build(tmp_path, "run.yaml", "other")
        another = tmp_path / "runs" / "tiles_4x1"
        another.mkdir(parents=True)
        (another / "config.yaml").write_text("seed: 5\n")
        said = run(tmp_path, "other", "runs")
        afterwards = train(tmp_path, "run.yaml", "output.model_dir=afterwards")
        assert {said[name][0] for name in ("tiles_1x1", "restarted", *TILES)} == {said["tiles_1x1"][0]}
        assert said["tiles_1x1"][0].startswith(afterwards)
        assert sorted(said["save_run"]) == ["-4", *["0"] * 6]
        assert [one.name for one in another.iterdir()] == ["config.yaml"]  # nothing is written over another run


class TestRunFolder:
    def test_its_checkpoint_is_that_of_the_command(self, trained):
        folder, _, _ = trained
        inside, afterwards = (
            next((folder / one / "checkpoints").glob("step-*")) for one in ("runs/tiles_2x2", "afterwards")
        )
        assert inside.name == afterwards.name
        of_inside, of_afterwards = (json.loads((one / "manifest.json").read_text()) for one in (inside, afterwards))
        assert of_inside["tensors"] == of_afterwards["tensors"]
        assert of_inside["settings"] == of_afterwards["settings"]
        assert of_inside["state"].items() <= of_afterwards["state"].items()

    def test_a_run_that_was_left_in_the_midst_of_an_epoch_goes_on_to_the_same_hash(self, trained):
        folder, _, afterwards = trained
        assert train(folder, "--resume", "runs/midway") == afterwards

    def test_predict_export_and_report_read_it(self, trained):
        folder, _, _ = trained
        of_run = "runs/tiles_1x1"
        for words in (["predict", of_run], ["export", of_run, "--format", "c", "--output", "e.c"], ["report", of_run]):
            done = launch(["-m", "mpitrain", *words], cwd=folder)
            assert done.returncode == 0, (words, done.stderr)
        assert (folder / of_run / "report.html").is_file()

    def test_reproduce_says_what_is_missing(self, trained):
        done = launch(["-m", "mpitrain", "reproduce", "runs/tiles_1x1"], cwd=trained[0])
        said = [line for line in done.stderr.splitlines() if not line.startswith("starting: ")]
        assert (done.returncode, len(said)) == (2, 1)
        assert "run_record.json: is missing, as in a run that was trained inside a model" in said[0]
        assert said[0].endswith("mpitrain train runs/tiles_1x1/config.yaml")


STATUSES = {
    "open": 0, "nothing_shown": -1, "step_unfrozen": -2, "forward_unfrozen": -2, "no_restart": -4, "not_a_number": 2,
    "too_few": -1, "no_folder": -4, "closed": 0, "add_closed": -6,
}  # fmt: skip


class TestFaults:
    @pytest.mark.parametrize("fault", STATUSES)
    def test_it_is_a_status(self, trained, fault):
        assert trained[1][fault] == [str(STATUSES[fault])]

    def test_all_epochs_done_is_a_status(self, trained):
        assert set(trained[1]["finished"]) == {"1"}

    def test_messages_say_what_is_wrong(self, trained):
        few, folder = trained[1]["message"]
        assert "fewer samples to train on than training.global_batch_size" in few
        assert "cannot be written (No such file or directory)" in folder


class TestFlags:
    def test_fast_arithmetic_is_refused(self, trained):
        command = [tool("mpicxx"), "-std=c++17", "-Ofast", "-fsyntax-only", "tendency.cpp"]
        done = subprocess.run(command, text=True, capture_output=True, cwd=trained[0], check=False)
        assert done.returncode != 0
        assert "-Ofast and -ffast-math change results: compile with -O3" in done.stderr


def test_memory_that_fails_on_one_rank_is_a_status_on_all(trained):
    """At no place where a trainer asks for memory between its messages does a failure leave the other rank waiting."""
    folder = trained[0]
    command = [tool("mpicxx"), "-std=c++17", "-O1", f"-I{folder}", str(PROGRAMS / "without_memory.cpp"), "tendency.o"]
    subprocess.run([*command, "-o", "without_memory"], check=True, cwd=folder)
    done = subprocess.run(
        [find_mpirun(), "-np", "2", "./without_memory"], check=True, text=True, stdout=subprocess.PIPE,
        cwd=folder, timeout=TIMEOUT_S,
    )  # fmt: skip
    failures, *hashes = done.stdout.splitlines()
    assert len(set(hashes)) == 1, done.stdout
    unfrozen, freeze, steps, _, reading = map(int, failures.split()[1:])
    assert min(unfrozen, freeze, steps, reading) > 0
