"""Each planted fault is found by a real call of the doctor, with its fix."""

from __future__ import annotations

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
import pytest
from conftest import TIMEOUT_S, Finished, find_mpirun, launcher_environment
from doctor_runs import (  # noqa: F401  fixtures that pytest finds by name
    _surroundings,
    assert_found,
    doctor,
    loads_open_mpi,
    no_status_folder_left,
    results_of,
    system,
    write_other_mpi,
)

from mpitrain.cluster.cores import detect_usable_core_count

SHORT_LIMIT_S = 6.0


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


# What the launchers of both families answer to --version, under each name that Debian gives them.
OTHER_MPIRUNS = {
    "MPICH": "HYDRA build details:",
    "Open MPI": "mpirun (Open MPI) 4.1.4",
    "Open MPI by another name": "mpirun.openmpi (OpenRTE) 4.1.4",
}


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


def test_a_real_mpirun_of_another_mpi_first_on_the_path():
    python = os.environ.get("MPITRAIN_OPENMPI_PYTHON")
    if python is None or loads_open_mpi():
        pytest.skip("needs MPICH here and an Open MPI environment named by MPITRAIN_OPENMPI_PYTHON")
    own, other = Path(sys.executable).parent, Path(python).parent
    found = f"{other}/mpirun of Open MPI, but Python loads MPICH [0-9.]+: every rank would be alone"
    code, results = doctor(environ={"PATH": f"{other}:{os.environ['PATH']}"})
    assert code == 3
    assert_found(results, "mpirun on the PATH", "fail", found, f"start with {own}/mpirun")
    code, results = doctor(environ={"PATH": f"{own}:{other}:{os.environ['PATH']}"})
    assert code == 0
    assert_found(results, "mpirun on the PATH", "pass", f"^{own}/mpirun of MPICH$", "^$")


def test_a_wrong_mpirun_hides_no_fault_of_the_input(tmp_path):
    other = write_other_mpi(tmp_path / "usr_bin")
    code, results = doctor("data.data_path=nowhere.nc", environ={"PATH": f"{other}:{os.environ['PATH']}"})
    assert code == 3  # the next launch would fail whatever its input
    assert results["mpirun on the PATH"]["status"] == "fail"
    assert_found(results, "data file", "fail", "nowhere.nc: no such file", "data.data_path")


def test_no_compiler_unwritable_output_and_threads_that_are_no_number(tmp_path):
    environ = {"PATH": str(tmp_path), "OMP_NUM_THREADS": "many", "CXX": ""}
    code, results = doctor("output.model_dir=/proc/mpitrain_run", environ=environ)
    assert code == 3
    assert_found(results, "C++ compiler", "warn", "torch.compile cannot work", "apt-get install g\\+\\+")
    assert_found(results, "run folder", "fail", "/proc/mpitrain_run: cannot be written", "output.model_dir")
    assert_found(results, "cores", "fail", "OMP_NUM_THREADS=many", "export OMP_NUM_THREADS=1")
    assert_found(results, "mpirun on the PATH", "warn", "^none", "PATH|start with srun")


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


@pytest.mark.mpi([2])
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


@pytest.mark.mpi([2])
def test_rank_that_never_arrives(tmp_path):
    started_s = time.monotonic()
    arguments = ["-m", "mpitrain", "doctor", "--json", "--timeout", str(SHORT_LIMIT_S)]
    done = run_wrapped('[ "$rank" = 1 ] && kill -STOP $$', tmp_path, *arguments)
    assert done.returncode != 0
    assert_found(results_of(done), "all ranks arrive", "fail", "no sign of rank 1 of 2 on", "look for the process")
    assert time.monotonic() - started_s < SHORT_LIMIT_S + 45


@pytest.mark.mpi([2])
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
    assert_found(
        results, "all ranks arrive", "fail", r"rank 1 on .*stopped\) did not arrive, last seen at", "kill -CONT"
    )
    assert results["TCP to rank 0"]["status"] == "pass", "results so far are shown"


@pytest.mark.mpi([2])
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


@pytest.mark.mpi([2])
def test_another_mpis_mpirun_and_a_rank_with_another_library(tmp_path):
    python = os.environ.get("MPITRAIN_OPENMPI_PYTHON")
    if python is None or loads_open_mpi():
        pytest.skip("needs MPICH here and an Open MPI environment named by MPITRAIN_OPENMPI_PYTHON")
    command = [find_mpirun(python), "-np", "2", sys.executable, "-m", "mpitrain", "doctor", "--json"]
    done = subprocess.run(
        command, cwd=tmp_path, env=launcher_environment(), capture_output=True, text=True, timeout=60, check=False
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


def test_interrupted_doctor_leaves_no_process(tmp_path):
    waits_for_ever = tmp_path / "config.yaml"
    os.mkfifo(waits_for_ever)
    command = [sys.executable, "-m", "mpitrain", "doctor", "--json", str(waits_for_ever)]
    process = subprocess.Popen(command, env=launcher_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    folders = tmp_path / "folders"
    deadline_s = time.monotonic() + 30
    while not list(folders.glob("*/rank-*.json")) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    # The supervisor holds the other end of our pipe: it must see its rank's end and go.
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("system")
def test_settings_that_cannot_be_read_to_the_end_do_not_hang_the_doctor(tmp_path):
    waits_for_ever = tmp_path / "config.yaml"
    os.mkfifo(waits_for_ever)
    code, results = doctor(str(waits_for_ever), "--timeout", "3")
    assert code == 2
    assert_found(results, "config", "fail", "did not end within 3 s", "does not answer")
