"""The scripts run: their way through a warning, a restart and wrong values under a played scheduler, and for real."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, find_mpirun, launch, launcher_environment, without_notes_on_cores
from job_files import job_files
from played_scheduler import Stage

from mpitrain.launch.job_request import make_job_request
from mpitrain.launch.schedulers.table import SCHEDULERS

# What the played python does: stop as asked, with exit code 5, or end after half a minute.
STOP_AS_ASKED = 'trap "exit 5" USR1; touch "$RECORDS/started"; for _ in {1..300}; do sleep 0.1; done'
ENSEMBLE = "ens"
SWEEP = ("training.optimizer.learning_rate=0.003,0.001", "model.hidden_size=16,64")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "stage")


def slurm(**fields: object) -> str:
    return SCHEDULERS["slurm"].render(make_job_request(**{"nodes": 2, "tasks_per_node": 2, **fields}))


def wait_for(path: Path) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not path.exists():
        assert time.monotonic() < deadline_s, f"{path} did not appear"
        time.sleep(0.02)


def run_and_signal(stage: Stage, script: str, number: int, **environ: str) -> tuple[int, str]:
    """Run a script, send it a signal when its ranks have started, and return its exit code and output."""
    process = stage.start(script, {"PLAY": STOP_AS_ASKED, **environ})
    wait_for(stage.records / "started")
    time.sleep(0.1)  # the played python is at its first sleep
    process.send_signal(number)
    if number == signal.SIGTERM:
        # as Slurm does: TERM goes to the ranks too, here as the stop that they understand
        time.sleep(0.2)
        assert process.poll() is None, "the script left before its ranks"
        os.kill(int((stage.records / "pid").read_text()), signal.SIGUSR1)
    stdout, _ = process.communicate(timeout=TIMEOUT_S)
    return process.returncode, stdout


def save_checkpoint(folder: Path) -> None:
    (folder / "checkpoints" / "step-00000001").mkdir(parents=True)
    (folder / "checkpoints" / "step-00000001" / "commit.json").write_text("{}")
    (folder / "config.yaml").write_text("")


@pytest.mark.lab
def test_srun_is_told_everything_and_the_logs_are_linked(stage):
    done = stage.run(slurm(mpi="pmix", cpus_per_task=3), {"SLURM_CPUS_PER_TASK": "3"})
    assert done.returncode == 0, done.stderr
    assert stage.arguments_of("srun")[:12] == [
        "--mpi=pmix", "--export=ALL", "--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--cpus-per-task=3",
        "--no-kill=off", "--kill-on-bad-exit=1", "--cpu-bind=cores", "--label", "--output=logs/77_node%n.log",
        "--open-mode=append",
    ]  # fmt: skip
    links = {path.name: os.readlink(path) for path in (stage.cwd / "logs").iterdir()}
    assert links == {"latest_node0.log": "77_node0.log", "latest_node1.log": "77_node1.log"}
    exports = (stage.records / "exports").read_text()
    assert 'declare -x OMP_NUM_THREADS="3"' in exports
    assert 'declare -x HDF5_USE_FILE_LOCKING="FALSE"' in exports


@pytest.mark.lab
def test_uneven_ranks_are_asked_for(stage):
    stage.run(slurm(tasks_per_node=3, num_tasks=4))
    assert {"--ntasks=4", "--ntasks-per-node=3"} <= set(stage.arguments_of("srun"))


def test_exit_code_of_the_run_is_the_script_s(stage):
    for code in (0, 2, 4, 5, 137):
        assert stage.run(slurm(), {"PLAY": f"exit {code}", "OUTPUT": f"run{code}"}).returncode == code
    assert not (stage.records / "scontrol").exists(), "requeued without a warning"


@pytest.fixture
def two_hosts(stage):
    """A job of two hosts, of which only n1 answers; its run loses a rank at its first attempt."""
    stage.add_command("scontrol", '#!/usr/bin/env bash\nprintf "n1\\nn2\\n"\n')
    stage.add_command(
        "srun",
        """#!/usr/bin/env bash
