"""Damaged files: one line each, whatever they do to the library that reads them, and never the death of a run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
from conftest import train
from many_runs import run_many

from mpitrain.data.files import first_opening, opening_process
from mpitrain.data.files.first_opening import FirstOpening, without_launcher
from mpitrain.data.files.open import open_field_file
from mpitrain.errors import DataError, MpitrainError


def write_table(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["inputs"] = np.linspace(-1, 1, 60, dtype="f4").reshape(20, 3)
        file["targets"] = np.linspace(0, 1, 20, dtype="f4")


def references_that_are_integers(path: Path) -> None:
    """h5py follows them into memory that is none."""
    write_table(path)
    with h5py.File(path, "a") as file:
        file["inputs"].attrs["DIMENSION_LIST"] = np.array([123456789, 2], dtype="i8")


def declared_without_shape(path: Path) -> None:
    write_table(path)
    with h5py.File(path, "a") as file:
        file["empty"] = h5py.Empty("f4")
        file["inputs"].attrs["nothing"] = h5py.Empty("f4")


def sparse(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("inputs", shape=(10**15, 3), dtype="f4", chunks=(1000, 3))
        file.create_dataset("targets", shape=(10**15,), dtype="f4", chunks=(1000,))


def names_that_are_not_text(path: Path) -> None:
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_DATA") as file:
        file.createDimension("n", 4)
        file.createVariable("temperature", "f4", ("n",))[:] = 1
    path.write_bytes(path.read_bytes().replace(b"temperature", b"\xff\xfetemperatu"))


def dimensions_without_end(path: Path) -> None:
    """The library goes through them for hours."""
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("n", 4)
        file.createVariable("t", "f4", ("n",))[:] = 1
    content = bytearray(path.read_bytes())
    content[12:16] = b"\x7f\xff\xff\xff"
    path.write_bytes(content)


def damaged_metadata(path: Path) -> None:
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("n", 4)
        file.createVariable("t", "f4", ("n",))[:] = 1
    content = bytearray(path.read_bytes())
    for position in range(200, 700, 7):
        content[position] ^= 0x55
    path.write_bytes(content)


def claims_25_tib(path: Path) -> None:
    whole = BytesIO()
    np.save(whole, np.zeros((4, 2), "f4"))
    header = whole.getvalue().replace(b"(4, 2), }     ", b"(4, 1717986918400), }".ljust(14)[:21])
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inputs.npy", header)
        archive.writestr("targets.npy", whole.getvalue())


DAMAGED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "references are integers": ("x.h5", references_that_are_integers, r"damaged: its library dies of it \(SIGSEGV\)"),
    "sparse": ("x.h5", sparse, r"'inputs' is not read: it claims 12000000000000000 bytes in a file of \d+"),
    "names not text": ("x.nc", names_that_are_not_text, "cannot be read as NetCDF"),
    "endless header": ("x.nc", dimensions_without_end, r"the header is damaged: 2147483647 things in a file of"),
    "metadata": ("x.nc", damaged_metadata, r"cannot be read as NetCDF"),
    "25 TiB": ("x.npz", claims_25_tib, r"cannot be read \(.*\); give an \.npz"),
}


@pytest.mark.mpi(ranks=2)
def test_runs_say_one_line_each(tmp_path: Path) -> None:
    jobs = []
    for number, (file, write, _) in enumerate(DAMAGED.values()):
        (tmp_path / f"{number}").mkdir()
        write(tmp_path / f"{number}" / file)
        jobs.append(
            ["train", f"output.model_dir={tmp_path / 'run'}", f"data.data_path={tmp_path / f'{number}' / file}"]
        )
    for (name, (_, _, what)), outcome in zip(DAMAGED.items(), run_many(tmp_path / "logs", 2, jobs), strict=True):
        assert outcome.codes == [2, 2], f"{name}: {outcome.stderr}"
        (line,) = outcome.our_lines
        assert re.search(what, line), line
        assert "Traceback" not in outcome.stderr
        assert not (tmp_path / "run").exists()


@pytest.mark.mpi(ranks=2)
def test_a_file_that_kills_its_library_does_not_kill_the_job(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--full"):
        pytest.skip("as above, in processes that a launcher watches; --full")
    references_that_are_integers(tmp_path / "x.h5")
    done = train(2, tmp_path / "run", f"data.data_path={tmp_path / 'x.h5'}")
    assert (done.returncode, len(done.our_lines)) == (2, 1), done.stderr
    assert "SIGSEGV" in done.our_lines[0]


def test_inspect_says_one_line_at_once(tmp_path: Path) -> None:
    jobs = []
    for number, (file, write, _) in enumerate(DAMAGED.values()):
        (tmp_path / f"{number}").mkdir()
        write(tmp_path / f"{number}" / file)
        jobs.append(["data", "inspect", str(tmp_path / f"{number}" / file)])
    started_s = time.monotonic()
    outcomes = run_many(tmp_path / "logs", None, jobs)
    assert time.monotonic() - started_s < 30
    for (name, (_, _, what)), outcome in zip(DAMAGED.items(), outcomes, strict=True):
        assert "Traceback" not in outcome.stderr
        if name == "sparse":
            assert outcome.codes == [0], outcome.stderr
            assert "not read: inputs: it claims 12000000000000000 bytes" in outcome.stdout
        else:
            assert outcome.codes == [2], outcome.stderr
            (line,) = outcome.our_lines
            assert re.search(what, line), line


def test_what_is_declared_without_a_shape_is_left_out(tmp_path: Path) -> None:
    declared_without_shape(tmp_path / "x.h5")
    file = open_field_file(tmp_path / "x.h5")
    assert set(file.variables) == {"inputs", "targets"}
    assert "holds nothing" in file.refused["empty"]


HOSTILE_NAME = "sst\x1b[31m\x07\nmpitrain: done"


def test_no_name_of_a_file_reaches_the_terminal_as_it_is(tmp_path: Path) -> None:
    write_table(tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5", "a") as file:
        file[HOSTILE_NAME] = np.zeros(20)
        file[HOSTILE_NAME].attrs["units"] = "K\x1b]0;owned\x07"
        file["link"] = h5py.ExternalLink("\x1b[2J.h5", "/x")
        file["soft"] = h5py.SoftLink("/\x1b[2J")
    with netCDF4.Dataset(tmp_path / "x.nc", "w") as file:
        file.createDimension("n", 4)
        file.createVariable("t", "f4", ("n",)).units = "K\x1b[31m"
    jobs = [
        ["data", "inspect", str(tmp_path / "x.h5")],
        ["data", "inspect", str(tmp_path / "x.nc")],
        ["data", "inspect", str(tmp_path / "x.h5"), "--json"],
        ["data", "inspect", str(tmp_path / "x.h5"), "variables.input_variables=[a\x1b]"],
    ]
    for done in run_many(tmp_path / "logs", None, jobs):
        assert "x1b" in done.stdout + done.stderr, "else nothing hostile was shown, and this says nothing"
        assert all(line.isprintable() for line in (done.stdout + done.stderr).splitlines()), done
        assert not any(line.startswith("mpitrain: done") for line in done.stdout.splitlines())
    assert "\x1b" not in str(MpitrainError("\x1b[2J"))


@pytest.fixture
def opening() -> Iterator[FirstOpening]:
    opening = FirstOpening()
    yield opening
    opening.end()


def test_one_process_opens_many_files_and_remembers(tmp_path: Path, opening: FirstOpening) -> None:
    paths = [tmp_path / f"{number}.h5" for number in range(100)]
    for number, path in enumerate(paths):
        (references_that_are_integers if number in (3, 50) else write_table)(path)
    opening.expect(paths)
    died = []
    for path in paths:
        try:
            opening.check(path)
        except DataError as error:
            assert "SIGSEGV" in str(error)  # noqa: PT017
            died.append(path)
    assert died == [paths[3], paths[50]]
    opening.end()
    opening.begin = lambda: pytest.fail("asked again for what is known")  # type: ignore[method-assign]
    opening.check(paths[0])
    with pytest.raises(DataError, match="SIGSEGV"):
        opening.check(paths[3])


def test_a_file_that_changed_is_opened_again(tmp_path: Path, opening: FirstOpening) -> None:
    path = tmp_path / "x.h5"
    write_table(path)
    opening.check(path)
    references_that_are_integers(path)
    with pytest.raises(DataError, match="SIGSEGV"):
        opening.check(path)


def test_a_file_of_our_own_is_not_opened_twice(tmp_path: Path, opening: FirstOpening) -> None:
    write_table(tmp_path / "x.h5")
    opening.begin = lambda: pytest.fail("it was started")  # type: ignore[method-assign]
    opening.trust(tmp_path / "x.h5")
    opening.check(tmp_path / "x.h5")
    opening.check(tmp_path / "arrays.npz")  # read without a library in C
    assert opening._process is None


def test_where_there_can_be_no_process_files_are_opened_at_once(
    tmp_path: Path, opening: FirstOpening, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_table(tmp_path / "x.h5")
    for start in ("raise SystemExit(3)", None):
        fresh = FirstOpening()
        if start is None:
            monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        else:
            monkeypatch.setattr(first_opening, "_START", start)
        fresh.check(tmp_path / "x.h5")
        assert (fresh._process, fresh._is_possible) == (None, False)


def test_the_process_is_no_rank() -> None:
    environ = {
        "PMI_RANK": "1",
        "OMPI_COMM_WORLD_RANK": "1",
        "SLURM_PROCID": "1",
        "MPI_LOCALRANKID": "0",
        "PATH": "/bin",
    }
    assert without_launcher(environ) == {"PATH": "/bin"}


def test_the_process_ends_with_its_parent_and_when_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import os, sys, signal\n"
        "from mpitrain.data.files.first_opening import FIRST_OPENING as opening\n"
        "opening.begin(); print(opening._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    _wait_until_gone(int(done.stdout))
    hasty = "serve; import mpitrain.data.files.opening_process as o; o._IDLE_S = 1; serve("
    monkeypatch.setattr(first_opening, "_START", first_opening._START.replace("serve; serve(", hasty))
    opening = FirstOpening()
    write_table(tmp_path / "x.h5")
    opening.check(tmp_path / "x.h5")
    assert opening._process is not None
    _wait_until_gone(opening._process.pid)
    (tmp_path / "x.h5").touch()
    opening.check(tmp_path / "x.h5")  # it is started again
    opening.end()


def _wait_until_gone(pid: int) -> None:
    deadline_s = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists() and Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline_s, "the process is left"
        time.sleep(0.05)


def test_a_library_that_never_ends_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "o._MOST_CPU_S = 1; o.open_field_file = lambda path: [None for _ in iter(int, 1)]; serve("
    start = first_opening._START.replace("serve(", f"import mpitrain.data.files.opening_process as o; {endless}")
    monkeypatch.setattr(first_opening, "_START", start)
    write_table(tmp_path / "x.h5")
    opening = FirstOpening()
    with pytest.raises(DataError, match="does not come to an end"):
        opening.check(tmp_path / "x.h5")
    opening.end()


def test_it_costs_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The processor time of the process is a small part of a start: it loads neither torch nor MPI nor pydantic."""
    program = (
        "import sys; from mpitrain.data.files import opening_process as o; o._load_libraries()\n"
        "assert not {'torch', 'pydantic', 'mpi4py.MPI', 'matplotlib'} & set(sys.modules)"
    )
    before = os.times()
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    cost_s = os.times().children_user - before.children_user
    with capsys.disabled():
        print(f"\nthe process that opens files first: {cost_s:.2f} s of processor time")
    assert cost_s < 2.0


def test_signals_that_ask_a_job_to_stop_are_the_parents_business(tmp_path: Path, opening: FirstOpening) -> None:
    write_table(tmp_path / "x.h5")
    opening.check(tmp_path / "x.h5")
    assert opening._process is not None
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        os.kill(opening._process.pid, number)
    (tmp_path / "x.h5").touch()
    opening.check(tmp_path / "x.h5")
    assert opening_process.try_to_open(tmp_path / "none.h5").endswith("a pattern or a list of these")


def test_the_process_outlives_the_thread_that_began_it(tmp_path: Path, opening: FirstOpening) -> None:
    """Linux kills a process that is to die with its parent when the parent's thread ends that has started it."""
    write_table(tmp_path / "x.h5")
    beginning = threading.Thread(target=opening.check, args=(tmp_path / "x.h5",))
    beginning.start()
    beginning.join()
    begun = opening._process
    assert begun is not None
    (tmp_path / "x.h5").touch()
    opening.check(tmp_path / "x.h5")
    assert opening._process is begun
    assert begun.poll() is None
