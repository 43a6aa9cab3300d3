"""One hash of whole runs, whatever built the kernels, for which instructions, on how many ranks; the README's own."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import PROJECT, TESTS, launch
from machine_matrix import MACHINES

from mpitrain.cluster.cpu.compiler_flags import instruction_flags
from mpitrain.cluster.cpu.identity import detect_cpu
from mpitrain.errors import ConfigError

SETS = ("native", "x86-64", "x86-64-v3")
GELU = (
    *("model.name=mlp", "model.hidden_layers=2", "model.hidden_size=64", "model.hidden_activation=gelu"),
    *("training.epochs=2", "training.engine=compiled"),
)
TIMEOUT_S = 1800.0


@dataclass(frozen=True)
class Build:
    """What builds the kernels, at which level, and on how many ranks and which emulated machine the runs are."""

    compiler: str
    level: str
    num_ranks: int
    machine: str = "this machine"

    def __str__(self) -> str:
        return f"{self.compiler} {self.level}, {self.num_ranks} ranks, {self.machine}"


FEW = [Build("g++", "-O3", 1), Build("clang++", "-O1", 3)]
WHOLE = [
    *(Build(*words) for words in itertools.product(("g++", "clang++"), ("-O1", "-O3"), (1, 2, 3, 8))),
    *(Build(*words, 2, "Intel Haswell") for words in itertools.product(("g++", "clang++"), ("-O1", "-O3"))),
]


def _is_built_here(instruction_set: str) -> bool:
    try:
        instruction_flags(detect_cpu(), instruction_set)
    except ConfigError:
        return False
    return True


def _compiler(build: Build, folder: Path) -> Path:
    """A compiler of that name that compiles at that level, whatever it is asked for."""
    path = folder / "compiler"
    # Tuned for the CPU that is played: for this host's, clang loads by vgatherqps, which gives the same hash natively
    # and ends by SIGSEGV under QEMU 7.2.
    tuning = "-mtune=haswell" if MACHINES[build.machine].emulator else ""
    path.write_text(f'#!/bin/sh\nexec {shutil.which(build.compiler)} "$@" {build.level} {tuning}\n')
    path.chmod(0o755)
    return path


def _hashes(build: Build, sets: list[str], folder: Path) -> dict[tuple[str, str], str]:
    """All runs of a build in one launch: by network and instruction set, the hash as the summary prints it."""
    runs = {("default run", name): (f"compute.instruction_set={name}",) for name in sets}
    runs |= {("gelu", name): (*GELU, f"compute.instruction_set={name}") for name in sets}
    jobs = [["train", f"output.model_dir={folder / f'run{n}'}", *words] for n, words in enumerate(runs.values())]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    machine = MACHINES[build.machine]
    done = launch(
        [str(TESTS / "train" / "many_runs.py"), str(folder / "jobs.json")], build.num_ranks, timeout_s=TIMEOUT_S,
        environ=machine.environ_of_launch
        | {"CXX": str(_compiler(build, folder)), "MPITRAIN_CACHE": str(folder / "cache")},
        emulator=machine.emulator,
    )  # fmt: skip
    said = "".join(path.read_text() for path in sorted(folder.glob("*.err")))
    assert done.returncode == 0, done.stderr + said
    outputs = [folder.glob(f"{number:04d}.*.out") for number in range(len(jobs))]
    summaries = ["".join(path.read_text() for path in paths) for paths in outputs]
    found = [re.search(r"^Weights +SHA-256 (\w+)", summary, re.MULTILINE) for summary in summaries]
    assert all(found), said
    assert all("engine compiled" in summary for summary in summaries)
    assert said.count("has no fused multiply-add instructions") == 2  # once a run with the set x86-64
    return {run: match[1] for run, match in zip(runs, found, strict=True) if match}


@pytest.mark.skipif(detect_cpu().architecture != "x86_64", reason="the instruction sets are those of x86-64")
def test_one_hash_of_whole_runs(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    promised = re.search(r"^Weights +SHA-256 (\w+)", (PROJECT / "README.md").read_text(), re.MULTILINE)
    assert promised
    sets = [name for name in SETS if _is_built_here(name)]
    found: dict[str, dict[tuple[str, str], str]] = {}
    for number, build in enumerate(WHOLE if request.config.getoption("--full") else FEW):
        if shutil.which(build.compiler) is None:
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        found[str(build)] = _hashes(build, sets, folder)
    assert len(found) > 1
    assert {hashes["default run", name] for hashes in found.values() for name in sets} == {promised[1]}, found
    assert len({hashes["gelu", name] for hashes in found.values() for name in sets}) == 1, found
