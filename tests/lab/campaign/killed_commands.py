"""Commands that are killed at random moments: no half file under its final name, no process, nothing in memory.

`python tests/lab/campaign/killed_commands.py FOLDER NUM_KILLS [COMMAND ...]` prints a line for each command and signal.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import netCDF4
from conftest import TIMEOUT_S, find_mpirun, launch, launcher_environment

from mpitrain.synthetic.history import write_synthetic_history

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
_SMALL = ["model.name=mlp", "model.hidden_layers=1", "model.hidden_size=3", "data.data_path=h.nc"]
_SCRIPT = """
import numpy as np, mpitrain
rows = {name: np.random.default_rng(1).normal(size=4000) for name in "uw"}
mpitrain.train(rows, inputs=["u"], targets=["w"], epochs=30, output="script", overwrite=True, batch_size=32)
"""
PYTHON = [sys.executable, "-m", "mpitrain"]
COMMANDS = {
    "predict": [*PYTHON, "predict", "run", "--output", "p.nc"],
    "predict, 2 ranks": [find_mpirun(), "-np", "2", *PYTHON, "predict", "run", "--output", "p.nc"],
    "export": [*PYTHON, "export", "run", "--format", "c", "--output", "emulator.c"],
    "ensemble": [*PYTHON, "ensemble", *_SMALL, "training.epochs=30", "ensemble.members=4", "output.model_dir=members",
                 "--overwrite"],
    "script": [sys.executable, "-c", _SCRIPT],
}  # fmt: skip


def prepare(folder: Path) -> None:
    """Leave data and a run that has ended."""
    write_synthetic_history(folder / "h.nc", seed=1, num_latitudes=160, num_longitudes=240, num_times=3)
    done = launch(["-m", "mpitrain", "train", *_SMALL, "training.epochs=1", "output.model_dir=run"], cwd=folder)
    assert done.returncode == 0, done.stderr


def hash_of(folder: Path, name: str) -> str:
    """Return what the record of an ended run, or those of an ensemble's members, say of the weights."""
    records = sorted([*folder.glob(f"{name}/run_record.json"), *folder.glob(f"{name}/members/*/run_record.json")])
    results = (json.loads(path.read_text())["result"] or {} for path in records)
    return " ".join(str(result["weights_sha256"]) for result in results)


def kill(folder: Path, name: str, number: signal.Signals, delay_s: float) -> str:
    """Start a command, kill it after a while, and return what it has left; "" where that is nothing."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    environ = {**launcher_environment(), "TMPDIR": str(scratch)}
    memory = set(os.listdir("/dev/shm"))
    child = subprocess.Popen(
        COMMANDS[name], cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    time.sleep(delay_s)
    child.send_signal(number)
    child.wait(TIMEOUT_S)
    end_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end_s:
        left = sorted(set(os.listdir("/dev/shm")) - memory) + _processes(folder)
        if not left:
            break
        time.sleep(0.1)
    # A killed process removes nothing: its temporary names beside the output and in TMPDIR are no half file.
    kept = [path for path in (*folder.glob(".*.partial"), *scratch.glob("*")) if path.name != f"mpitrain-{os.getuid()}"]
    for path in kept:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if number != signal.SIGKILL and "ranks" not in name:
        left += [path.name for path in kept]
    return ", ".join(left)


def _processes(folder: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(path / "cwd") == str(folder):
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:80])
        except OSError:
            continue
    return found


def check(folder: Path, name: str, expected: dict[str, str]) -> str:
    """Return what is wrong with the files of a command that was killed; a run is resumed first."""
    if name in ("ensemble", "script"):
        output = "members" if name == "ensemble" else "script"
        resumed = [*PYTHON[1:], "ensemble" if name == "ensemble" else "train", "--resume", f"output.model_dir={output}"]
        if not (folder / output / "config.yaml").exists():
            return ""
        if name == "script":
            resumed = ["-c", _SCRIPT.replace("overwrite=True", "resume=True")]
        done = launch(resumed, cwd=folder)
        if done.returncode:
            return f"--resume: {done.stderr.strip().splitlines()[-1:]}"
        found = hash_of(folder, output)
        return "" if expected.setdefault(name, found) == found else "--resume: another hash"
    if (folder / "p.nc").exists():
        with netCDF4.Dataset(folder / "p.nc") as written:
            assert not written["aice_h_predicted"][:].mask.all()
    done = launch(COMMANDS["predict"][1:] if name.startswith("predict") else COMMANDS["export"][1:], cwd=folder)
    return "" if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def campaign(folder: Path, num_kills: int, names: Sequence[str] = (), seed: int = 1) -> dict[str, Counter[str]]:
    """Kill each command with each signal at that many moments; count what was wrong, "" for nothing."""
    prepare(folder)
    moments, expected, found = random.Random(seed), {}, {}
    for name in names or COMMANDS:
        command = COMMANDS[name]
        started_s = time.monotonic()
        subprocess.run(command, cwd=folder, env=launcher_environment(), capture_output=True, check=True)
        whole_s = time.monotonic() - started_s
        if name in ("ensemble", "script"):
            expected[name] = hash_of(folder, "members" if name == "ensemble" else "script")
            assert expected[name]
        for number in SIGNALS:
            counts: Counter[str] = Counter()
            for _ in range(num_kills):
                left = kill(folder, name, number, moments.uniform(0.05, whole_s))
                counts[left or check(folder, name, expected)] += 1
            found[f"{name}, {number.name}"] = counts
    return found


if __name__ == "__main__":
    for what, counts in campaign(Path(sys.argv[1]).resolve(), int(sys.argv[2]), sys.argv[3:]).items():
        print(f"{what:28}", dict(counts), flush=True)
