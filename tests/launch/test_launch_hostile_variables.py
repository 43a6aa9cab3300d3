"""No variable that a script reads is ever run: each in turn holds hostile text, and bash really runs the script."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from played_scheduler import Stage

from mpitrain.launch.job_request import make_job_request
from mpitrain.launch.submit import RENDERERS

CANARY = "canary"
# What arithmetic, eval, a test, an expansion, a glob and a command line each would run or read as something else.
HOSTILE = (
    f"x[$(touch {CANARY})]=1",
    f"$(touch {CANARY})`touch {CANARY}`",
    f"1; touch {CANARY}\ntouch {CANARY}",
    f"-1 || touch {CANARY}",
    "../../elsewhere",
)
SWEEP = (("seed=1",), ("seed=2",))
REQUESTS = {
    "slurm": {"nodes": 2, "tasks_per_node": 2, "sweep": SWEEP},
    "pbs": {"nodes": 2, "tasks_per_node": 2, "sweep": SWEEP},
    "local": {"tasks_per_node": 2},
}
# What a scheduler tells of a job as a number: anything else ends the script before it is used.
NUMBERS = re.compile(r"SLURM_(JOB_ID|JOB_NUM_NODES|CPUS_PER_TASK|ARRAY_.*)|PBS_ARRAY_INDEX|NPROC_PER_NODE")
OF_BASH = {"PWD", "EUID", "BASH_REMATCH", "PATH"}


def script_of(scheduler: str) -> str:
    return RENDERERS[scheduler](make_job_request(**REQUESTS[scheduler]))


def variables_of(scheduler: str) -> list[str]:
    """Every variable of the environment that the script names, so that a new one is tried as soon as it is read."""
    script = "\n".join(line for line in script_of(scheduler).splitlines() if not line.startswith("#"))
    names = set(re.findall(r"\b(?:SLURM|PBS|OMPI|PMI)_[A-Z_]+\b|\$\{?!?([A-Z][A-Z0-9_]+)", script))
    names |= set(re.findall(r"\b(?:SLURM|PBS)_[A-Z_]+\b", script)) | set(re.findall(r"^take ([A-Z_]+)", script, re.M))
    return sorted(names - OF_BASH - {""})


CASES = [(scheduler, name) for scheduler in REQUESTS for name in variables_of(scheduler)]


@pytest.mark.parametrize(("scheduler", "name"), CASES)
def test_nothing_of_a_hostile_variable_runs(scheduler: str, name: str, tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage")
    for text in HOSTILE:
        done = stage.run(script_of(scheduler), {name: text})
        assert list(tmp_path.rglob(CANARY)) == [], f"{name}={text} ran"
        assert name == "OUTPUT" or not (tmp_path / "elsewhere").exists()
        if NUMBERS.fullmatch(name):
            assert done.returncode == 2, f"{name}={text}: {done.stderr}"
            assert f"{name}={text}: not of the form" in done.stderr
            assert stage.arguments_of("python") == []


def test_the_variables_are_found() -> None:
    names = variables_of("slurm")
    assert {"SLURM_JOB_NUM_NODES", "SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "EPOCHS", "OUTPUT", "PYTHON"} <= set(names)
    assert {"PBS_NODEFILE", "PBS_JOBID", "MPIRUN", "NPROC_PER_NODE"} <= set(variables_of("pbs"))


def test_a_script_that_trusts_a_number_is_caught(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage")
    stage.run("set -u; for ((n = 0; n < SLURM_JOB_NUM_NODES; n++)); do :; done", {"SLURM_JOB_NUM_NODES": HOSTILE[0]})
    assert list(tmp_path.rglob(CANARY)) != []
