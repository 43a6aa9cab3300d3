"""The scripts as text: whole goldens, shellcheck, and that nothing a user writes becomes shell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import PROJECT
from job_files import job_files
from played_scheduler import Stage

from mpitrain.errors import UserError
from mpitrain.launch import script
from mpitrain.launch.job_request import JobRequest, make_job_request
from mpitrain.launch.schedulers.table import SCHEDULERS

GOLDENS = Path(__file__).parent / "goldens"
EVERYTHING = {
    "nodes": 2,
    "tasks_per_node": 3,
    "num_tasks": 4,
    "gpus_per_node": 4,
    "cpus_per_task": 2,
    "memory": "64G",
    "walltime": "1-02:00:00",
    "signal_s": 300,
    "requeue": False,
    "partition": "short,long",
    "account": "proj_1",
    "job_name": "every_field",
    "mail": "me@site.org",
    "modules": ("gcc/13", "netcdf/4.9"),
    "environment": ("OMP_PROC_BIND=close", "NOTE=it's; here"),
    "mpi": "pmix",
    "network": "ib",
    "interface": "ib0",
    "adapters": "mlx5_0,mlx5_1",
    "nccl_debug": "INFO",
    "log_level": "debug",
    "python": "/opt/venv/bin/python",
    "config_path": "my runs/run.yaml",
    "settings": ("training.epochs=3", "model.initial_weights=it's; here"),
    "run_folder": "my run's folder",
}
MANUAL = {"nodes": 2, "tasks_per_node": 2, "num_tasks": 3, "hosts": ("n1", "n2"), "interface": "eth0", "mpi": "none"}
SWEEP = ("training.epochs=3,4", "seed=1,it's")
REQUESTS = {
    "slurm_everything": ("slurm", EVERYTHING),
    "slurm_ethernet": ("slurm", {"nodes": 2, "gpus_per_node": 1, "network": "ethernet", "interface": "eth0"}),
    "pbs_everything": ("pbs", EVERYTHING),
    "torque_everything": ("torque", EVERYTHING),
    "local": ("local", {"tasks_per_node": 4, "settings": ("training.epochs=3",)}),
    "manual": ("manual", MANUAL),
    "slurm_array": ("slurm", {"nodes": 2, "sweep": SWEEP}),
    "pbs_array": ("pbs", {"nodes": 2, "sweep": SWEEP}),
    "slurm_packed": ("slurm", {"nodes": 2, "packed_environment": "it's my.tar"}),
    "pbs_packed": ("pbs", {"nodes": 2, "packed_environment": "it's my.tar"}),
    "local_ensemble": ("local", {"tasks_per_node": 4, "command": "ensemble", "restarts": 1}),
}
MOST_LINES = 60

CANARY = "canary"
HOSTILE = [
    f"; touch {CANARY}", f"$(touch {CANARY})", f"`touch {CANARY}`", f"'; touch {CANARY} #", f'"; touch {CANARY} #',
    f"x' && touch {CANARY} && echo '", f'"$(touch {CANARY})"', f"${{x:-$(touch {CANARY})}}", f"a[$(touch {CANARY})]",
    f"| tee {CANARY}", f"& touch {CANARY} &", f"\\'; touch {CANARY}",
]  # fmt: skip
NEWLINES = [
    f"x\ntouch {CANARY}", f"x'\ntouch {CANARY}\n'", f"x\r\ntouch {CANARY}", f"x\n#SBATCH --wrap=touch\\ {CANARY}",
    f"x\x00touch {CANARY}", f"x\x85touch {CANARY}", f"x\u2028touch {CANARY}", "x\x1b[2J", "x\udc80",
]  # fmt: skip
ONLY_NAMES = [
    "memory", "walltime", "partition", "account", "job_name", "mail", "mpi", "network", "interface", "adapters",
    "nccl_debug", "log_level", "command", "modules", "hosts",
]  # fmt: skip
LISTS = ("modules", "hosts", "environment", "settings")


def rendered(name: str) -> str:
    scheduler, fields = REQUESTS[name]
    return SCHEDULERS[scheduler].render(make_job_request(**fields))


def field_value(name: str, text: str) -> object:
    """`text` in the place of a field's value, in the shape that the field has."""
    if name == "sweep":
        return (f"model.name={text}",)
    texts = {"environment": f"NAME={text}", "settings": f"model.name={text}"}
    return (texts.get(name, text),) if name in LISTS else text


