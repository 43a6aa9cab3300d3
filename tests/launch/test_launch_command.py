"""`mpitrain launch` as it is typed: flags, presets, checks before sending, and what is sent."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import launcher_environment

from mpitrain.cli.main import main
from mpitrain.config import EnsembleSection
from mpitrain.config.output import OutputSection
from mpitrain.launch import command
from mpitrain.launch.checks import with_run_folder
from mpitrain.launch.grammar import clock_text, walltime_seconds
from mpitrain.launch.job_request import make_job_request
from mpitrain.launch.presets import PRESETS, ranks_for

HEAVY = {"torch", "mpi4py", "numpy", "netCDF4", "h5py", "matplotlib"}


@pytest.fixture(autouse=True)
def _in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def add_command(folder: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def script_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["launch", *arguments]) == 0
    return capsys.readouterr().out


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["launch", *arguments])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1, captured.err
    return code, captured.err


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("scheduler", ["slurm", "pbs"])
def test_presets_render(capsys, preset, scheduler):
    script = script_of(capsys, "--preset", preset, "--scheduler", scheduler)
    walltime = PRESETS[preset]["walltime"]
    assert f"#SBATCH --time={walltime}\n" in script or f"#PBS -l walltime={walltime}\n" in script


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-n", "4"], ["--nodes=1", "--ntasks-per-node=4"]),
        (["-n", "4", "-N", "2"], ["--nodes=2", "--ntasks-per-node=2"]),
        (["-n", "4", "-N", "2", "--tasks-per-node", "3"], ["--nodes=2", "--ntasks=4", "--ntasks-per-node=3"]),
        (["-n", "5", "-N", "2"], ["--nodes=2", "--ntasks=5", "--ntasks-per-node=3"]),
        (["--preset", "cpu_cluster", "-n", "4"], ["--nodes=2", "--ntasks-per-node=2"]),
        (["--preset", "cpu_cluster", "--tasks-per-node", "2"], ["--nodes=2", "--ntasks-per-node=2"]),
        (["--preset", "multi_gpu", "--time", "90"], ["--gpus-per-node=4", "--time=01:30:00"]),
        (["--partition", "short", "--account", "a1"], ["--partition=short", "--account=a1"]),
    ],
)
def test_sizes_become_directives(capsys, arguments, expected):
    directives = [line[8:] for line in script_of(capsys, *arguments).splitlines() if line.startswith("#SBATCH ")]
    assert set(expected) <= set(directives)
    assert ("--ntasks=" in " ".join(directives)) == any(word.startswith("--ntasks=") for word in expected)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("01:30:00", 5400), ("90", 5400), ("1-02:00:00", 93600), ("100:00:01", 360001), ("0-00:00:01", 1)],
)
def test_walltime_forms(text, seconds):
    assert walltime_seconds(text) == seconds
    assert walltime_seconds(clock_text(seconds)) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "00:00:00", "30:00", "1:60:00", "1-24:00:00", "1h", "-5", "01:00:00\n", "1.5"]
)
def test_other_walltimes_are_refused(text):
    with pytest.raises(ValueError, match="allowed is HH:MM:SS, D-HH:MM:SS or whole minutes"):
        walltime_seconds(text)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--walltime", "30:00"], "job request: --walltime 30:00: allowed is HH:MM:SS"),
        (["--gpus-per-node", "2", "-n", "4", "-N", "1"], "--tasks-per-node 4: each rank needs a GPU of its own"),
        (["-n", "9", "-N", "2", "--tasks-per-node", "4"], "--ntasks 9: 2 nodes of at most 4 tasks hold 2 to 8"),
        (["-n", "1", "-N", "2"], "--ntasks 1"),
        (["-N", "0"], "job request: --nodes 0: Input should be greater than or equal to 1"),
        (["--walltime", "1"], "--signal-seconds 120: not before the end"),
        (["training.epochs=-5"], "training.epochs=-5"),
        (["no.yaml"], "no.yaml"),
        (["compute.device=cuda"], "compute.device=cuda: the job requests no GPU; add --gpus-per-node 1"),
        (["semantics=reference", "--mpi", "none"], "semantics=reference needs MPI"),
        (["--scheduler", "manual", "-N", "2"], "give --hosts"),
        (["--scheduler", "manual", "-N", "2", "--hosts", "a"], "--hosts has 1 name(s)"),
        (["--scheduler", "local", "-N", "2"], "this host only"),
        (["--scheduler", "local", "--sweep", "seed=1,2"], "--sweep"),
        (["--sweep", "seed"], "--sweep seed: give a key and its values"),
        (["--sweep", "seed=1,x"], "seed=x"),
        (["--sweep", "output.model_dir=a,b"], "a folder of its own already"),
        (["--run", "doctor", "--sweep", "seed=1,2"], "only training"),
        (["--ensemble", "-n", "2", "--mpi", "none"], "an ensemble needs MPI between its ranks"),
        (["--ensemble", "semantics=reference"], "the ensemble chooses"),
        (["--ensemble", "--sweep", "seed=1,2"], "seed belongs to the whole ensemble"),
        (["--module", "a;b"], "--module a;b: allowed is"),
        (["--env", "9=1"], "--env 9=1: allowed is NAME=VALUE"),
        (['output.model_dir="a\\nb"'], "one line of printable characters"),
        (["--output", "no/folder/x.sh"], "--output no/folder/x.sh: cannot be written"),
        (["--scheduler", "manual", "--submit"], "--submit needs slurm, pbs or local"),
    ],
)
def test_wrong_request_is_one_line(capsys, arguments, message):
    code, line = error_of(capsys, *arguments)
    assert code == 2
    assert message in line


def test_data_that_is_not_there_is_a_note_when_printed_and_an_error_when_sent(capsys, tmp_path, monkeypatch):
    add_command(tmp_path / "bin", "sbatch", "touch sent; echo 1\n", monkeypatch)
    assert main(["launch", "data.data_path=/no.nc"]) == 0
    assert "note: data.data_path=/no.nc: no such file" in capsys.readouterr().err
    code, line = error_of(capsys, "--submit", "data.data_path=/no.nc")
    assert (code, "no such file" in line) == (2, True)
    assert not Path("sent").exists()


def test_more_ranks_than_virtual_ranks_are_told(capsys):
    main(["launch", "-n", "16", "training.virtual_ranks=8"])
    assert "16 ranks and training.virtual_ranks=8" in capsys.readouterr().err
    main(["launch", "--scheduler", "slurm", "-n", "16"])
    assert capsys.readouterr().err == ""


def test_run_folder_of_the_settings_is_the_script_s(capsys):
    Path("run.yaml").write_text("output: {model_dir: from_file}\n")
    script = script_of(capsys, "run.yaml", "training.epochs=3")
    assert " --run-folder=from_file " in script
    script = script_of(capsys, "run.yaml", "output.model_dir=given here")
    assert " '--run-folder=given here' " in script
    assert "output.model_dir=given" not in script
    assert "--run-folder" not in script_of(capsys)


@pytest.mark.parametrize(
    ("most", "members", "each", "ranks"),
    [(8, 64, "auto", 8), (8, 20, "auto", 7), (8, 9, "auto", 5), (8, 3, "auto", 3), (8, 6, 2, 6), (2, 4, 8, 8)],
)
def test_an_ensemble_has_as_many_ranks_as_shorten_it(most, members, each, ranks):
    assert ranks_for(EnsembleSection(members=members, ranks_per_member=each), most) == ranks


def test_an_ensemble_is_sized_and_has_the_sweep_s_values_in_its_grid(capsys, monkeypatch):
    monkeypatch.setattr(command, "detect_usable_core_count", lambda: 4)
    rates = "training.optimizer.learning_rate=1e-3,1e-4"
    assert main(["launch", "--scheduler", "slurm", "--ensemble", "ensemble.folds=3", "--sweep", rates]) == 0
    said = capsys.readouterr()
    assert said.err == "note: 6 members on 3 ranks: 2 members a rank\n"
    assert "#SBATCH --ntasks-per-node=3\n" in said.out
    assert "#SBATCH --array" not in said.out
    assert " 'ensemble.grid.training.optimizer.learning_rate=[1e-3,1e-4]'\n" in said.out
    assert " --run=ensemble " in said.out
    assert main(["launch", "--scheduler", "slurm", "--ensemble", "-n", "16", "-N", "2", "ensemble.members=4"]) == 0
    assert capsys.readouterr().err == "note: 4 members on 16 ranks: 4 ranks a member\n"


@pytest.mark.parametrize(("scheduler", "command"), [("slurm", "sbatch"), ("pbs", "qsub")])
def test_submit_sends_the_script_and_prints_the_job_s_number(capsys, tmp_path, monkeypatch, scheduler, command):
    body = (
        'echo "$@" >arguments; if [ -n "$2$QSUB" ] && [ -f "$2" ]; then cat "$2"; else cat; fi >sent; echo "123;east"\n'
    )
    add_command(tmp_path / "bin", command, body, monkeypatch)
    printed = script_of(capsys, "--scheduler", scheduler, "-n", "2")
    assert script_of(capsys, "--scheduler", scheduler, "-n", "2", "--submit") == "123\n"
    assert Path("sent").read_text() == printed
    assert Path("arguments").read_text().split() == (["--parsable"] if command == "sbatch" else [])
    assert script_of(capsys, "--scheduler", scheduler, "--submit", "--output", "job.sh") == "123\n"
    assert Path("arguments").read_text().split()[-1] == "job.sh"
    assert Path("job.sh").stat().st_mode & 0o111


def test_refusal_of_the_scheduler_is_told_in_its_words(capsys, tmp_path, monkeypatch):
    add_command(tmp_path / "bin", "sbatch", "echo 'sbatch: error: invalid account' >&2; exit 1\n", monkeypatch)
    code, line = error_of(capsys, "--submit")
    assert (code, line) == (
        3,
        "mpitrain: error: sbatch refused the job (exit code 1): sbatch: error: invalid account\n",
    )


def test_without_a_scheduler_nothing_is_written(capsys, tmp_path, monkeypatch):
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    code, line = error_of(capsys, "--scheduler", "slurm", "--submit", "--output", "job.sh")
    assert (code, "sbatch: not found on the PATH" in line) == (2, True)
    assert not Path("job.sh").exists()


def test_it_serves_login_nodes(tmp_path):
    arguments = [["launch", "--scheduler", name, "-n", "2"] for name in ("slurm", "pbs", "local", "manual")]
    code = (
        "import sys, json\nfrom mpitrain.cli.main import main\n"
        f"print([main(words) for words in {arguments!r}])\nimport mpitrain.launch.command\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=launcher_environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    *_, codes, loaded = done.stdout.splitlines()
    assert codes == "[0, 0, 0, 0]"
    assert not HEAVY & set(json.loads(loaded))


@pytest.mark.parametrize(
    ("settings", "folder"),
    [((), None), (("output.model_dir=mine",), "mine"), ((f"output.model_dir={OutputSection().model_dir}",),
                                                         OutputSection().model_dir)],
    ids=["none", "another", "the default, by name"],
)  # fmt: skip
def test_a_run_folder_that_is_named_is_the_job_s(settings: tuple[str, ...], folder: str | None) -> None:
    """Without a name each job has a folder of its own, also where the settings' default is another."""
    job = with_run_folder(make_job_request(settings=("seed=1", *settings)))
    assert (job.run_folder, job.settings) == (folder, ("seed=1",))
