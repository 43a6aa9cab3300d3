"""What `mpitrain launch` takes from where it runs and from what is asked: the scheduler, sizes, NCCL's variables."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import pytest
from played_scheduler import Stage

from mpitrain.cli.main import COMMANDS, _build_parser, main
from mpitrain.launch.inside import slurm_hosts
from mpitrain.launch.inside.mpirun import forwarded
from mpitrain.launch.inside.run_folder import RunFolder
from mpitrain.launch.job_request import make_job_request
from mpitrain.launch.presets import PRESETS
from mpitrain.launch.schedulers.table import SCHEDULERS, find_scheduler
from mpitrain.launch.variables import job_variables

JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "SGE_ROOT")


@pytest.fixture(autouse=True)
def _on_an_empty_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    for name in JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def add_command(name: str) -> None:
    path = Path("bin") / name
    path.write_text("#!/bin/sh\necho 5\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("environ", "commands", "expected"),
    [
        ({}, ["sbatch"], ("slurm", "sbatch is on the PATH")),
        ({}, ["qsub"], ("pbs", "qsub is on the PATH")),
        ({}, ["sbatch", "qsub", "bsub"], ("slurm", "sbatch is on the PATH")),  # Slurm has a qsub of its own
        ({"PBS_JOBID": "5.server"}, ["sbatch"], ("pbs", "PBS_JOBID is set: this is inside a job")),
        ({"SLURM_JOB_ID": "5"}, [], ("slurm", "SLURM_JOB_ID is set: this is inside a job")),
        ({"LSB_JOBID": "5"}, ["qsub"], ("LSF", "LSB_JOBID is set: this is inside a job")),
        ({}, ["bsub"], ("LSF", "bsub is on the PATH")),
        ({"SGE_ROOT": "/opt/sge"}, ["qsub"], ("Grid Engine", "qsub is on the PATH, and SGE_ROOT is set")),
        ({"SLURM_JOB_ID": ""}, [], None),
    ],
)
def test_the_scheduler_is_found(
    environ: Mapping[str, str], commands: list[str], expected: tuple[str, str] | None
) -> None:
    assert find_scheduler(environ, lambda name: name if name in commands else None) == expected


@pytest.mark.parametrize(
    ("commands", "arguments", "first_words", "said"),
    [
        (["sbatch"], [], "# Slurm batch script", "note: writing a Slurm script, because sbatch is on the PATH"),
        (["qsub"], [], "# PBS job script", "note: writing a PBS script, because qsub is on the PATH"),
        (
            ["sbatch"],
            ["--hosts", "a,b"],
            "# Commands to type",
            "note: writing commands for each host, because of --hosts",
        ),
        ([], [], "# Slurm batch script", "note: writing a Slurm script, because no scheduler was found on this host"),
        (["sbatch"], ["--scheduler", "pbs"], "# PBS job script", ""),
    ],
)
def test_a_scheduler_that_is_found_is_used_and_said(
    capsys: pytest.CaptureFixture[str], commands: list[str], arguments: list[str], first_words: str, said: str
) -> None:
    for name in commands:
        add_command(name)
    assert main(["launch", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[1].startswith(first_words)
    assert captured.err.rstrip("\n").startswith(said)
    assert captured.err.count("\n") == bool(said)
    assert ("--scheduler selects another" in captured.err) == bool(said)


def test_what_is_found_takes_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    add_command("qsub")
    assert main(["launch", "--submit"]) == 0
    assert capsys.readouterr().out == "5\n"


@pytest.mark.parametrize(
    ("commands", "arguments", "words"),
    [
        (["bsub"], [], "LSF (bsub is on the PATH): this scheduler is not supported; give --scheduler"),
        (
            [],
            ["--submit"],
            "--submit: no scheduler found on this host (sbatch, qsub); --scheduler local runs the job here",
        ),
    ],
)
def test_a_scheduler_without_scripts_is_refused_in_a_line(
    capsys: pytest.CaptureFixture[str], commands: list[str], arguments: list[str], words: str
) -> None:
    for name in commands:
        add_command(name)
    assert main(["launch", *arguments]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert words in captured.err


@pytest.mark.parametrize(
    ("arguments", "expected", "said"),
    [
        ("--gpus-per-node 4", {"nodes=1", "ntasks-per-node=4", "gpus-per-node=4"}, ""),
        ("--nodes 4 --gpus-per-node 2", {"nodes=4", "ntasks-per-node=2", "gpus-per-node=2"}, ""),
        ("--num_gpus 4 --nnodes 2", {"nodes=2", "ntasks-per-node=4", "gpus-per-node=4"}, ""),
        (
            "--gpus-per-node 4 --tasks-per-node 1",
            {"nodes=1", "ntasks-per-node=1", "gpus-per-node=4"},
            "idle GPUs per host: 3",
        ),
        ("--preset multi_gpu --gpus-per-node 2", {"nodes=1", "ntasks-per-node=2", "gpus-per-node=2"}, ""),
        ("--preset single_gpu --gpus-per-node 2", {"nodes=1", "ntasks-per-node=2", "gpus-per-node=2"}, ""),
        ("--world-size 8 --gpus-per-node 4", {"nodes=2", "ntasks-per-node=4"}, "8 ranks with a GPU each: 2 nodes"),
        ("--preset multi_node -n 16", {"nodes=4", "ntasks-per-node=4"}, "16 ranks with a GPU each: 4 nodes"),
        ("-n 6 --gpus-per-node 4", {"nodes=2", "ntasks-per-node=3"}, "idle GPUs per host: 1"),
        ("-n 3 --gpus-per-node 4", {"nodes=1", "ntasks-per-node=3"}, "idle GPUs per host: 1"),
        ("--ensemble --gpus-per-node 2", {"nodes=1", "ntasks-per-node=2"}, ""),
    ],
)
def test_each_gpu_has_a_rank(capsys: pytest.CaptureFixture[str], arguments: str, expected: set[str], said: str) -> None:
    assert main(["launch", "--scheduler", "slurm", *arguments.split(), "training.virtual_ranks=16"]) == 0
    captured = capsys.readouterr()
    directives = {line[10:] for line in captured.out.splitlines() if line.startswith("#SBATCH --")}
    assert expected <= directives
    assert said in captured.err
    assert said or "idle" not in captured.err


@pytest.mark.parametrize(
    "words",
    [
        "launch -N 2 run.yaml -n 4 training.epochs=3 --job-name x seed=5 --scheduler slurm",
        "launch seed=5 --scheduler slurm training.epochs=3 -n 4 run.yaml --job-name x -N 2",
        "launch training.epochs=3 seed=5 -n 4 --job-name x --config run.yaml -N 2 --scheduler=slurm",
        "run.yaml launch training.epochs=3 seed=5 --nodes 2 --job-name x --ntasks 4 --scheduler slurm",
        "training.epochs=3 --nodes 2 launch --scheduler slurm -c run.yaml --world_size 4 seed=5 --job-name=x",
    ],
)
def test_options_and_overrides_come_in_any_order(capsys: pytest.CaptureFixture[str], words: str) -> None:
    Path("run.yaml").write_text("seed: 4\n")
    assert main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"#SBATCH --nodes=2", "#SBATCH --ntasks-per-node=2", "#SBATCH --job-name=x"} <= set(lines)
    words = lines[-1].split()
    taken = words[words.index("run.yaml") :]
    assert set(taken[1:]) == {"training.epochs=3", "seed=5"}


def test_every_command_may_come_after_its_flags() -> None:
    (commands,) = [action for action in _build_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    assert set(COMMANDS) == set(commands.choices)


def test_hosts_started_by_hand_have_a_log_each(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage", environ={"PLAY": 'echo "words of rank $RANK"; echo its errors >&2'})
    request = make_job_request(nodes=2, tasks_per_node=2, num_tasks=3, hosts=("a", "b"), job_name="ice")
    done = stage.run(SCHEDULERS["manual"].render(request))
    logs = stage.cwd / "logs"
    assert [(logs / f"latest_node{node}.log").resolve().name[:4] for node in (0, 1)] == ["ice-", "ice-"]
    said = [sorted((logs / f"latest_node{node}.log").read_text().splitlines()) for node in (0, 1)]
    assert said == [
        ["its errors", "its errors", "words of rank 0", "words of rank 1"],
        ["its errors", "words of rank 2"],
    ]
    assert sorted(done.stdout.splitlines()) == sorted(said[0] + said[1])  # and on the terminal


@pytest.mark.parametrize(
    ("num_tasks", "alive", "expected"),
    [
        (None, ("n1", "n2", "n4"), 6), (None, ("n3",), 2), (7, ("n1", "n2", "n3", "n4"), 7), (7, ("n2", "n3", "n4"), 6),
        (7, ("n2",), 2), (5, ("n1", "n3", "n4"), 5), (5, ("n2", "n4"), 4),
    ],
)  # fmt: skip
def test_srun_starts_no_more_ranks_again_than_the_hosts_that_are_left_hold(
    monkeypatch: pytest.MonkeyPatch, num_tasks: int | None, alive: tuple[str, ...], expected: int
) -> None:
    """Of four hosts of two ranks each; the last of a word that srun is given twice counts."""
    job = make_job_request(nodes=4, tasks_per_node=2, num_tasks=num_tasks)
    environ = {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "4", "SLURM_JOB_NODELIST": "n[1-4]", "OMP_NUM_THREADS": "1"}
    ranks = SCHEDULERS["slurm"].ranks(job, SCHEDULERS["slurm"].place(job, environ), environ)
    assert f"--ntasks={num_tasks or 8}" in ranks.launcher
    monkeypatch.setattr("mpitrain.launch.schedulers.slurm.hosts_that_answer", lambda hosts, _: list(alive))
    again = ranks.again()
    last = dict(word.split("=", 1) for word in ranks.launcher if "=" in word)
    assert (last["--ntasks"], last["--nodes"]) == (str(expected), str(len(alive)))
    assert last["--nodelist"] == ",".join(alive)
    assert again is not None
    assert again.found == f"; {len(alive)} of 4 hosts answer"
    assert again.ranks == f" and {expected} ranks on {' '.join(alive)}"


def test_srun_starts_nothing_again_where_no_host_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    job, environ = make_job_request(nodes=2), {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "2", "OMP_NUM_THREADS": "1"}
    ranks = SCHEDULERS["slurm"].ranks(job, SCHEDULERS["slurm"].place(job, environ), environ)
    monkeypatch.setattr("mpitrain.launch.schedulers.slurm.hosts_that_answer", lambda *_: [])
    assert ranks.again() is None


RUNS = "JobId=77 JobName=ice JobState=RUNNING Reason=None ReqNodeList=n1 NodeList={} BatchHost=n1"


@pytest.mark.parametrize(
    ("said", "is_lost"),
    [
        (RUNS.format("n[2-3]"), True), (RUNS.format("n[1-3]"), False), (RUNS.format("n11,n2"), True), ("", False),
        (RUNS.format("n[2-3]").replace("RUNNING", "COMPLETING"), False), ("JobState=RUNNING ReqNodeList=n2", False),
    ],
)  # fmt: skip
def test_a_running_job_has_lost_a_host_that_slurm_lists_no_more(
    monkeypatch: pytest.MonkeyPatch, said: str, is_lost: bool
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(slurm_hosts, "_output_of", lambda *words: asked.append(words) or said)
    assert slurm_hosts.has_lost("77", "n1") is is_lost
    assert asked == [("scontrol", "--oneliner", "show", "job", "77")]


@pytest.mark.parametrize(("hosts", "watchers"), [(("n1", "n2"), ["n2"]), (("n1", "n2", "n3", "n4"), ["n2", "n3"])])
@pytest.mark.parametrize("is_requeued", [True, False])
def test_two_of_the_other_hosts_watch_over_the_first_one(
    monkeypatch: pytest.MonkeyPatch, hosts: tuple[str, ...], watchers: list[str], is_requeued: bool
) -> None:
    Path("logs").mkdir()
    started: list[list[str]] = []
    monkeypatch.setattr(slurm_hosts.subprocess, "Popen", lambda words, **_: started.append(words))
    slurm_hosts.start_watch("77", "77_0", hosts, is_requeued, {})
    (words,) = started
    assert {f"--nodes={len(watchers)}", f"--ntasks={len(watchers)}", f"--nodelist={','.join(watchers)}"} <= set(words)
    assert {"srun", "--no-kill", "--overlap"} <= set(words)
    assert words[-4:] == ["77", "n1", "logs/77_0_watch.log", "requeue" if is_requeued else "cancel"]


@pytest.mark.parametrize(
    ("action", "requeue_code", "runs_still", "ran", "line"),
    [
        ("requeue", 0, False, ["scontrol requeue 77"], "n1, the first host, is lost: the job is requeued"),
        ("requeue", 1, True, ["scontrol requeue 77", "scancel 77"], "n1, the first host, is lost: the job is requeued"),
        ("requeue", 1, False, ["scontrol requeue 77"], "n1, the first host, is lost: the job is requeued"),
        ("cancel", 0, True, ["scancel 77"], "n1, the first host, is lost: the job ends; resume with RESUME=1"),
    ],
)
def test_the_watch_requeues_a_job_or_ends_it(
    monkeypatch: pytest.MonkeyPatch, action: str, requeue_code: int, runs_still: bool, ran: list[str], line: str
) -> None:
    seen, commands, waits = iter([False, False, True, runs_still]), list[str](), list[float]()
    monkeypatch.setattr(slurm_hosts, "has_lost", lambda *_: next(seen))
    monkeypatch.setattr(slurm_hosts.time, "sleep", waits.append)
    done = argparse.Namespace(returncode=requeue_code)
    monkeypatch.setattr(slurm_hosts.subprocess, "run", lambda words: commands.append(" ".join(words)) or done)
    slurm_hosts._watch("77", "n1", Path("watch.log"), action)
    assert (commands, waits) == (ran, [30, 30])
    assert Path("watch.log").read_text().startswith(line)


@pytest.mark.parametrize(
    ("requeues", "code", "is_warned", "expected"),
    [
        (True, 5, True, "requeued"), (True, 137, True, "requeued"), (True, 143, True, "requeued"),
        (True, 5, False, ""), (True, 0, True, ""), (True, 4, True, ""), (False, 5, True, "to resume: sbatch"),
    ],
)  # fmt: skip
def test_a_job_that_was_warned_and_stopped_is_requeued_or_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    requeues: bool, code: int, is_warned: bool, expected: str,
) -> None:  # fmt: skip
    job, environ = make_job_request(requeue=requeues), {"SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "1"}
    environ["OMP_NUM_THREADS"] = "1"
    ranks = SCHEDULERS["slurm"].ranks(job, SCHEDULERS["slurm"].place(job, environ), environ)
    commands: list[list[str]] = []
    monkeypatch.setattr("mpitrain.launch.schedulers.slurm.subprocess.run", lambda words: commands.append(words))
    ranks.finish(code, is_warned, RunFolder(Path("mine"), "77", False, False))
    ranks.finish(code, is_warned, None)  # what trains nothing
    assert commands == ([["scontrol", "requeue", "77"]] if expected == "requeued" else [])
    said = capsys.readouterr().out
    assert expected in said if expected else said == ""
    assert ("RESUME=1,OUTPUT=mine" in said) is not requeues


@pytest.mark.parametrize("scheduler", ["pbs", "torque"])
@pytest.mark.parametrize(("command", "warn_after_s"), [("train", 3600 - 300), ("doctor", 0)])
def test_ranks_that_train_are_warned_before_the_limit_where_the_scheduler_warns_nobody(
    scheduler: str, command: str, warn_after_s: int
) -> None:
    Path("nodefile").write_text("a\nb\n")
    job = make_job_request(command=command, walltime="01:00:00", signal_s=300)
    environ = {"PBS_JOBID": "5.server", "PBS_NODEFILE": "nodefile"}
    place = SCHEDULERS[scheduler].place(job, environ)
    assert SCHEDULERS[scheduler].ranks(job, place, environ).warn_after_s == warn_after_s


NCCL_OF_PRESETS = {
    "debug": {},
    "cpu_cluster": {},
    "single_gpu": {"NCCL_DEBUG": "WARN"},
    "multi_gpu": {"NCCL_DEBUG": "WARN", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "NCCL_IB_DISABLE": "1"},
    "multi_node": {
        "NCCL_DEBUG": "WARN", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "NCCL_IB_DISABLE": "0", "NCCL_IB_TIMEOUT": "22",
    },
}  # fmt: skip


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_set_the_usual_variables_of_nccl(preset: str) -> None:
    variables = {one.name: one.value for one in job_variables(make_job_request(**PRESETS[preset]), "none")}
    assert {name: value for name, value in variables.items() if "NCCL" in name} == NCCL_OF_PRESETS[preset]


def test_a_debug_job_with_gpus_has_nccl_tell_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--preset", "debug", "--gpus-per-node", "2"]) == 0
    assert "\nexport NCCL_DEBUG=INFO  #" in capsys.readouterr().out


def test_nccl_may_look_for_adapters_where_they_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--preset", "multi_gpu", "--network", "ib", "--adapters", "mlx5_0"]) == 0
    script = capsys.readouterr().out
    assert "\nexport NCCL_IB_DISABLE=0  #" in script
    assert "NCCL_IB_DISABLE=1" not in script


def test_ranks_of_other_hosts_have_the_cache_of_kernels_and_the_compiler() -> None:
    given = {"MPITRAIN_CACHE": "/scratch/kernels", "CXX": "g++-13", "HOME": "/home/me", "OMP_NUM_THREADS": "2"}
    assert forwarded(given) == ["env", "CXX=g++-13", "MPITRAIN_CACHE=/scratch/kernels", "OMP_NUM_THREADS=2"]