def test_jobs_folder_is_what_the_table_gives():
    folders = [PROJECT / "jobs" / name.split("/")[0] for name in job_files()]
    written = [path for folder in sorted(set(folders)) for path in folder.rglob("*") if path.is_file()]
    files = {str(path.relative_to(PROJECT / "jobs")): path for path in written}
    assert {name: path.read_text() for name, path in files.items()} == job_files()
    assert all(bool(path.stat().st_mode & 0o100) == (path.suffix == ".sh") for path in files.values())


@pytest.mark.parametrize("name", REQUESTS)
def test_script_is_its_golden(name):
    assert rendered(name) == (GOLDENS / f"{name}.sh").read_text()


def test_no_golden_is_left_over():
    assert {path.name for path in GOLDENS.iterdir()} == {f"{name}.sh" for name in REQUESTS}


@pytest.mark.lab
def test_scripts_are_clean_for_shellcheck():
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck on the PATH")
    scripts = [*GOLDENS.glob("*.sh"), *(PROJECT / "jobs").rglob("*.sh")]
    assert len(scripts) > 15
    done = subprocess.run(["shellcheck", *map(str, scripts)], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_script_is_short_and_every_export_has_its_reason(name):
    lines = rendered(name).splitlines()
    assert len(lines) <= MOST_LINES
    for line in lines:
        if line.startswith("export ") and "MASTER" not in line:
            assert "  # " in line
        assert len(line) <= 120 or line.startswith("    ")  # one long word


@pytest.mark.parametrize("field", ONLY_NAMES)
def test_text_of_a_directive_is_refused_unless_it_is_a_name(field):
    for text in (*HOSTILE, *NEWLINES, "", " ", "-x", "x y", "x\n"):
        with pytest.raises(UserError) as caught:
            make_job_request(**{field: field_value(field, text)})
        assert len(str(caught.value).splitlines()) == 1
        assert str(caught.value).isprintable()


@pytest.mark.parametrize("field", ["environment", "settings", "sweep", "config_path", "run_folder", "python"])
def test_text_that_is_quoted_is_one_printable_line(field):
    for text in NEWLINES:
        with pytest.raises(UserError):
            make_job_request(**{field: field_value(field, text)})


@pytest.mark.parametrize(
    "line", ["BASH_ENV=$(touch canary)", "ENV=x", "PS4=$(touch canary)", "SLURM_PROCID=0", "A B=1", "=1", "a[0]=1", "A"]
)
def test_variables_that_a_shell_reads_for_itself_are_refused(line):
    with pytest.raises(UserError, match="--env"):
        make_job_request(environment=(line,))


@pytest.mark.parametrize("scheduler", [name for name in SCHEDULERS if name != "torque"])
@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_of_a_hostile_text_runs(scheduler, text, tmp_path):
    stage = Stage(tmp_path / "stage", python_name=text)
    (stage.cwd / f"{text}.yaml").write_text("")
    fields = {name: field_value(name, text) for name in ("environment", "settings", "run_folder")}
    fields["config_path"] = f"{text}.yaml"
    if scheduler in ("slurm", "pbs"):
        fields["sweep"] = field_value("sweep", text)
    script = SCHEDULERS[scheduler].render(make_job_request(**fields, python=text))
    done = stage.run(script)
    assert list(tmp_path.rglob(CANARY)) == [], script
    # It really came to the ranks, every word as it was written.
    assert done.returncode == 0, done.stderr
    words = stage.arguments_of("python")
    assert words[:4] == ["-m", "mpitrain", "train", f"{text}.yaml"]
    assert words.count(f"model.name={text}") == (2 if "sweep" in fields else 1)
    folder = text + ("-0" if "sweep" in fields else "")
    assert "output.model_dir='{}'".format(folder.replace("'", "''")) in words
    assert (stage.cwd / folder / "job_id").exists() == (scheduler != "manual")


@pytest.mark.parametrize(
    "fields",
    [{"job_name": "x\ntouch canary"}, {"settings": ("a=$(touch canary)",)}, {"environment": ("A=`touch canary`",)}],
)
def test_the_canary_test_can_fail(fields, tmp_path, monkeypatch):
    stage = Stage(tmp_path / "stage")
    monkeypatch.setattr(script, "quote", '"{}"'.format)
    request = JobRequest.model_construct(**{**JobRequest().model_dump(), **fields})
    stage.run(SCHEDULERS["slurm"].render(request))
    assert list(tmp_path.rglob(CANARY)) != []


def write_goldens() -> None:
    """Write the goldens anew; read the difference before it is kept."""
    for name in REQUESTS:
        (GOLDENS / f"{name}.sh").write_text(rendered(name))


if __name__ == "__main__":
    write_goldens()
