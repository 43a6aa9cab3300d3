"""A member whose own code fails, on one rank and on all ranks of its group, and what becomes of the others."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import launch
from test_ensemble_runs import ensemble, hashes_of, table_of

from mpitrain.comm.agent.position import CollectiveNotes
from mpitrain.ensemble.outcome import LoneFailures
from mpitrain.ensemble.training import worker

NETWORKS = """
import os, torch
from torch import nn
class Good(nn.Sequential):
    def __init__(self, num_inputs, num_outputs):
        super().__init__(nn.Linear(num_inputs, 4), nn.Tanh(), nn.Linear(4, num_outputs))
class Bad(Good):
    calls = 0
    def forward(self, x):
        Bad.calls += self.training
        if Bad.calls > 40:
            raise RuntimeError("thickness below zero")
        return super().forward(x)
class BadOnOneRank(Bad):
    def forward(self, x):
        return super().forward(x) if os.environ.get("PMI_RANK") == "1" else Good.forward(self, x)
"""


PAIRS = ["ensemble.ranks_per_member=2"]


@pytest.fixture
def words(tmp_path: Path, small_history: Path) -> list[str]:
    """An ensemble of a good network and one that fails while it trains, each of two ranks."""
    (tmp_path / "nets.py").write_text(NETWORKS)
    names = "ensemble.grid.model.name=[nets:Bad,nets:Good]"
    return [f"data.data_path={small_history}", "training.epochs=3", "training.engine=eager", *PAIRS, names]


@pytest.mark.lab
def test_a_member_s_code_fails_on_all_ranks_of_its_group(tmp_path: Path, words: list[str]) -> None:
    for num_ranks, name in ((None, "one"), (2, "two")):
        done = ensemble(num_ranks, tmp_path / name, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    bad, good = table_of(tmp_path / "two")
    assert (bad["status"], bad["message"]) == ("failed", "RuntimeError: thickness below zero")
    assert good["status"] == "done"
    assert hashes_of(tmp_path / "two") == hashes_of(tmp_path / "one")


@pytest.mark.lab
def test_a_failure_that_others_wait_for_ends_the_world_and_a_resume_goes_on(
    tmp_path: Path, words: list[str], request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--full"):
        pytest.skip("with --full")
    words = [word.replace("nets:Bad,nets:Good", "nets:Good,nets:BadOnOneRank") for word in words]
    done = ensemble(2, tmp_path / "ens", *words, cwd=tmp_path)
    assert done.returncode != 0
    assert "thickness below zero" in done.stderr
    done = launch(["-m", "mpitrain", "ensemble", f"output.model_dir={tmp_path / 'ens'}", "--resume"], None, tmp_path)
    assert done.returncode == 0, done.stderr
    assert [row["status"] for row in table_of(tmp_path / "ens")] == ["done", "done"]


@pytest.mark.lab
def test_a_member_that_ends_all_ranks_twice_is_left_out_and_the_table_says_why(
    tmp_path: Path, words: list[str]
) -> None:
    words = [word.replace("nets:Bad,nets:Good", "nets:Good,nets:BadOnOneRank") for word in words]
    assert ensemble(2, tmp_path / "ens", *words, cwd=tmp_path).returncode != 0
    for is_second in (True, False):
        resume = ["-m", "mpitrain", "ensemble", f"output.model_dir={tmp_path / 'ens'}", "--resume", "--trust-code"]
        done = launch(resume, 2, tmp_path)
        assert (done.returncode != 0) == is_second, done.stderr
    good, bad = table_of(tmp_path / "ens")
    assert (good["status"], bad["status"]) == ("done", "failed")
    assert bad["message"] == "RuntimeError: thickness below zero (on some of its ranks, 2 times)"
    alone = ensemble(None, tmp_path / "good", *[word.replace(",nets:BadOnOneRank", "") for word in words], cwd=tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert hashes_of(tmp_path / "good") == [good["weights_sha256"]]


@pytest.mark.parametrize("collective", [None, "all_reduce"])
def test_a_member_is_not_blamed_for_ranks_that_were_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collective: str | None
) -> None:
    monkeypatch.setattr(worker, "may_go_on", lambda *_: False)
    communicator: Any = SimpleNamespace(notes=CollectiveNotes())
    communicator.notes.collective = collective
    tools: Any = SimpleNamespace(group=SimpleNamespace(cpu=communicator, tensors=communicator))
    none: Any = None
    one = worker._Worker(none, SimpleNamespace(claims=None), tools, none)  # type: ignore[arg-type]
    member: Any = SimpleNamespace(name="0000")
    with pytest.raises(RuntimeError, match="reset by peer"):
        one._check_all_know(RuntimeError("reset by peer"), member, LoneFailures(tmp_path))
    assert len(list(tmp_path.iterdir())) == (collective is None)


@pytest.mark.lab
def test_a_report_without_any_loss_is_still_a_report(tmp_path: Path):
    """All members fail before their first epoch: the table says why, in one line on the terminal."""
    words = ["ensemble.members=2", "variables.input_variables=[nowhere]", "model.hidden_size=4"]
    done = launch(["-m", "mpitrain", "ensemble", *words, f"output.model_dir={tmp_path / 'none'}"])
    assert done.returncode == 4, done.stderr
    assert len(done.our_lines) == 1
    assert "no member was trained successfully; the first: " in done.our_lines[0]
    assert "Loss of each member" in (tmp_path / "none/report.html").read_text()
