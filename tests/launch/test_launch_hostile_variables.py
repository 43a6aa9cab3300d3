"""No variable that a script reads is ever run: each in turn holds hostile text, and bash really runs the script."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from played_scheduler import Stage

import mpitrain.launch
from mpitrain.cli.main import main
from mpitrain.errors import one_line
from mpitrain.launch.job_request import make_job_request
from mpitrain.launch.schedulers.table import SCHEDULERS

CANARY = "canary"
# What arithmetic, eval, a test, an expansion, a glob and a command line each would run or read as something else.
HOSTILE = (
    f"x[$(touch {CANARY})]=1",
    f"$(touch {CANARY})`touch {CANARY}`",
    f"1; touch {CANARY}\ntouch {CANARY}",
    f"-1 || touch {CANARY}",
    "../../elsewhere",
)
SWEEP = ("seed=1,2",)
REQUESTS = {
    "slurm": {"nodes": 2, "tasks_per_node": 2, "sweep": SWEEP},
    "pbs": {"nodes": 2, "tasks_per_node": 2, "sweep": SWEEP},
    "local": {"tasks_per_node": 2},
}
# What a scheduler tells of a job as a number: anything else ends the script before it is used.
NUMBERS = re.compile(r"SLURM_(JOB_ID|JOB_NUM_NODES|CPUS_PER_TASK|ARRAY_.*)|PBS_ARRAY_INDEX|NPROC_PER_NODE")
LAUNCH = Path(mpitrain.launch.__file__).parent
# Set by the command itself, or forwarded as they are.
OTHERS = {"LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS", "MPITRAIN_EXIT_CODE_FILE", "MPITRAIN_SECRET",
          "OMPI_MCA_rmaps_base_oversubscribe"}  # fmt: skip


def script_of(scheduler: str) -> str:
    return SCHEDULERS[scheduler].render(make_job_request(**REQUESTS[scheduler]))


def read_by_script(scheduler: str) -> list[str]:
    """Every variable that the script itself names, so that a new one is tried as soon as it is read."""
    script = "\n".join(line for line in script_of(scheduler).splitlines() if not line.startswith("#"))
    return sorted(set(re.findall(r"\$\{?!?([A-Z][A-Z0-9_]+)", script)) - {"PATH"})


def read_by_command(scheduler: str) -> list[str]:
    """Every variable that the script's command names in its source."""
    modules = [path for path in (LAUNCH / "inside").glob("*.py") if path.stem != "slurm_hosts"]
    texts = [path.read_text() for path in (*modules, LAUNCH / "schedulers" / f"{scheduler}.py")]
    return sorted(
        {name for text in texts for name in re.findall(r"[\"'](?!PATH)([A-Z][A-Z0-9_]{3,}|LR)[\"']", text)} - OTHERS
    )


def check(stage: Stage, name: str, text: str, code: int, stderr: str) -> None:
    assert list(stage.root.rglob(CANARY)) == [], f"{name}={text} ran"
    assert name == "OUTPUT" or not (stage.root / "elsewhere").exists()
    if NUMBERS.fullmatch(name):
        assert code == 2, f"{name}={text}: {stderr}"
        assert f"{name}={one_line(text)}: not of the form" in stderr
        assert stage.arguments_of("python") == []


@pytest.mark.lab
@pytest.mark.parametrize(("scheduler", "name"), [(one, name) for one in REQUESTS for name in read_by_script(one)])
def test_nothing_of_a_hostile_variable_runs(scheduler: str, name: str, tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage")
    for text in HOSTILE:
        done = stage.run(script_of(scheduler), {name: text})
        check(stage, name, text, done.returncode, done.stderr)


@pytest.mark.lab
@pytest.mark.parametrize(("scheduler", "name"), [(one, name) for one in REQUESTS for name in read_by_command(one)])
def test_nothing_of_a_hostile_variable_runs_in_the_command(
    scheduler: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: the command that the script ends with, with a scheduler that is played."""
    stage = Stage(tmp_path / "stage")
    monkeypatch.chdir(stage.cwd)
    command = script_of(scheduler).partition('exec "$python" ')[2].replace("$python", "python").replace("\\\n", " ")
    for text in HOSTILE:
        with monkeypatch.context() as patch:
            for variable, value in {"OMP_NUM_THREADS": "1", **stage.environ, name: text}.items():
                patch.setenv(variable, value)
            words = shlex.split(command)
            code = main(words[words.index("mpitrain") + 1 :])
        check(stage, name, text, code, capsys.readouterr().err)


def test_the_variables_are_found() -> None:
    assert {"SLURM_CPUS_PER_TASK", "PYTHON", "CONDA_ENV"} <= set(read_by_script("slurm"))
    assert "PBS_O_WORKDIR" in read_by_script("pbs")
    read = {name: set(read_by_command(name)) for name in REQUESTS}
    assert {"SLURM_JOB_NUM_NODES", "SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "EPOCHS", "OUTPUT"} <= read["slurm"]
    assert {"PBS_NODEFILE", "PBS_JOBID", "MPIRUN", "NPROC_PER_NODE"} <= read["pbs"]
    assert not {name for name in read["local"] if "PBS" in name}


@pytest.mark.lab
def test_a_script_that_trusts_a_number_is_caught(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage")
    stage.run("set -u; for ((n = 0; n < SLURM_JOB_NUM_NODES; n++)); do :; done", {"SLURM_JOB_NUM_NODES": HOSTILE[0]})
    assert list(tmp_path.rglob(CANARY)) != []
