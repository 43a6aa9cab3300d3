"""Each planted fault is found by a real call of the command, with its fix; a healthy launch passes."""

from __future__ import annotations

import re

import netCDF4
import pytest
from conftest import launch
from doctor_runs import _surroundings, assert_found, doctor, no_status_folder_left, system  # noqa: F401  fixtures that pytest finds by name

# A step takes far less than a second on a quiet machine.
STEP_LIMIT_S = 300.0


def test_static_checks_load_neither_torch_nor_mpi():
    run = "from mpitrain.cli.main import main\nmain(['doctor', '--json'])\nimport sys\n"
    run += "print('LOADED', sorted({'torch', 'mpi4py', 'netCDF4'} & set(sys.modules)))"
    assert "LOADED []" in launch(["-c", run]).stdout


def test_wrong_library_path():
    code, results = doctor(environ={"MPI4PY_LIBMPI": "/nonexistent/libmpi.so"})
    assert code == 3
    assert_found(results, "MPI library", "fail", "MPI4PY_LIBMPI=/nonexistent/libmpi.so", "unset MPI4PY_LIBMPI")
    assert_found(results, "library path", "fail", "no such file", "unset MPI4PY_LIBMPI")


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


def test_half_set_launcher_variables():
    code, results = doctor(environ={"OMPI_COMM_WORLD_RANK": "1"})
    assert code == 3
    assert_found(
        results, "launcher's variables", "fail", "RANK=1 without OMPI_COMM_WORLD_SIZE", "unset OMPI_COMM_WORLD_RANK"
    )


def test_a_time_limit_that_is_none_is_refused():
    done = launch(["-m", "mpitrain", "doctor", "--timeout", "0"])
    assert done.returncode == 2
    assert "--timeout 0" in done.our_lines[0]


# --- between ranks ---------------------------------------------------------------------------------------------------


@pytest.mark.mpi([1, 2])
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_healthy_launch(num_ranks, tmp_path, small_history):
    code, results = doctor(
        f"data.data_path={small_history}", "output.model_dir=run", "--timeout", str(STEP_LIMIT_S),
        num_ranks=num_ranks, cwd=tmp_path,
    )  # fmt: skip
    assert code == 0, results
    assert results["ranks find each other"]["found"].startswith(f"{num_ranks} rank(s) on 1 node(s) over MPI")
    for backend in ("mpi", "gloo"):
        measured = re.match(r"right; (\d+) us .* ([\d.]+) GB/s", results[f"Allreduce over {backend}"]["found"])
        assert measured is not None
        assert float(measured[2]) > 0
        assert results[f"DDP step over {backend}"]["status"] == "pass"
    for name in ("same MPI on all ranks", "same versions on all ranks", "data seen by all ranks", "TCP to rank 0",
                 "run folder seen by all", "clocks agree", "thread level"):  # fmt: skip
        assert results[name]["status"] == "pass", results[name]
    assert no_status_folder_left(tmp_path)
    assert list(tmp_path.glob(".mpitrain*")) == []
