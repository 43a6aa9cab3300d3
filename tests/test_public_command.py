"""`python -m mpitrain` as users type it: the run folder, how good it is, older configurations, flags, progress."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PROJECT, TESTS, TIMEOUT_S, Finished, find_mpirun, launch, launcher_environment, losses_of
from history_samples import read_samples

from mpitrain.config import NEWEST_RULES, load_run_config
from mpitrain.models.files.torchscript import load_and_run_code
from mpitrain.synthetic.history import write_synthetic_history
from mpitrain.train.checkpoint.format import weights_sha256

NUM_RANKS = 8
DEFAULT_EPOCHS = 20


@dataclass(frozen=True)
class DefaultRun:
    """The run of `mpirun -np 8 python -m mpitrain` in an empty folder."""

    done: Finished
    cwd: Path

    @property
    def folder(self) -> Path:
        return self.cwd / "mpitrain_run"


@pytest.fixture(scope="module")
def default_run(tmp_path_factory: pytest.TempPathFactory) -> DefaultRun:
    cwd = tmp_path_factory.mktemp("default_run")
    return DefaultRun(launch(["-m", "mpitrain"], NUM_RANKS, cwd=cwd), cwd)


def weights_of(model_file: Path) -> dict[str, torch.Tensor]:
    return dict(load_and_run_code(model_file).named_parameters())


def files_below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_default_run_leaves_the_whole_run_folder(default_run: DefaultRun) -> None:
    assert default_run.done.returncode == 0, default_run.done.stderr
    files = files_below(default_run.folder)
    checkpoints = {name for name in files if name.startswith("checkpoints/")}
    steps = sorted({name.split("/")[1] for name in checkpoints if name.startswith("checkpoints/step-")})
    assert len(steps) == DEFAULT_EPOCHS // 10
    assert len({name.split("/")[1] for name in checkpoints} - set(steps)) == 1  # the best
    assert files - checkpoints == {
        "cice_history.nc",
        "config.yaml",
        "metrics.jsonl",
        "model.pt",
        "model.safetensors",
        "normalization.model.pt",
        "report.html",
        "run_record.json",
        "statistics.json",
        *(f"logs/rank-{rank:04d}.log" for rank in range(NUM_RANKS)),
    }
    for rank in range(NUM_RANKS):
        assert f"rank {rank} of {NUM_RANKS}" in (default_run.folder / f"logs/rank-{rank:04d}.log").read_text()


def test_the_last_lines_of_the_default_run_are_those_of_the_topic(default_run: DefaultRun) -> None:
    """The page on results shows all but what depends on the machine: its times are left out, and memory has a bound."""
    shown = re.search(
        r"^```text\n(Skill.*?)^```$",
        (PROJECT / "mpitrain" / "help" / "results.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert shown
    pattern = re.escape(shown[1]).replace(re.escape("..."), ".+")
    (mebibytes,) = re.findall(r"at most (\d+) MiB a rank", shown[1])
    found = re.search(pattern.replace(f"most\\ {mebibytes}", r"most\ (\d+)"), default_run.done.stdout)
    assert found, default_run.done.stdout
    assert int(found[1]) < 1.5 * int(mebibytes)


def test_config_metrics_and_summary_tell_of_this_run(default_run: DefaultRun) -> None:
    folder = default_run.folder
    assert load_run_config(folder / "config.yaml").config == load_run_config(None).config.with_rules(
        NEWEST_RULES
    ).with_split({"split": "random", "test_split": 0.0})
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == list(range(1, DEFAULT_EPOCHS + 1))
    assert "engine compiled (a chain of dense layers on CPUs)" in default_run.done.stdout
    steps_per_epoch = records[0]["step"]
    assert [record["step"] for record in records] == [steps_per_epoch * (n + 1) for n in range(DEFAULT_EPOCHS)]
    digits = weights_sha256(weights_of(folder / "model.pt"))
    assert f"SHA-256 {digits[:12]}" in default_run.done.stdout
    assert digits in (folder / "report.html").read_text()
    normalization, model = load_and_run_code(folder / "normalization.model.pt"), load_and_run_code(folder / "model.pt")
    moments = dict(normalization.named_buffers())
    assert torch.equal(moments["0"], model.input_mean)
    assert torch.equal(moments["1"], model.input_std)


def test_network_is_as_good_as_the_data_allows(default_run: DefaultRun, tmp_path: Path) -> None:
    """On a second file of the same relation, which the training never saw."""
    unseen = tmp_path / "unseen.nc"
    noise_mse = write_synthetic_history(unseen, seed=1).noise_mse_north
    samples = read_samples(unseen, "north", True)
    model = load_and_run_code(default_run.folder / "model.pt")
    with torch.no_grad():
        prediction = model(torch.from_numpy(samples.inputs)).view(-1).double().numpy()
    targets = samples.targets[:, 0].astype(np.float64)
    mse = float(np.mean((prediction - targets) ** 2))
    assert noise_mse is not None
    assert mse <= 1.2 * noise_mse
    assert mse <= float(np.var(targets)) / 20
    best = min(validation for _, validation in losses_of(default_run.folder) if validation is not None)
    assert best <= 1.2 * noise_mse


def test_second_run_takes_the_next_folder_and_one_process_gives_the_same_weights(default_run: DefaultRun) -> None:
    done = launch(["-m", "mpitrain"], cwd=default_run.cwd)
    assert done.returncode == 0, done.stderr
    second = default_run.cwd / "mpitrain_run-2"
    assert "run folder mpitrain_run-2" in done.stdout
    assert load_run_config(second / "config.yaml").config.output.model_dir == "mpitrain_run-2"
    assert losses_of(second) == losses_of(default_run.folder)
    first_weights, second_weights = (weights_of(run / "model.pt") for run in (default_run.folder, second))
    assert weights_sha256(first_weights) == weights_sha256(second_weights)


@pytest.mark.lab
def test_commands_printed_as_next_work(default_run: DefaultRun, small_history: Path) -> None:
    commands = re.findall(r"^Next +(mpitrain .*?) *#", default_run.done.stdout, flags=re.MULTILINE)
    own_data, go_on = (shlex.split(command)[1:] for command in commands)
    own_data[own_data.index("YOUR_FILE.nc")] = str(small_history)
    for arguments, run, epochs in ((own_data, "YOUR_RUN", DEFAULT_EPOCHS), (go_on, "mpitrain_run", 2 * DEFAULT_EPOCHS)):
        done = launch(["-m", "mpitrain", *arguments], cwd=default_run.cwd)
        assert done.returncode == 0, done.stderr
        assert len(losses_of(default_run.cwd / run)) == epochs


# What a user of each older configuration is told besides what `config check` tells: all of it concerns results.
OLDER_NOTICES = {
    "distributed": ["distributed.backend=nccl: no GPU here", "training.batch_size=2 is per rank (global batch 4)"],
    "emulator_large": ["training.batch_size=1000 is per rank (global batch 2000)"],
    "ffnn_cpp": [],
    "icenet_hpc": ["training.batch_size=128 is per rank (global batch 256)"],
    "icenet_quick": ["training.batch_size=64 is per rank (global batch 128)"],
}
RESULTS_DIFFER = {
    "distributed": "distributed.strategy=ddp: implies training.reduction=any",
    "ffnn_cpp": "semantics=reference: implied by ffnn.inputSize",
}


@pytest.fixture(scope="module")
def older_data(tmp_path_factory: pytest.TempPathFactory, small_history: Path) -> dict[str, Path]:
    """Where an older configuration wants something else than a history file: arrays, of 7 inputs or of 14."""
    samples = read_samples(small_history, "north", True)
    folder = tmp_path_factory.mktemp("arrays")
    wide = np.concatenate([samples.inputs, np.roll(samples.inputs, 1, axis=0)], axis=1)
    for name, inputs in (("icenet_quick", samples.inputs), ("emulator_large", wide)):
        np.savez(folder / f"{name}.npz", inputs=inputs, targets=samples.targets)
    return {path.stem: path for path in folder.iterdir()}


@pytest.mark.lab
@pytest.mark.parametrize("name", OLDER_NOTICES)
def test_older_configurations_train(
    name: str, tmp_path: Path, small_history: Path, older_data: dict[str, Path]
) -> None:
    data_path = older_data.get(name, small_history)
    configuration = TESTS / "data" / "older_configs" / f"{name}.yaml"
    settings = [f"data.data_path={data_path}", "training.epochs=2", "compute.device=cpu", "output.model_dir=run"]
    done = launch(["-m", "mpitrain", "train", str(configuration), *settings], 2, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    told = [line.removeprefix("note: ") for line in done.stderr.splitlines() if line.startswith("note: ")]
    checked = load_run_config(configuration, settings).notices
    assert told[: len(checked)] == list(checked)
    assert RESULTS_DIFFER.get(name, "") in "".join(checked)
    for start in OLDER_NOTICES[name]:
        assert len([line for line in told if line.startswith(start)]) == 1, told
    first, second = (loss for loss, _ in losses_of(tmp_path / "run"))
    assert second < first
    assert (tmp_path / "run" / ("arctic.pt" if name == "ffnn_cpp" else "model.pt")).is_file()


def test_all_older_configurations_are_tried() -> None:
    assert {path.stem for path in (TESTS / "data" / "older_configs").iterdir()} == set(OLDER_NOTICES)


def test_flags_are_settings_and_an_existing_run_is_protected(tmp_path: Path, small_history: Path) -> None:
    flags = ["--data", str(small_history), "--output", "run", "--epochs", "1", "--batch-size", "16", "--lr", "0.01"]
    done = launch(["-m", "mpitrain", *flags], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    config = load_run_config(run / "config.yaml").config
    assert config.data.data_path == str(small_history)
    assert (config.training.epochs, config.training.batch_size) == (1, 16)
    assert config.training.optimizer.learning_rate == 0.01
    # Lines, not a bar, where nobody watches a terminal.
    assert re.search(r"^step \d+/\d+ \(100 %\)  epoch 1/1  train loss ", done.stderr, flags=re.MULTILINE)
    assert not re.search(r"[\r\x1b]", done.stdout + done.stderr)

    before = {name: (run / name).read_bytes() for name in files_below(run)}
    refused = launch(["-m", "mpitrain", *flags], cwd=tmp_path)
    assert refused.returncode == 2
    assert len(refused.our_lines) == 1
    assert "--resume" in refused.our_lines[0]
    assert "--overwrite" in refused.our_lines[0]
    assert {name: (run / name).read_bytes() for name in files_below(run)} == before

    (run / "notes.txt").write_text("the user's own")
    replaced = launch(["-m", "mpitrain", *flags, "--lr", "0.001", "--overwrite"], cwd=tmp_path)
    assert replaced.returncode == 0, replaced.stderr
    assert files_below(run) == {*before, "notes.txt"}
    assert (run / "model.pt").read_bytes() != before["model.pt"]


@pytest.mark.lab
def test_bar_on_a_terminal(tmp_path: Path, small_history: Path) -> None:
    arguments = ["-m", "mpitrain", "--data", str(small_history), "--epochs", "1"]
    command = [find_mpirun(), "-np", "2", sys.executable, *arguments]
    # A process in between: pytest must not fork while its libraries' threads hold locks.
    on_a_terminal = [sys.executable, "-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]))", *command]
    done = subprocess.run(
        on_a_terminal, cwd=tmp_path, env={**launcher_environment(), "TERM": "xterm"}, stdin=subprocess.DEVNULL,
        capture_output=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    shown = done.stdout.decode()
    assert done.returncode == 0, shown
    assert "\x1b[2K" in shown
    assert "epoch 1/1" in shown
    assert "\nstep " not in shown  # the form of the lines
    assert "Report   mpitrain_run/report.html" in shown


def test_ctrl_c_stops_with_a_checkpoint(tmp_path: Path, small_history: Path) -> None:
    if "Open MPI" in launch(["-m", "mpi4py", "--mpi-lib-version"]).stdout:
        pytest.skip("Open MPI's mpirun ends its ranks on Ctrl-C")
    arguments = ["-m", "mpitrain", "--data", str(small_history), "--epochs", "1000000"]
    running = subprocess.Popen(
        [find_mpirun(), "-np", "2", sys.executable, *arguments], cwd=tmp_path, env=launcher_environment(),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        metrics = tmp_path / "mpitrain_run" / "metrics.jsonl"
        deadline_s = time.monotonic() + TIMEOUT_S
        while not (metrics.exists() and metrics.read_text().count("\n") > 2) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the launcher and to what it shares a group with
        _, stderr = running.communicate(timeout=TIMEOUT_S)
    finally:
        running.kill()
    assert running.returncode == 5, stderr
    stopped_at = re.search(r"mpitrain: stopped by SIGINT at step (\d+), ", stderr)
    assert stopped_at, stderr
    # At this step: every tenth epoch has a checkpoint anyway.
    saved = (tmp_path / "mpitrain_run" / "checkpoints").glob("step-*/commit.json")
    assert int(stopped_at[1]) in {int(path.parent.name.removeprefix("step-")) for path in saved}
