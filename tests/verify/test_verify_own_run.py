"""`mpitrain verify` on a user's own configuration and file: the same claims, a real failure, and every refusal."""

from __future__ import annotations

from pathlib import Path

from conftest import launch
from cpp_program import cpp_program
from own_runs import cases_of, reference_yaml


def test_own_reference_run(tmp_path: Path) -> None:
    cpp_program()
    flags = ["--config", str(reference_yaml(tmp_path)), "--ranks", "1,3", "--output", str(tmp_path / "out")]
    done = launch(["-m", "mpitrain", "verify", *flags])
    assert done.returncode == 0, done.stderr
    cases = cases_of(tmp_path / "out")
    assert [(case["case"], case["ranks"], case["claim"]) for case in cases] == [
        ("your run/torch", 1, "exact"), ("your run/plain", 1, "close float32"),
        ("your run/torch", 3, "exact"), ("your run/plain", 3, "close float32"),
    ]  # fmt: skip
    assert all(case["passed"] for case in cases)
    assert all(v["different"] == 0 for case in cases if case["claim"] == "exact" for v in case["variables"].values())
    # 200 epochs, not the default: step 100 is traced, step 1000 is not.
    assert "weights_step100.fc1.weight" in cases[0]["variables"]
    assert "weights_step1000.fc1.weight" not in cases[0]["variables"]
    assert (tmp_path / "out" / "verify.html").stat().st_size > 1000
