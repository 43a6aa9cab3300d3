"""Each planted fault is found by a real call of the command, with its fix; a healthy launch passes."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import h5py
import netCDF4
import pytest
from conftest import TIMEOUT_S, Finished, find_mpirun, launch, launcher_environment

from mpitrain.cluster.cores import detect_usable_core_count

LAUNCHER_VARIABLES = re.compile(r"RANK|WORLD_SIZE|MASTER_|PMI|OMPI_COMM|SLURM|MPI_LOCAL")
# Limits are for a busy machine; a step takes far less than a second on a quiet one.
SHORT_LIMIT_S = 6.0


@pytest.fixture(autouse=True)
def _surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An activated environment, no outer launch's variables, and status folders that can be looked for."""
    for name in [name for name in os.environ if LAUNCHER_VARIABLES.match(name)]:
        monkeypatch.delenv(name)
    # Whatever MPI the system has comes after the environment's own: the wrong mpirun first is a fault of its own.
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    folders = tmp_path / "folders"
    folders.mkdir()
    monkeypatch.setenv("TMPDIR", str(folders))


@pytest.fixture(params=["own MPI", "another MPI's mpirun after the own"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What the system has on the PATH after the environment: nothing that matters, or an MPI like Debian's."""
    if request.param != "own MPI":
        folder = write_other_mpi(tmp_path / "usr_bin")
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{folder}:{os.environ['PATH']}")


@functools.cache
def loads_open_mpi() -> bool:
    return "Open MPI" in json.loads(launch(["-m", "mpitrain.comm.mpi.library"]).stdout)["version"]


def write_other_mpi(folder: Path, says: str | None = None) -> Path:
    """Write stand-ins for the programs of an MPI that Python does not load; its mpirun `says` which one it is."""
    says = says or ("HYDRA build details:" if loads_open_mpi() else "mpirun (Open MPI) 4.1.4")
    folder.mkdir()
    for name in ("mpirun", "mpiexec", "mpicxx"):
        (folder / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (folder / name).chmod(0o755)
    return folder


def doctor(*arguments: str, num_ranks: int | None = None, **options: object) -> tuple[int, dict[str, dict[str, str]]]:
    """Run the doctor; return its exit code and its results by name."""
    done = launch(["-m", "mpitrain", "doctor", "--json", *arguments], num_ranks, **options)  # type: ignore[arg-type]
    return done.returncode, results_of(done)


def results_of(done: Finished | subprocess.CompletedProcess[str]) -> dict[str, dict[str, str]]:
    begin = done.stdout.find("{\n")
    assert begin >= 0, done.stdout + done.stderr
    record, end = json.JSONDecoder().raw_decode(done.stdout[begin:])
    assert "mpitrain doctor" not in done.stdout
    assert done.stdout[begin + end :].find("{\n") < 0, "more than one rank printed"
    return {result["name"]: result for result in record["results"]}


def run_wrapped(wrapper: str, tmp_path: Path, *arguments: str, environ: dict[str, str] | None = None) -> Finished:
    """Run the doctor on two ranks, each started through a shell line that knows `$rank` and ends in `exec "$@"`."""
    script = tmp_path / "wrapper.sh"
    script.write_text(f'#!/bin/sh\nrank=${{PMI_RANK:-$OMPI_COMM_WORLD_RANK}}\n{wrapper}\nexec "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    command = [find_mpirun(), "-np", "2", str(script), sys.executable, *arguments]
    done = subprocess.run(
        command, cwd=tmp_path, env={**launcher_environment(), **(environ or {})}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    return Finished(done.returncode, done.stdout, done.stderr)


def assert_found(results: dict[str, dict[str, str]], name: str, status: str, found: str, fix: str) -> None:
    result = results[name]
    assert result["status"] == status, result
    assert re.search(found, result["found"]), result
    assert re.search(fix, result["fix"]), result


def no_status_folder_left(tmp_path: Path) -> bool:
    return not list((tmp_path / "folders").glob("*mpitrain-doctor*"))


# --- on a login node -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("system")
def test_healthy_environment_without_a_launcher(tmp_path, small_history):
    code, results = doctor(f"data.data_path={small_history}", "output.model_dir=run", cwd=tmp_path)
    assert code == 0
    assert {name for name, result in results.items() if result["status"] == "fail"} == set()
    assert re.search(r"(MPICH|Open MPI) [\d.]+ from /.*/libmpi.*\.so", results["MPI library"]["found"])
    assert re.search(r"cice_history.nc: \d+ samples selected", results["data file"]["found"])
    assert results["HDF5 locking"]["status"] in ("pass", "skip")
    assert results["mpirun on the PATH"]["status"] == "pass"
    assert no_status_folder_left(tmp_path)
    assert not (tmp_path / "run").exists()


def test_static_checks_load_neither_torch_nor_mpi():
    run = "from mpitrain.cli.main import main\nmain(['doctor', '--json'])\nimport sys\n"
    run += "print('LOADED', sorted({'torch', 'mpi4py', 'netCDF4'} & set(sys.modules)))"
    assert "LOADED []" in launch(["-c", run]).stdout


def test_wrong_library_path():
    code, results = doctor(environ={"MPI4PY_LIBMPI": "/nonexistent/libmpi.so"})
    assert code == 3
    assert_found(results, "MPI library", "fail", "MPI4PY_LIBMPI=/nonexistent/libmpi.so", "unset MPI4PY_LIBMPI")
    assert_found(results, "library path", "fail", "no such file", "unset MPI4PY_LIBMPI")


# What the launchers of both families answer to --version, under each name that Debian gives them.
OTHER_MPIRUNS = {
    "MPICH": "HYDRA build details:",
    "Open MPI": "mpirun (Open MPI) 4.1.4",
    "Open MPI by another name": "mpirun.openmpi (OpenRTE) 4.1.4",
}


@pytest.mark.lab
@pytest.mark.parametrize("says", OTHER_MPIRUNS.values(), ids=OTHER_MPIRUNS)
def test_another_mpis_mpirun_first_on_the_path(tmp_path, says):
    if loads_open_mpi() is not says.startswith("HYDRA"):
        pytest.skip("says what the loaded library's own mpirun says")
    other = write_other_mpi(tmp_path / "usr_bin", says)
    code, results = doctor(environ={"PATH": f"{other}:{os.environ['PATH']}"})
    assert code == 3
    family = "MPICH" if says.startswith("HYDRA") else "Open MPI"
    assert_found(
        results, "mpirun on the PATH", "fail", f"{other}/mpirun of {family}, but Python loads", "start with .*mpirun"
    )
    assert str(other) not in results["mpirun on the PATH"]["fix"]
    if Path(sys.executable).with_name("mpicxx").exists():
        assert str(other) not in results["C++ program"]["found"]


@pytest.mark.lab
def test_a_real_mpirun_of_another_mpi_first_on_the_path():
    python = os.environ.get("MPITRAIN_OPENMPI_PYTHON")
    if python is None or loads_open_mpi():
        pytest.skip("needs MPICH here and an Open MPI environment named by MPITRAIN_OPENMPI_PYTHON")
    own, other = Path(sys.executable).parent, Path(python).parent
    found = f"{other}/mpirun of Open MPI, but Python loads MPICH [0-9.]+: each rank would run alone"
    code, results = doctor(environ={"PATH": f"{other}:{os.environ['PATH']}"})
    assert code == 3
    assert_found(results, "mpirun on the PATH", "fail", found, f"start with {own}/mpirun")
    code, results = doctor(environ={"PATH": f"{own}:{other}:{os.environ['PATH']}"})
    assert code == 0
    assert_found(results, "mpirun on the PATH", "pass", f"^{own}/mpirun of MPICH$", "^$")


@pytest.mark.lab
def test_a_wrong_mpirun_hides_no_fault_of_the_input(tmp_path):
    other = write_other_mpi(tmp_path / "usr_bin")
    code, results = doctor("data.data_path=nowhere.nc", environ={"PATH": f"{other}:{os.environ['PATH']}"})
    assert code == 3  # the next launch would fail whatever its input
    assert results["mpirun on the PATH"]["status"] == "fail"
    assert_found(results, "data file", "fail", "nowhere.nc: no such file", "data.data_path")


@pytest.mark.lab
def test_no_compiler_unwritable_output_and_threads_that_are_no_number(tmp_path):
    environ = {"PATH": str(tmp_path), "OMP_NUM_THREADS": "many", "CXX": ""}
    code, results = doctor("output.model_dir=/proc/mpitrain_run", environ=environ)
    assert code == 3
    assert_found(results, "C++ compiler", "warn", "traced computes instead", "apt-get install g\\+\\+")
    assert_found(results, "run folder", "fail", "/proc/mpitrain_run: cannot be written", "output.model_dir")
    assert_found(results, "cores", "fail", "OMP_NUM_THREADS=many", "export OMP_NUM_THREADS=1")
    assert_found(results, "mpirun on the PATH", "warn", "^none", "PATH|start with srun")


@pytest.mark.lab
@pytest.mark.usefixtures("system")
def test_missing_variable_and_wrong_setting_are_the_users_input(tmp_path, small_history):
    incomplete = tmp_path / "incomplete.nc"
    with netCDF4.Dataset(small_history) as whole, netCDF4.Dataset(incomplete, "w") as dataset:
        for name, dimension in whole.dimensions.items():
            dataset.createDimension(name, len(dimension))
        for name, variable in whole.variables.items():
            if name != "sst_h":
                dataset.createVariable(name, variable.dtype, variable.dimensions)[:] = variable[:]
    code, results = doctor(f"data.data_path={incomplete}")
    assert code == 2
    assert_found(results, "data file", "fail", "no variable 'sst_h'", "this one has .*sss_h")
    code, results = doctor("training.epochs=-5")
    assert code == 2
    assert_found(results, "config", "fail", "training.epochs=-5", ".")


@pytest.mark.lab
@pytest.mark.usefixtures("system")
def test_data_locked_by_its_writer(tmp_path):
    path = tmp_path / "growing.nc"
    hold = "import h5py, sys\nfile = h5py.File(sys.argv[1], 'w')\nprint('open', flush=True)\nsys.stdin.read()"
    writer = subprocess.Popen(
        [sys.executable, "-c", hold, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "HDF5_USE_FILE_LOCKING": "TRUE"},
    )  # fmt: skip
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "open\n"
        with pytest.raises(OSError, match="lock"):
            h5py.File(path, "r")
        # Reading data in this process may have set the variable, which a rank would inherit.
        code, results = doctor(f"data.data_path={path}", environ={"HDF5_USE_FILE_LOCKING": ""})
        writer.kill()
    assert code == 2
    assert_found(results, "HDF5 locking", "fail", "locked: another process", "lsof .*HDF5_USE_FILE_LOCKING=FALSE")


def test_half_set_launcher_variables():
    code, results = doctor(environ={"OMPI_COMM_WORLD_RANK": "1"})
    assert code == 3
    assert_found(
        results, "launcher's variables", "fail", "RANK=1 without OMPI_COMM_WORLD_SIZE", "unset OMPI_COMM_WORLD_RANK"
    )


@pytest.mark.lab
def test_a_time_limit_that_is_none_is_refused():
    done = launch(["-m", "mpitrain", "doctor", "--timeout", "0"])
    assert done.returncode == 2
    assert "--timeout 0" in done.our_lines[0]


# --- between ranks ---------------------------------------------------------------------------------------------------


@pytest.mark.lab
def test_mpi_that_starts_after_its_library_was_asked_is_left_by_finalize():
    # MPICH's launcher sends SIGKILL to the others where a rank ends without MPI_Finalize, whatever its code.
    program = (
        "import time; from mpitrain.comm.mpi.library import read_mpi_library; read_mpi_library(); "
        "from mpi4py import MPI; MPI.Init(); rank = MPI.COMM_WORLD.rank; MPI.COMM_WORLD.Barrier(); time.sleep(rank); "
        "print('the end of rank', rank)"
    )
    done = launch(["-c", program], 2)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["the end of rank 0", "the end of rank 1"])


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_healthy_launch(num_ranks, tmp_path, small_history):
    code, results = doctor(
        f"data.data_path={small_history}", "output.model_dir=run", "--timeout", str(TIMEOUT_S),
        num_ranks=num_ranks, cwd=tmp_path,
    )  # fmt: skip
    assert code == 0, results
    assert results["ranks find each other"]["found"].startswith(f"{num_ranks} rank(s) on 1 node(s) over MPI")
    for backend in ("mpi", "gloo"):
        measured = re.match(r"correct; (\d+) us .* ([\d.]+) GB/s", results[f"Allreduce over {backend}"]["found"])
        assert measured is not None
        assert float(measured[2]) > 0
        assert results[f"DDP step over {backend}"]["status"] == "pass"
    for name in ("same MPI on all ranks", "same versions on all ranks", "data seen by all ranks", "TCP to rank 0",
                 "run folder seen by all", "clocks agree", "thread level"):  # fmt: skip
        assert results[name]["status"] == "pass", results[name]
    assert no_status_folder_left(tmp_path)
    assert list(tmp_path.glob(".mpitrain*")) == []


@pytest.mark.lab
def test_oversubscribed_cores_other_threads_and_an_interface_that_is_none(tmp_path):
    threads = detect_usable_core_count()
    arguments = ["-m", "mpitrain", "doctor", "--json", f"training.threads_per_rank={threads}", "--timeout", "40"]
    done = run_wrapped(
        "export OMP_NUM_THREADS=$((1 + rank))", tmp_path, *arguments, environ={"GLOO_SOCKET_IFNAME": "absent0"}
    )
    results = results_of(done)
    assert done.returncode == 3
    assert_found(results, "enough cores", "warn", f"2 ranks with {threads} thread", "start at most|threads_per_rank=")
    assert_found(results, "same variables on all ranks", "warn", "OMP_NUM_THREADS: rank [01] on", "export OMP_NUM")
    assert_found(results, "Allreduce over gloo", "fail", "rank 0 on .*absent0", "GLOO_SOCKET_IFNAME")
    assert results["Allreduce over mpi"]["status"] == "pass"


@pytest.mark.lab
def test_rank_that_never_arrives(tmp_path):
    started_s = time.monotonic()
    arguments = ["-m", "mpitrain", "doctor", "--json", "--timeout", str(SHORT_LIMIT_S)]
    done = run_wrapped('[ "$rank" = 1 ] && kill -STOP $$', tmp_path, *arguments)
    assert done.returncode != 0
    assert_found(results_of(done), "all ranks arrive", "fail", "no sign of rank 1 of 2 on", "look for the process")
    assert time.monotonic() - started_s < SHORT_LIMIT_S + 45


@pytest.mark.lab
def test_rank_that_is_stopped_on_the_way(tmp_path):
    program = tmp_path / "stops.py"
    program.write_text(
        "import os, signal, sys\n"
        "from mpitrain.cli.main import main\n"
        "from mpitrain.doctor import network\n"
        "def check_and_stop(ranks, check=network.check_tcp):\n"
        "    result = check(ranks)\n"
        "    if ranks.rank == 1:\n"
        "        os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    return result\n"
        "network.check_tcp = check_and_stop\n"
        f"sys.exit(main(['doctor', '--json', '--timeout', '{SHORT_LIMIT_S * 2}']))\n"
    )
    done = run_wrapped("", tmp_path, str(program))
    results = results_of(done)
    assert done.returncode != 0
    # Its last messages may have stopped with it: then rank 0 is still in the same operation.
    found = r"rank 1 on .*stopped\) (did not arrive, last seen at|in) 'TCP"
    assert_found(results, "all ranks arrive", "fail", found, "kill -CONT")
    assert results["MPI library"]["status"] == "pass", "results so far are shown"


@pytest.mark.lab
def test_blocked_network(tmp_path):
    """Rank 1 lives in a network namespace of its own, whose only interface is down."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-n", "true"], capture_output=True).returncode:
        pytest.skip("a network namespace needs root")
    arguments = ["-m", "mpitrain", "doctor", "--json", "--timeout", "12"]
    done = run_wrapped('[ "$rank" = 1 ] && exec unshare -n "$@"', tmp_path, *arguments)
    results = results_of(done)
    assert done.returncode != 0
    if "TCP to rank 0" in results:
        assert_found(results, "TCP to rank 0", "fail", r"rank 1 on .* cannot reach rank 0", "_SOCKET_IFNAME")
    else:  # MPI itself needs the network here
        assert_found(results, "all ranks arrive", "fail", "rank 1 on ", ".")


@pytest.mark.lab
def test_another_mpis_mpirun_and_a_rank_with_another_library(tmp_path):
    python = os.environ.get("MPITRAIN_OPENMPI_PYTHON")
    if python is None or loads_open_mpi():
        pytest.skip("needs MPICH here and an Open MPI environment named by MPITRAIN_OPENMPI_PYTHON")
    command = [find_mpirun(python), "-np", "2", sys.executable, "-m", "mpitrain", "doctor", "--json"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=launcher_environment(),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 3
    assert_found(results_of(done), "ranks find each other", "fail", "PMIX_RANK=0: PMIx was offered to MPICH", "MPICH's")

    other = next(iter(Path(python).parent.parent.glob("lib/libmpi.so.40*")))
    arguments = ["-m", "mpitrain", "doctor", "--json", "--timeout", str(SHORT_LIMIT_S)]
    done = run_wrapped(f'[ "$rank" = 1 ] && export MPI4PY_LIBMPI={other}', tmp_path, *arguments)
    assert done.returncode != 0
    assert_found(
        results_of(done), "same MPI on all ranks", "fail", "has (Open MPI|MPICH) .*, most have", "one environment"
    )


@pytest.mark.lab
def test_interrupted_doctor_leaves_no_process(tmp_path):
    waits_for_ever = tmp_path / "config.yaml"
    os.mkfifo(waits_for_ever)
    command = [sys.executable, "-m", "mpitrain", "doctor", "--json", str(waits_for_ever)]
    process = subprocess.Popen(command, env=launcher_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    folders = tmp_path / "folders"
    deadline_s = time.monotonic() + TIMEOUT_S
    while not list(folders.glob("*/rank-*.json")) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    # The supervisor holds the other end of our pipe: it must see its rank's end and go.
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.lab
@pytest.mark.usefixtures("system")
def test_settings_that_cannot_be_read_to_the_end_do_not_hang_the_doctor(tmp_path):
    waits_for_ever = tmp_path / "config.yaml"
    os.mkfifo(waits_for_ever)
    code, results = doctor(str(waits_for_ever), "--timeout", "3")
    assert code == 2
    assert_found(results, "config", "fail", "did not end within 3 s", "does not respond")