for word in "$@"; do [[ $word != --nodelist=n2 ]] || exit 1; done
printf "%s\\0" "$@" >"$RECORDS/srun"
while [[ $1 == --* ]]; do shift; done
exec "$@"
""",
    )
    return stage


LOSE_ONCE = 'n=$(cat "$RECORDS/n" || true); echo "1$n" >"$RECORDS/n"; mkdir -p "mpitrain_run-77/checkpoints/s"; ' \
    'touch mpitrain_run-77/checkpoints/s/commit.json; [[ -n $n ]] || exit '  # fmt: skip


@pytest.mark.parametrize(("code", "attempts"), [(137, 2), (9, 2), (3, 2), (1, 1), (2, 1), (4, 1), (5, 1)])
def test_what_is_left_of_a_run_starts_again(two_hosts, code, attempts):
    done = two_hosts.run(slurm(), {"PLAY": f"{LOSE_ONCE}{code}", "SLURM_JOB_NODELIST": "n[1-2]"})
    assert (two_hosts.records / "n").read_text() == "1" * attempts + "\n"
    assert done.returncode == (0 if attempts == 2 else code)
    if attempts == 2:
        assert {"--nodelist=n1", "--nodes=1", "--ntasks=2"} <= set(two_hosts.arguments_of("srun"))
        assert two_hosts.arguments_of("python")[-2:] == ["--resume", "--take-over"]
        said = (
            f"the run ended with exit code {code}; 1 of 2 hosts answer: restarting with --resume --take-over and "
            "2 ranks on n1 (restarts left: 2)"
        )
        assert said in done.stdout


def test_restarts_are_bounded(two_hosts):
    play = 'echo >>"$RECORDS/attempts"; exit 137'
    environ = {"PLAY": play, "SLURM_JOB_NODELIST": "n[1-2]"}
    done = two_hosts.run(slurm(restarts=2), environ)
    assert (done.returncode, (two_hosts.records / "attempts").read_text()) == (137, "\n" * 3)
    local = SCHEDULERS["local"].render(make_job_request(restarts=1))
    (two_hosts.records / "attempts").unlink()
    done = two_hosts.run(local, environ)
    assert (done.returncode, (two_hosts.records / "attempts").read_text()) == (137, "\n" * 2)
    assert "the run ended with exit code 137: restarting with --overwrite --take-over (restarts left: 0)" in done.stdout


@pytest.mark.lab
def test_warning_before_the_limit_stops_requeues_and_resumes(stage):
    exit_code, stdout = run_and_signal(stage, slurm(), signal.SIGUSR1)
    assert exit_code == 5
    assert "requeued" in stdout
    assert (stage.records / "scontrol").read_text() == "requeue 77\n"
    folder = stage.cwd / "mpitrain_run-77"
    assert "--resume" not in stage.arguments_of("python")
    stage.run(slurm())
    assert "--overwrite" in stage.arguments_of("python"), "the earlier attempt has no checkpoint yet"
    save_checkpoint(folder)
    stage.run(slurm())
    assert "--resume" in stage.arguments_of("python")


@pytest.mark.lab
@pytest.mark.parametrize("code", [137, 143])
def test_ranks_that_srun_ends_after_the_first_one_has_stopped_are_no_failure(stage, code):
    play = STOP_AS_ASKED.replace("exit 5", f"exit {code}")
    assert play != STOP_AS_ASKED
    exit_code, stdout = run_and_signal(stage, slurm(), signal.SIGUSR1, PLAY=play)
    assert (exit_code, (stage.records / "scontrol").read_text()) == (code, "requeue 77\n"), stdout


@pytest.mark.lab
def test_cancelled_job_waits_for_its_ranks_and_is_not_requeued(stage):
    exit_code, _ = run_and_signal(stage, slurm(), signal.SIGTERM)
    assert exit_code == 5
    assert not (stage.records / "scontrol").exists()


@pytest.mark.lab
def test_no_requeue_says_how_to_go_on(stage):
    exit_code, stdout = run_and_signal(stage, slurm(requeue=False), signal.SIGUSR1)
    assert exit_code == 5
    assert "RESUME=1,OUTPUT=mpitrain_run-77" in stdout
    assert not (stage.records / "scontrol").exists()
    stage.run(slurm(), {"RESUME": "1", "OUTPUT": "mpitrain_run-77", "SLURM_JOB_ID": "80"})
    assert "--resume" in stage.arguments_of("python")
    assert (stage.cwd / "mpitrain_run-77" / "job_id").read_text() == "80\n"


@pytest.mark.lab
def test_run_of_another_job_is_neither_resumed_nor_replaced(stage):
    save_checkpoint(stage.cwd / "mine")
    done = stage.run(slurm(run_folder="mine"), {"SLURM_RESTART_COUNT": "1"})
    assert done.returncode == 0
    assert not {"--resume", "--overwrite"} & set(stage.arguments_of("python"))
    assert not (stage.cwd / "mine" / "job_id").exists()


@pytest.mark.lab
def test_settings_come_from_the_job_s_environment(stage):
    environ = {
        "EPOCHS": "200", "LR": "1e-4", "BATCH_SIZE": "full", "DATA": "/data/ice-1.nc", "OUTPUT": "out/a", "SEED": "0",
        "BACKEND": "gloo", "LOG_LEVEL": "debug", "NPROC_PER_NODE": "3",
    }  # fmt: skip
    done = stage.run(slurm(settings=("training.epochs=7",)), environ)
    assert done.returncode == 0, done.stderr
    assert stage.arguments_of("python") == [
        "-m", "mpitrain", "train", "training.epochs=7", "--log-level", "debug", "training.epochs=200",
        "training.optimizer.learning_rate=1e-4", "training.batch_size=full", "data.data_path=/data/ice-1.nc", "seed=0",
        "compute.backend=gloo", "output.model_dir='out/a'",
    ]  # fmt: skip
    assert "--ntasks=6" in stage.arguments_of("srun")
    assert "LR of the environment: training.optimizer.learning_rate=1e-4" in done.stdout


@pytest.mark.lab
@pytest.mark.parametrize("scheduler", ["slurm", "pbs", "local"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("EPOCHS", "2; touch canary"), ("EPOCHS", "-1"), ("LR", "$(touch canary)"), ("LR", "1e"), ("BATCH_SIZE", "0"),
        ("DATA", "a\ntouch canary"), ("DATA", "a b"), ("OUTPUT", "`touch canary`"), ("OUTPUT", "-rf"), ("SEED", "x"),
        ("BACKEND", "mpi|touch"), ("LOG_LEVEL", "loud"), ("NPROC_PER_NODE", "a[$(touch canary)]"),
    ],
)  # fmt: skip
def test_wrong_value_of_the_environment_is_refused(stage, scheduler, name, value):
    done = stage.run(SCHEDULERS[scheduler].render(make_job_request()), {name: value})
    assert done.returncode == 2
    shown = value.replace("\n", "\\n")
    assert done.stderr.startswith(f"mpitrain: error: {name}={shown}: not of the form")
    assert stage.arguments_of("python") == []
    assert list(stage.root.rglob("canary")) == []


@pytest.mark.lab
def test_missing_config_and_missing_python_are_said(stage):
    done = stage.run(slurm(config_path="no such.yaml"))
    assert (done.returncode, done.stderr) == (
        2,
        f"mpitrain: error: no such.yaml: cannot be opened from {stage.cwd}; "
        "check that the file is readable, and start the job in the folder that this path is relative to\n",
    )
    done = stage.run(slurm(), {"PYTHON": "python-of-mine"})
    assert done.returncode == 3
    assert done.stderr.startswith("python-of-mine: not found")


@pytest.mark.lab
@pytest.mark.parametrize("name", sorted(name for name in job_files() if name.endswith(".sh")))
def test_script_of_the_jobs_folder_reaches_its_ranks(stage, name):
    for path, text in job_files().items():
        (stage.cwd / "jobs" / path).parent.mkdir(parents=True, exist_ok=True)
        (stage.cwd / "jobs" / path).write_text(text)
    done = stage.run(f"exec bash jobs/{name}")
    assert done.returncode == 0, done.stderr
    words = stage.arguments_of("python")
    commands = {"doctor": ["doctor"], "generate_data": ["data", "generate"], "sweep": ["ensemble"]}
    command = commands.get(Path(name).stem, ["train"])
    assert words[: 2 + len(command)] == ["-m", "mpitrain", *command]


@pytest.mark.lab
def test_jobs_of_a_sweep_differ_in_settings_and_folder(stage):
    script = slurm(sweep=SWEEP)
    seen = []
    for index in ("0", "3"):
        assert stage.run(script, {"SLURM_ARRAY_TASK_ID": index, "OUTPUT": "grid"}).returncode == 0
        words = stage.arguments_of("python")
        seen.append([word for word in words if word.startswith(("output", "training", "model"))])
    assert seen == [
        ["output.model_dir='grid-0'", "training.optimizer.learning_rate=0.003", "model.hidden_size=16"],
        ["output.model_dir='grid-3'", "training.optimizer.learning_rate=0.001", "model.hidden_size=64"],
    ]
    assert stage.run(script, {"SLURM_ARRAY_TASK_ID": "4"}).returncode == 2


@pytest.mark.lab
def test_an_ensemble_that_has_begun_goes_on_and_takes_its_settings_from_the_environment(stage):
    script = SCHEDULERS["local"].render(make_job_request(command="ensemble", restarts=1))
    begin = f"mkdir -p {ENSEMBLE}; : >{ENSEMBLE}/config.yaml"
    done = stage.run(script, {"PLAY": f"{begin}; exit 9", "OUTPUT": ENSEMBLE, "MEMBERS": "8", "BATCH_SIZE": "64"})
    assert done.returncode == 9
    words = stage.arguments_of("python")
    assert words[:3] == ["-m", "mpitrain", "ensemble"]
    assert {"ensemble.members=8", "training.global_batch_size=64", f"output.model_dir='{ENSEMBLE}'"} <= set(words)
    assert words[-2:] == ["--resume", "--take-over"], "the second start goes on"
    assert stage.run(script, {"PLAY": "exit 3", "OUTPUT": "other"}).returncode == 3
    assert "--resume" not in stage.arguments_of("python"), "nothing had begun: not started again"


@pytest.mark.lab
def test_pbs_warns_before_the_limit_and_keeps_a_log_for_each_host(stage):
    script = SCHEDULERS["pbs"].render(make_job_request(tasks_per_node=2, walltime="1", signal_s=58))
    done = stage.run(script, {"PLAY": f"echo on the host; {STOP_AS_ASKED}", "NPROC_PER_NODE": "1"})
    assert done.returncode == 5, done.stderr
    assert "qsub -v RESUME=1,OUTPUT=mpitrain_run-78 SCRIPT" in done.stdout
    assert stage.arguments_of("mpirun")[:4] == ["-machinefile", "logs/78_hosts", "-np", "1"]
    assert os.readlink(stage.cwd / "logs" / "latest_node0.log") == "78_node0.log"
    host = socket.gethostname().partition(".")[0]
    assert f'MPITRAIN_NODE_LOG="{stage.cwd}/logs/78:{host}"' in (stage.records / "exports").read_text()


def read_model(folder: Path) -> dict[str, object]:
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert (folder / "model.pt").stat().st_size > 0
    return {"epochs": len(records), "losses": [record["train_loss"] for record in records]}


@pytest.mark.lab
def test_local_pbs_and_manual_train_two_ranks_for_real(tmp_path, small_history):
    """All three start two ranks, over MPI or over TCP, and the numbers are the same."""
    settings = [f"data.data_path={small_history}", "training.epochs=3"]
    command = ["-m", "mpitrain", "launch", *settings, "--log-level", "warning"]

    done = launch(
        [*command, "--scheduler", "local", "-n", "2", "--submit"],
        cwd=tmp_path,
        environ={"EPOCHS": "2", "OUTPUT": "local"},
    )
    assert done.returncode == 0, done.stderr
    assert "mpitrain: 2 ranks, backend mpi" in (tmp_path / "logs" / "latest_node0.log").read_text()
    assert "mpitrain: 2 ranks, backend mpi" in done.stdout

    run_pbs(tmp_path, launch([*command, "--scheduler", "pbs", "-n", "2"], cwd=tmp_path).stdout)
    assert "mpitrain: 2 ranks, backend mpi" in (tmp_path / "logs" / "5_node0.log").read_text()

    stdout = run_manual(tmp_path, command)
    assert "mpitrain: 2 ranks, backend gloo" in stdout
    assert "mpitrain: 2 ranks, backend gloo" in (tmp_path / "logs" / "latest_node0.log").read_text()
    assert (tmp_path / "logs" / "latest_node1.log").is_file()
    runs = [read_model(tmp_path / name) for name in ("local", "mpitrain_run-5", "mpitrain_run")]
    assert runs[0]["epochs"] == 2
    assert runs[1] == runs[2]
    assert runs[0]["losses"] == runs[1]["losses"][:2]
    # --log-level warning: nothing to tell
    logs = (tmp_path / "local" / "logs").iterdir()
    assert without_notes_on_cores(line for log in logs for line in log.read_text().splitlines()) == []


def run_pbs(cwd: Path, script: str) -> None:
    find_mpirun()
    nodefile = cwd / "nodefile"
    nodefile.write_text(f"{socket.gethostname()}\n" * 2)
    environ = {"PBS_NODEFILE": str(nodefile), "PBS_O_WORKDIR": str(cwd), "PBS_JOBID": "5.server", "PBS_TASKNUM": "1"}
    done = subprocess.run(
        ["bash", "-c", script],
        env={**launcher_environment(), **environ},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr


def run_manual(cwd: Path, command: list[str]) -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = ["--scheduler", "manual", "--hosts", "127.0.0.1,localhost", "--interface", "lo", "--master-port", str(port)]
    script = launch([*command, *words], cwd=cwd).stdout
    blocks = re.split(r"^# ---- host .*$", script, flags=re.MULTILINE)[1:]
    assert len(blocks) == 2
    processes = [
        subprocess.Popen(
            ["bash", "-c", block], cwd=cwd, env=launcher_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )
        for block in blocks
    ]  # fmt: skip
    outputs = [process.communicate(timeout=TIMEOUT_S) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    return "".join(stdout for stdout, _ in outputs)


@pytest.mark.lab
def test_python_of_a_script_is_the_one_that_wrote_it(tmp_path):
    script = launch(["-m", "mpitrain", "launch"], cwd=tmp_path).stdout
    assert f"\npython={sys.executable}\n" in script
