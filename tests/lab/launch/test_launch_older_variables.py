"""What a job script does with the variables that other trainers' scripts read."""

from __future__ import annotations

from pathlib import Path

import pytest
from guides import Names, Outcome, Says, cases_of
from older_habits import OF_JOBS
from played_scheduler import PYTHON, Stage

from mpitrain.launch.inside.settings import OLDER_VARIABLES
from mpitrain.launch.job_request import make_job_request
from mpitrain.launch.schedulers.table import SCHEDULERS


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "stage")


@pytest.mark.parametrize(("variable", "outcome"), [*cases_of("jobs"), *OF_JOBS], ids=lambda value: str(value)[:40])
def test_each_variable_takes_effect_or_is_answered(stage: Stage, variable: str, outcome: Outcome) -> None:
    name, _, value = variable.partition("=")
    done = stage.run(SCHEDULERS["slurm"].render(make_job_request()), {name: value})
    if isinstance(outcome, Names):
        assert (done.returncode, done.stderr.count("\n")) == (outcome.code, 1)
        assert outcome.words in done.stderr
        assert stage.arguments_of("python") == []
        return
    assert done.returncode == 0, done.stderr
    if isinstance(outcome, Says):
        assert done.stderr.startswith(f"note: {outcome.words}")
        assert value not in "".join(stage.arguments_of("python"))
    else:
        assert outcome.key in stage.arguments_of("python")
        assert done.stderr == ""


@pytest.mark.parametrize("name", OLDER_VARIABLES)
def test_a_variable_that_is_not_read_is_answered_in_a_line(stage: Stage, name: str) -> None:
    script = SCHEDULERS["slurm"].render(make_job_request())
    done = stage.run(script, {name: "$(touch /dev/null)5"})
    assert done.returncode == 0, done.stderr
    assert done.stderr == f"note: {name}=$(touch /dev/null)5: not read by this script; {OLDER_VARIABLES[name]}\n"
    assert "5" not in stage.arguments_of("python")
    assert stage.run(script, {"OUTPUT": "other"}).stderr == ""


def test_the_time_limit_of_collectives_is_a_setting(stage: Stage) -> None:
    script = SCHEDULERS["pbs"].render(make_job_request())
    assert stage.run(script, {"NCCL_TIMEOUT": "1800"}).returncode == 0
    assert "distributed.timeout_s=1800" in stage.arguments_of("python")
    assert stage.run(script, {"NCCL_TIMEOUT": "1; touch x", "OUTPUT": "other"}).returncode == 2


@pytest.mark.parametrize("given", ["ours", "folder"])
def test_a_conda_environment_by_name_or_folder_is_the_ranks_python(stage: Stage, given: str) -> None:
    environment = stage.root / "conda" / "envs" / "ours"
    (environment / "bin").mkdir(parents=True)
    python = environment / "bin" / "python"
    python.write_text(PYTHON + 'echo "$0" >"$RECORDS/which"\n')
    python.chmod(0o755)
    stage.add_command("conda", f"#!/bin/sh\necho {stage.root / 'conda'}\n")
    name = given if given == "ours" else str(environment)
    done = stage.run(SCHEDULERS["slurm"].render(make_job_request()), {"CONDA_ENV": name})
    assert done.returncode == 0, done.stderr
    assert (stage.records / "which").read_text().strip() == str(python)
    missing = stage.run(SCHEDULERS["slurm"].render(make_job_request()), {"CONDA_ENV": "gone", "OUTPUT": "other"})
    assert missing.returncode == 3
    assert "envs/gone/bin/python: not found" in missing.stderr
    (stage.bin / "conda").unlink()
    without = stage.run(SCHEDULERS["slurm"].render(make_job_request()), {"CONDA_ENV": "ours", "OUTPUT": "other"})
    assert (without.returncode, without.stderr.count("\n")) == (3, 1)
    assert without.stderr.startswith("CONDA_ENV: no conda on the PATH")


@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "local"])
@pytest.mark.parametrize("command", ["doctor", "data generate"])
def test_a_job_that_does_not_train_says_what_it_does_not_read(stage: Stage, scheduler: str, command: str) -> None:
    script = SCHEDULERS[scheduler].render(make_job_request(command=command))
    done = stage.run(script, {"EPOCHS": "3", "TRAIN_SAMPLES": "9", "PYTHON": "python"})
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        f"note: {variable}: not read by this script; mpitrain {command} does not train"
        for variable in ("EPOCHS=3", "TRAIN_SAMPLES=9")
    ]
    head = script.partition("set -euo pipefail")[0]
    assert "EPOCHS" not in head
    assert "CONDA_ENV" in head
