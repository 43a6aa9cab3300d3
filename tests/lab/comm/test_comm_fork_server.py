"""The ranks of a node are forks of one process that loads for all: what that gives, and what becomes of its faults."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from conftest import PROJECT, TIMEOUT_S, Finished, find_mpirun, launcher_environment, train
from start_faults import free_port

from mpitrain.comm.fork_server import client
from mpitrain.comm.fork_server.likeness import difference, likeness
from mpitrain.comm.fork_server.messages import open_address
from mpitrain.comm.supervision.node_watch import NodeWatch
from mpitrain.train.stop_request import StopRequest

# Every process says so when it begins to load torch, and does there what the test asks for.
NOTING = """
import importlib.abc, os, signal, sys, time

class Note(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "torch" and "mpitrain" in sys.modules:
            sys.meta_path.remove(self)
            is_server = "mpitrain.comm.fork_server.server" in sys.modules
            with open(os.environ["NOTES"], "a") as notes:
                notes.write(f"{os.getpid()} {'server' if is_server else 'rank'}\\n")
            fault = os.environ.get("FAULT", "") if is_server else ""
            if fault == "error": raise ImportError("injected")
            if fault == "exit": os._exit(7)
            if fault == "SIGSEGV": os.kill(os.getpid(), signal.SIGSEGV)
            if fault == "hang": time.sleep(1e6)

sys.meta_path.insert(0, Note())
"""
SHORT = ("training.epochs=2",)


@pytest.fixture
def noted(tmp_path: Path) -> dict[str, str]:
    """The variables with which every process notes that it loads torch, in tmp_path/notes."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(NOTING)
    path = f"{tmp_path / 'site'}:{PROJECT}"
    return {"NOTES": str(tmp_path / "notes"), "PYTHONPATH": path, "MPITRAIN_FORK_SERVER": "yes"}


def who_loaded(environ: dict[str, str]) -> list[str]:
    """Who has loaded torch: `server` or `rank`, in this order."""
    return sorted(line.split()[1] for line in Path(environ["NOTES"]).read_text().splitlines())[::-1]


def weights_hash(run: Path) -> str:
    return str(json.loads((run / "run_record.json").read_text())["weights_sha256"])


@pytest.mark.mpi(ranks=4)
def test_torch_is_loaded_once_and_the_bits_are_the_same(
    small_history: Path, tmp_path: Path, noted: dict[str, str]
) -> None:
    settings = (*SHORT, f"data.data_path={small_history}")
    hashes = {}
    for switch, num_ranks, expected in (("", 4, ["server"]), ("no", 4, ["rank"] * 4), ("", 2, ["rank"] * 2)):
        Path(noted["NOTES"]).unlink(missing_ok=True)
        run = tmp_path / f"run{switch}{num_ranks}"
        done = train(num_ranks, run, *settings, environ={**noted, "MPITRAIN_FORK_SERVER": switch})
        assert done.returncode == 0, done.stderr
        assert who_loaded(noted) == expected
        hashes[switch, num_ranks] = re.findall(r"SHA-256 (\w+)", done.stdout)
    assert len({tuple(found) for found in hashes.values()}) == 1
    assert all(len(found) == 1 for found in hashes.values())


@pytest.mark.mpi(ranks=2)
@pytest.mark.parametrize("fault", ["error", "exit", "SIGSEGV"])
def test_a_server_that_cannot_load_leaves_it_to_the_ranks(
    small_history: Path, tmp_path: Path, noted: dict[str, str], fault: str
) -> None:
    done = train(2, tmp_path / "run", *SHORT, f"data.data_path={small_history}", environ={**noted, "FAULT": fault})
    assert done.returncode == 0, done.stderr
    assert who_loaded(noted) == ["server", "rank", "rank"]
    assert "injected" not in done.stderr
    log = (tmp_path / "run" / "logs" / "rank-0001.log").read_text()
    assert ("ImportError: injected" if fault == "error" else "the fork server has ended") in log


@pytest.mark.mpi(ranks=2)
def test_a_server_that_hangs_is_ended_in_time(tmp_path: Path, noted: dict[str, str]) -> None:
    environ = {**noted, "FAULT": "hang", "MPITRAIN_START_TIMEOUT_S": "1"}
    done = train(2, tmp_path / "run", *SHORT, environ=environ)
    assert done.returncode != 0
    (line,) = done.our_lines
    assert "is still loading torch" in line
    (server,) = Path(noted["NOTES"]).read_text().splitlines()
    wait_until_gone([int(server.split()[0])])


@pytest.mark.mpi(ranks=2)
def test_a_rank_unlike_the_others_loads_itself(small_history: Path, tmp_path: Path, noted: dict[str, str]) -> None:
    words = [sys.executable, "-m", "mpitrain", "train", f"output.model_dir={tmp_path / 'run'}", *SHORT]
    words.append(f"data.data_path={small_history}")
    command = [find_mpirun(), "-np", "1", *words, ":", "-np", "1", "-env", "OMP_PROC_BIND", "false", *words]
    environ = {**launcher_environment(), **noted}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert who_loaded(noted) == ["server", "rank"]
    logs = [path.read_text() for path in sorted((tmp_path / "run" / "logs").glob("rank-*.log"))]
    (reason,) = re.findall("this rank has loaded for itself: (.*)", "".join(logs))
    assert reason == "another rank of this node differs in variables: OMP_PROC_BIND"


class Running:
    """A launch that goes on for long, with the processes that matter."""

    def __init__(self, launched: subprocess.Popen[str], run: Path, environ: dict[str, str]) -> None:
        self.launched, self.run = launched, run
        metrics = run / "metrics.jsonl"
        wait_for(lambda: metrics.exists() and metrics.read_text(), launched)
        self.ranks = [
            int(re.findall(r"process (\d+)", path.read_text())[-1])
            for path in sorted((run / "logs").glob("rank-*.log"))
        ]
        (line,) = Path(environ["NOTES"]).read_text().splitlines()
        self.server = int(line.split()[0])
        assert {parent_of(rank) for rank in self.ranks} == {self.server}
        self.stand_ins = [pid for pid in children_of(launched.pid) if pid != self.server]

    def finish(self) -> Finished:
        """Wait for the end of all of it."""
        stdout, stderr = self.launched.communicate(timeout=TIMEOUT_S)
        wait_until_gone([*self.ranks, *self.stand_ins, self.server])
        return Finished(self.launched.returncode, stdout, stderr)


@contextmanager
def running(
    run: Path, history: Path, environ: dict[str, str], num_ranks: int = 2, before: tuple[str, ...] = ()
) -> Iterator[Running]:
    words = [sys.executable, "-m", "mpitrain", "train", f"output.model_dir={run}", f"data.data_path={history}"]
    command = [*before, find_mpirun(), "-np", str(num_ranks), *words, "training.epochs=1000000"]
    launched = subprocess.Popen(
        command, text=True, env={**launcher_environment(), **environ},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield Running(launched, run, environ)
    finally:
        launched.kill()
        launched.communicate()


@pytest.mark.mpi(ranks=2)
@pytest.mark.parametrize("victim", ["fork", "stand-in", "server"])
def test_whatever_is_killed_all_of_it_ends(
    small_history: Path, tmp_path: Path, noted: dict[str, str], victim: str
) -> None:
    with running(tmp_path / "run", small_history, noted) as job:
        killed = {"fork": job.ranks[1], "stand-in": stand_in_of(1, job), "server": job.server}[victim]
        os.kill(killed, signal.SIGKILL)
        done = job.finish()
    assert done.returncode != 0
    (line,) = done.our_lines
    named = re.findall(r"rank (\d) on \S+ \(process (\d+)\)", line)
    assert ("1", str(job.ranks[1])) in named  # and what the launcher has ended in the same moment
    assert "ended without a word" in line


@pytest.mark.mpi(ranks=2)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_to_what_the_launcher_started_reaches_the_rank(
    small_history: Path, tmp_path: Path, noted: dict[str, str], number: signal.Signals
) -> None:
    with running(tmp_path / "run", small_history, noted) as job:
        os.kill(stand_in_of(1, job), number)
        done = job.finish()
    assert f"stopped by {number.name}" in done.stdout + done.stderr
    assert done.returncode == 5
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.mpi(ranks=2)
def test_a_rank_can_be_stopped_and_continued(small_history: Path, tmp_path: Path, noted: dict[str, str]) -> None:
    with running(tmp_path / "run", small_history, noted) as job:
        both = stand_in_of(1, job), job.ranks[1]
        os.kill(both[0], signal.SIGTSTP)
        wait_for(lambda: [state_of(pid) for pid in both] == ["T", "T"], job.launched)
        os.kill(both[0], signal.SIGCONT)
        wait_for(lambda: "T" not in [state_of(pid) for pid in both], job.launched)
        os.kill(both[0], signal.SIGTERM)
        assert job.finish().returncode == 5


@pytest.mark.mpi(ranks=2)
def test_a_rank_ignores_what_its_launcher_was_told_to_ignore(
    small_history: Path, tmp_path: Path, noted: dict[str, str]
) -> None:
    before = ("bash", "-c", 'trap "" USR2; exec "$@"', "-")
    with running(tmp_path / "run", small_history, noted, before=before) as job:
        os.kill(stand_in_of(1, job), signal.SIGUSR2)
        time.sleep(0.5)
        os.kill(stand_in_of(1, job), signal.SIGTERM)
        done = job.finish()
    assert "stopped by SIGTERM" in done.stdout + done.stderr
    assert done.returncode == 5


@pytest.mark.mpi(ranks=2)
def test_a_rank_killed_by_a_signal_shows_its_number(small_history: Path, tmp_path: Path, noted: dict[str, str]) -> None:
    """By hand, where no launcher puts its own code in the place of a rank's; SIGALRM, which nobody catches."""
    with by_hand(tmp_path / "run", small_history, noted) as (processes, forks):
        os.kill(forks[1], signal.SIGALRM)
        codes = [process.wait(60) for process in processes]
    assert codes == [3, -signal.SIGALRM]


@pytest.mark.mpi(ranks=2)
def test_one_interrupt_of_the_whole_group_stops_with_a_checkpoint(
    small_history: Path, tmp_path: Path, noted: dict[str, str]
) -> None:
    with by_hand(tmp_path / "run", small_history, noted) as (processes, _):
        os.killpg(processes[0].pid, signal.SIGINT)  # both the rank and what stands in for it are of this group
        codes = [process.wait(60) for process in processes]
    assert codes == [5, 5]
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@contextmanager
def by_hand(
    run: Path, history: Path, environ: dict[str, str]
) -> Iterator[tuple[list[subprocess.Popen[bytes]], list[int]]]:
    """Two ranks without a launcher, in one process group; the processes that were started, and the forks."""
    words = ["-m", "mpitrain", "train", f"output.model_dir={run}", f"data.data_path={history}"]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(2):
            processes.append(
                subprocess.Popen(
                    [sys.executable, *words, "training.epochs=1000000"],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={**launcher_environment(), **environ, **meeting, "RANK": str(rank)},
                    preexec_fn=functools.partial(os.setpgid, 0, processes[0].pid if processes else 0),
                )
            )
        metrics = run / "metrics.jsonl"
        deadline_s = time.monotonic() + TIMEOUT_S
        while not (metrics.exists() and metrics.read_text()):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        logs = [(run / "logs" / f"rank-{rank:04d}.log").read_text() for rank in range(2)]
        forks = [int(re.findall(r"process (\d+)", log)[-1]) for log in logs]
        assert not {process.pid for process in processes} & set(forks)
        yield processes, forks
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_second_interrupt_counts_only_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr("mpitrain.train.stop_request.time.monotonic", lambda: now_s)
    request = StopRequest()
    request.set_by(signal.SIGINT)
    now_s = 100.2
    request.set_by(signal.SIGINT)
    assert request.signal_name == "SIGINT"
    now_s = 100.4
    with pytest.raises(KeyboardInterrupt):
        request.set_by(signal.SIGINT)


def test_a_folder_of_another_user_is_not_trusted(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(PermissionError, match="own folder"):
        open_address(tmp_path)
    tmp_path.chmod(0o700)
    os.close(open_address(tmp_path)[0])
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OSError, match="link"):
        open_address(tmp_path / "link")


def stand_in_of(rank: int, job: Running) -> int:
    for pid in job.stand_ins:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        if f"PMI_RANK={rank}".encode() in words or f"OMPI_COMM_WORLD_RANK={rank}".encode() in words:
            return pid
    raise AssertionError(f"nobody stands in for rank {rank}")


def children_of(ancestor: int) -> list[int]:
    """The processes that a launcher and its helpers have started, without those below."""
    direct = [int(path.name) for path in Path("/proc").glob("[0-9]*") if parent_of(int(path.name)) == ancestor]
    helpers = [pid for pid in direct if b"mpitrain" not in Path(f"/proc/{pid}/cmdline").read_bytes()[:-1][-4000:]
               or b"hydra" in Path(f"/proc/{pid}/cmdline").read_bytes()]  # fmt: skip
    return [pid for pid in direct if pid not in helpers] + [pid for helper in helpers for pid in children_of(helper)]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def wait_until_gone(processes: list[int]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while left := [pid for pid in processes if state_of(pid) not in "ZX"]:
        assert time.monotonic() < deadline_s, f"processes are left: {left}"
        time.sleep(0.01)


def wait_for(condition: object, launched: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():  # type: ignore[operator]
        assert launched.poll() is None, launched.communicate()
        assert time.monotonic() < deadline_s, "waited too long"
        time.sleep(0.02)


def test_what_two_processes_must_have_in_common_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = json.loads(json.dumps(likeness(os.environ)))
    assert difference(own, json.loads(json.dumps(likeness({**os.environ, "PMI_RANK": "7"})))) == ""
    assert difference(own, likeness({**os.environ, "OMP_NUM_THREADS": "77"})) == "variables: OMP_NUM_THREADS"
    before = os.umask(0o123)
    try:
        assert difference(own, likeness(os.environ)) == "file mode mask"
    finally:
        os.umask(before)
    monkeypatch.chdir(tmp_path)
    assert difference(own, likeness(os.environ)) == "working folder"
    monkeypatch.undo()
    monkeypatch.setattr(sys, "path", ["elsewhere"])
    assert difference(own, likeness(os.environ)) == "Python's path"


@pytest.mark.parametrize(
    ("variables", "words", "expected"),
    [
        ({}, ["python", "-m", "mpitrain"], True),
        ({}, ["python", "/usr/bin/mpitrain", "train"], True),
        ({}, ["python", "-u", "-m", "mpitrain"], True),
        ({}, ["python", "program.py"], False),
        ({"OMP_PLACES": "sockets"}, ["python", "-m", "mpitrain"], False),
        ({"OMP_PROC_BIND": "false"}, ["python", "-m", "mpitrain"], True),
        ({}, ["python", "-X", "importtime", "-m", "mpitrain"], False),
        ({"LD_PRELOAD": "libprofiler.so"}, ["python", "-m", "mpitrain"], False),
        ({"MPITRAIN_FORK_SERVER": "no"}, ["python", "-m", "mpitrain"], False),
        ({"MPI_LOCALNRANKS": "1"}, ["python", "-m", "mpitrain"], False),
        ({"MPI_LOCALNRANKS": "2"}, ["python", "-m", "mpitrain"], False),
        ({"MPI_LOCALNRANKS": "2", "MPITRAIN_FORK_SERVER": "yes"}, ["python", "-m", "mpitrain"], True),
    ],
)
def test_only_a_plain_command_on_a_shared_node_is_forked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variables: dict[str, str], words: list[str], expected: bool
) -> None:
    of_rank = {"PMI_RANK": "0", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "4"}
    monkeypatch.setattr(sys, "orig_argv", words)
    monkeypatch.setattr(sys, "gettrace", lambda: None)
    assert client.is_wanted(NodeWatch(tmp_path), {**of_rank, **variables}) is expected
    assert not client.is_wanted(NodeWatch(), {**of_rank, **variables})


@pytest.mark.mpi(ranks=2)
def test_exit_codes_and_streams_are_the_ranks_own(tmp_path: Path, noted: dict[str, str]) -> None:
    done = train(2, tmp_path / "run", "training.epochs=-1", environ=noted)
    assert done.returncode == 2
    assert len(done.our_lines) == 1
    assert who_loaded(noted) == ["server"]
    assert "Traceback" not in done.stderr
