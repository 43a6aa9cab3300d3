"""What becomes of members: kept in a file, and told when the whole ends before all have."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mpitrain.config import EnsembleSection, RunConfig
from mpitrain.ensemble import report
from mpitrain.ensemble.outcome import Ended, Outcome, read_outcome, write_outcome
from mpitrain.ensemble.plan.members import EnsemblePlan
from mpitrain.ensemble.results import _describe_losses
from mpitrain.ensemble.run_ensemble import _raise_if_unfinished
from mpitrain.errors import StoppedError, TrainingError

PLAN: Any = SimpleNamespace(members=range(5))


def outcomes_of(*statuses: Any) -> dict[int, Outcome]:
    return {number: Outcome(number, status, message=f"member {number}") for number, status in enumerate(statuses)}


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    outcome = Outcome(3, "failed", message="what it failed with")
    write_outcome(tmp_path / "new", outcome)
    assert read_outcome(tmp_path / "new") == outcome
    assert read_outcome(tmp_path / "none") is None
    # Earlier versions wrote the rung of a search, 0 where there was none, and a line for each rung.
    line = '{"number": 3, "rung": 0, "status": "done", "epochs": 2}\n'
    (tmp_path / "new" / "member.json").write_text(line)
    assert read_outcome(tmp_path / "new") == Outcome(3, "done", epochs=2)
    (tmp_path / "new" / "member.json").write_text(2 * line)
    assert read_outcome(tmp_path / "new") is None


def test_a_stop_tells_how_many_members_are_left() -> None:
    with pytest.raises(StoppedError, match=r"stopped by SIGTERM; 3 members have not ended; continue with --resume"):
        _raise_if_unfinished(PLAN, Ended(outcomes_of("done", "failed"), "SIGTERM"))


def test_one_member_that_ended_well_is_enough() -> None:
    _raise_if_unfinished(PLAN, Ended(outcomes_of("failed", "done"), None))
    with pytest.raises(TrainingError, match="no member was trained successfully; the first: member 0"):
        _raise_if_unfinished(PLAN, Ended(outcomes_of("failed", "failed"), None))


def test_losses_that_are_no_numbers_do_not_count() -> None:
    done = [Outcome(number, "done", score=score, validation_loss=score) for number, score in enumerate((0.5, 0.25))]
    expected = ["Loss     validation 3.7500e-01 +- 1.8e-01 over members, best 2.5000e-01 (member 0001)"]
    assert _describe_losses([], done) == expected
    without = [Outcome(2, "done"), Outcome(3, "done", score=float("inf"))]
    assert _describe_losses([], [*done, *without]) == expected
    assert _describe_losses([], without) == []


@pytest.mark.parametrize(
    ("values", "scale"),
    [(("1e-4", "1e-1"), "log"), (("1", "19"), "linear"), (("0", "99"), "linear"), (("tanh", "relu"), "linear")],
)
def test_the_axis_of_a_setting_is_logarithmic_where_its_values_are_far_apart(
    monkeypatch: pytest.MonkeyPatch, values: tuple[str, str], scale: str
) -> None:
    monkeypatch.setattr(report, "_image", lambda figure: figure)
    rows = [{"x": value, "validation_loss": "", "train_loss": "0.5"} for value in values]
    figure: Any = report._against("x", rows)
    assert figure.axes[0].get_xscale() == scale


def test_a_plan_without_the_section_has_its_defaults() -> None:
    assert EnsemblePlan(Path("ens"), RunConfig(), []).section == EnsembleSection()
