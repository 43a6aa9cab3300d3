"""Mistakes that people make in such programs, put into Python's side: the comparison names the stage of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import TESTS, launch
from cpp_program import cpp_program
from planted_faults.stages import Fault
from planted_faults.table import FAULTS

from mpitrain.verify.compare import compare_traces
from mpitrain.verify.trace import read_trace

NUM_RANKS = 3
SOUND = {"reference": "reference/torch", "standard": "standard, full batch/torch"}  # a case for each semantics
TIMEOUT_S = 900.0


def traces_of(fault: Fault, folder: Path) -> tuple[Path, Path]:
    """The sound run's trace by the C++ program, and the faulty one's."""
    stem = "".join(letter if letter.isalnum() else "_" for letter in SOUND[fault.semantics].rpartition("/")[0])
    return folder / "traces" / f"{stem}_np{NUM_RANKS}.torch.nc", folder / f"fault_{FAULTS.index(fault)}.nc"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a verification of sound runs, with a trace beside it of each run with a fault."""
    cpp_program()  # built outside the time limit
    folder = tmp_path_factory.mktemp("faults")
    cases = [word for name in SOUND.values() for word in ("--case", name)]
    flags = [*cases, "training.epochs=10", "--ranks", str(NUM_RANKS), "--output", str(folder)]
    done = launch(["-m", "mpitrain", "verify", *flags], timeout_s=TIMEOUT_S)
    assert done.returncode == 0, f"differs without a fault, so any would seem to be found: {done.stdout}{done.stderr}"
    sound: list[dict[str, Any]] = json.loads((folder / "traces" / f"jobs_np{NUM_RANKS}.json").read_text())
    jobs = [
        {key: f"{trace}.{key}" if key in ("initial_weights", "batch_order") else value for key, value in job.items()}
        | {"trace": str(trace), "fault": fault.name}
        for fault, job, trace in (
            (fault, sound[list(SOUND).index(fault.semantics)], traces_of(fault, folder)[1]) for fault in FAULTS
        )
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs))
    program = str(TESTS / "planted_faults" / "python_side.py")
    done = launch([program, str(folder / "jobs.json")], NUM_RANKS, timeout_s=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.lab
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_named_at_its_stage(compared: Path, fault: Fault) -> None:
    sound, faulty = (read_trace(path) for path in traces_of(fault, compared))
    first = compare_traces(sound, faulty, "exact").first_difference
    assert first is not None
    assert first.stage == fault.stage, str(first)


def test_there_are_many_faults() -> None:
    assert len(FAULTS) >= 15
    assert {fault.semantics for fault in FAULTS} == {*SOUND}
