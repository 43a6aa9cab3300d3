"""The compiled step, built with the compiler's sanitizers: no kernel reads or writes beyond what it was given.

The sizes are those at which kernels err: one, odd ones, just above a vector, rows that fill vectors or not.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import find_mpirun, launcher_environment

NETWORKS = (
    ("model.hidden_size=64", "model.hidden_layers=2", "training.global_batch_size=64"),
    ("model.hidden_size=33", "model.dropout=0.2", "model.batch_norm=true", "training.global_batch_size=29"),
    ("model.hidden_size=16", "model.hidden_layers=3", "model.layer_norm=true", "model.residual=true",
     "model.hidden_activation=silu", "training.global_batch_size=250", "training.reduction=any"),
    ("model.hidden_size=37", "model.hidden_layers=2", "training.global_batch_size=53", "training.reduction=any"),
    ("model.hidden_size=1", "training.global_batch_size=1"),
    ("model.hidden_size=65", "training.dtype=float64", "training.global_batch_size=100"),
    ("model.hidden_size=200", "training.global_batch_size=400", "training.virtual_ranks=16"),
)  # fmt: skip
PROGRAM = """
import json, sys
from mpitrain.cli.main import main
for number, settings in enumerate(json.loads(sys.argv[1])):
    assert main(["train", "--output", f"run_{number}", *settings]) == 0, settings
"""
_LONGEST_S = 500.0  # sanitized programs take three times as long, and what a busy machine adds
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -O1 -g"


def sanitized_environment(folder: Path) -> dict[str, str]:
    """The environment of a launch whose kernels are built with the sanitizers, and which loads what they need first."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    named = [f"-print-file-name=lib{name}.so" for name in ("asan", "ubsan")]
    found = [subprocess.run([compiler, name], capture_output=True, text=True, check=True).stdout for name in named]
    libraries = [Path(line.strip()) for line in found]
    if not all(library.is_absolute() for library in libraries):
        pytest.skip(f"{compiler} has no sanitizers")
    wrapper = folder / "sanitizing-c++"
    wrapper.write_text(f'#!/bin/sh\nexec {compiler} "$@" {SANITIZERS}\n')
    wrapper.chmod(0o755)
    return {
        **launcher_environment(),
        "CXX": str(wrapper),
        "MPITRAIN_CACHE": str(folder / "cache"),
        "LD_PRELOAD": " ".join(map(str, libraries)),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps memory until its end
    }


def test_no_kernel_leaves_its_memory(tmp_path: Path, small_history: Path, tries: Callable[[int], int]) -> None:
    networks = NETWORKS[: tries(len(NETWORKS))]
    common = ("--data", str(small_history), "--epochs", "1", "model.name=mlp", "training.engine=compiled")
    done = subprocess.run(
        [find_mpirun(), "-np", "2", sys.executable, "-c", PROGRAM, json.dumps([[*common, *one] for one in networks])],
        cwd=tmp_path, env=sanitized_environment(tmp_path), capture_output=True, text=True, check=False,
        timeout=_LONGEST_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("engine compiled") == len(networks)
