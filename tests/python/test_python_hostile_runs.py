"""A stranger's run folder from Python: what it says is shown as plain text, or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mpitrain
from mpitrain.python.tables import Table
from mpitrain.runs.reproduction.stored_record import FORMAT

ESCAPES = "\x1b[31m\n"


def run_of(folder: Path, **result: Any) -> mpitrain.Run:
    record = {
        "format": FORMAT, "settings": {}, "decided": {}, "ranks": {"number": 1, "nodes": 1}, "data": [],
        "working_folder": "/nowhere", "versions": {}, "machines": [],
        "result": {"weights_sha256": "0" * 64, **result},
    }  # fmt: skip
    (folder / "config.yaml").write_text("seed: 1\n")
    (folder / "run_record.json").write_text(json.dumps(record))
    return mpitrain.open(folder)


@pytest.mark.parametrize("skill", [[1], {"y": 3}, {"y": {"rmse": "x", "units": "m"}}, {"y": {"rmse": 1, "units": 5}}])
def test_a_skill_that_is_none_is_refused(tmp_path: Path, skill: Any) -> None:
    run = run_of(tmp_path, skill=skill)
    with pytest.raises(
        mpitrain.UserError, match=r"run_record\.json: cannot be read \(it is not a record: result\.skill"
    ):
        repr(run)


def test_no_text_of_the_folder_reaches_the_terminal_as_it_is(tmp_path: Path) -> None:
    skill = {ESCAPES: {"rmse": 0.5, "units": ESCAPES}, "z": {"rmse": None, "units": "m"}}
    run = run_of(tmp_path, weights_sha256=ESCAPES * 3, skill=skill)
    assert repr(run).isprintable()
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"epoch": 1, "step": 1, "train_loss": 1.0, ESCAPES: 2}) + "\n")
    assert all(line.isprintable() for line in repr(run.metrics).split("\n"))


def test_a_page_of_a_stranger_runs_no_script_in_a_notebook(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (tmp_path / "report.html").write_bytes(b"\xff<script>alert(1)</script>\"'>")
    shown = run.report._repr_html_()
    assert shown.startswith('<iframe sandbox="" srcdoc="')
    assert "<script" not in shown


def test_a_table_has_the_columns_of_all_records() -> None:
    table = Table.of_records([{"epoch": 1}, {"epoch": 2, "jacobian_change": 0.5, "several": [1, 2]}])
    assert dict(table) == {"epoch": [1, 2], "jacobian_change": [None, 0.5]}
