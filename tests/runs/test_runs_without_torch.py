"""A default run loads torch for model.pt alone, on the rank that writes it, and does without where there is none.

So it does without the libraries that draw and colour.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import PROJECT, Finished, launch

HASH = "ffe2342e86a5"  # of README's default run
RANK_COUNTS = [3, *(pytest.param(count, marks=pytest.mark.lab) for count in (1, 2, 8))]
# As `import torch` fails where it is not installed; Python imports this file when it starts.
HIDING = """
import sys

class Hiding:
    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package in ("torch", "matplotlib", "rich", "deflate"):
            raise ModuleNotFoundError(f"No module named '{package}'", name=package)

sys.meta_path.insert(0, Hiding())
"""
NOTING = """
import os, sys

class Noting:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            rank = os.environ.get("PMI_RANK") or os.environ.get("OMPI_COMM_WORLD_RANK") or "0"
            with open(os.environ["NOTED"], "a") as file:
                file.write(f"{rank} {os.path.isdir('mpitrain_run/checkpoints/best')}\\n")

sys.meta_path.insert(0, Noting())
"""


def started_with(hook: str, folder: Path) -> dict[str, str]:
    """The environment of Pythons that run `hook` first."""
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(hook)
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(PROJECT)]), "NOTED": str(folder / "noted")}


def mpitrain(words: list[str], cwd: Path, environ: dict[str, str], num_ranks: int | None = None) -> Finished:
    return launch(["-m", "mpitrain", *words], num_ranks, cwd=cwd, environ=environ)


@pytest.mark.parametrize("num_ranks", RANK_COUNTS)
def test_only_the_rank_that_writes_model_pt_loads_torch_and_only_then(num_ranks: int, tmp_path: Path) -> None:
    environ = started_with(NOTING, tmp_path / "hook")
    done = mpitrain([], tmp_path, environ, num_ranks)
    assert done.returncode == 0, done.stderr
    assert f"SHA-256 {HASH}" in done.stdout
    writer = min(1, num_ranks - 1)  # the root draws the report meanwhile
    noted = set((tmp_path / "hook/noted").read_text().splitlines())
    assert noted == {f"{writer} True"}, "loaded elsewhere, or too early"
    assert (tmp_path / "mpitrain_run/model.pt").is_file()


@pytest.mark.parametrize("num_ranks", RANK_COUNTS)
def test_without_torch_a_run_trains_goes_on_predicts_and_exports(num_ranks: int, tmp_path: Path) -> None:
    environ = started_with(HIDING, tmp_path / "hook")
    done = mpitrain([], tmp_path, environ, num_ranks)
    assert done.returncode == 0, done.stderr
    assert f"SHA-256 {HASH}" in done.stdout
    told = [line for line in done.stderr.splitlines() if "torch is not installed" in line]
    assert told == [line for line in told if line.startswith("note: mpitrain_run/model.pt: not written")]
    assert len(told) == 1, done.stderr
    assert "note: mpitrain_run/report.html: has no pictures, which need matplotlib" in done.stderr
    assert not (tmp_path / "mpitrain_run/model.pt").exists()
    for words, wanted in (
        (["train", "mpitrain_run/config.yaml", "--resume", "--epochs", "21"], "Trained  21 epochs"),
        (["predict", "mpitrain_run", "--output", "prediction.nc"], "prediction: prediction.nc, 6702 samples"),
        (["export", "mpitrain_run", "--format", "fortran"], "emulator.f90"),
        (["report", "mpitrain_run"], "report.html"),
    ):
        done = mpitrain(words, tmp_path, environ)
        assert done.returncode == 0, (words, done.stderr)
        assert wanted in done.stdout + done.stderr, (words, done.stdout, done.stderr)


def test_what_needs_torch_says_so_in_one_line(tmp_path: Path) -> None:
    environ = started_with(HIDING, tmp_path / "hook")
    (tmp_path / "mine.py").write_text(
        "import torch\n\n\ndef make(inputs, outputs):\n    return torch.nn.Linear(inputs, outputs)\n"
    )
    environ["PYTHONPATH"] += os.pathsep + str(tmp_path)
    for setting in ("model.name=mine:make", "training.engine=eager", "semantics=reference"):
        done = mpitrain(["train", f"output.model_dir={tmp_path / 'run'}", setting], tmp_path, environ)
        assert done.returncode == 2, (setting, done.stderr)
        assert "needs torch, which is not installed: pip install torch" in done.stderr, (setting, done.stderr)
        assert "Traceback" not in done.stderr
        assert len([line for line in done.stderr.splitlines() if "error:" in line]) == 1
