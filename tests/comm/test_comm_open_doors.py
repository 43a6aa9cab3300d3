"""On one node nothing of ours listens beyond loopback; who comes in as a rank can make no rank run anything."""

from __future__ import annotations

import datetime
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import torch.distributed as dist
from conftest import TIMEOUT_S, find_mpirun, launcher_environment
from start_faults import free_port

from mpitrain.comm.tcp.meeting import address_to_meet, is_loopback, open_store_at
from mpitrain.comm.tcp.sealed_store import SealedStore
from mpitrain.errors import LaunchError

NUM_RANKS = 2
# MPI alone: what its library and its launcher open is theirs.
MPI_ALONE = (
    "from mpi4py import MPI; import time; MPI.COMM_WORLD.Barrier(); open({ready!r}, 'w').close(); time.sleep(600)"
)


def children_of(pids: set[int]) -> set[int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    while more := {pid for pid, parent in parents.items() if parent in pids} - pids:
        pids = pids | more
    return pids


def open_listeners(pids: set[int]) -> list[str]:
    """The addresses beyond loopback at which these processes listen, in the system's own hexadecimal form."""
    inodes = set()
    for pid in pids:
        for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = os.readlink(descriptor)
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    found = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
            words = line.split()
            address = words[1].partition(":")[0]
            is_local = address.endswith("7F") if name == "tcp" else address == "0" * 24 + "01000000"
            if words[3] == "0A" and words[9] in inodes and not is_local and not address.endswith("0000FFFF0100007F"):
                found.append(words[1])
    return found


@contextmanager
def running(commands: Sequence[Sequence[str]], environs: Sequence[dict[str, str]], ready: Path) -> Iterator[set[int]]:
    """Start the commands; give their processes, and those that they started, when the file `ready` holds something."""
    output = ready.parent.parent / "stderr"
    with output.open("w") as stderr:
        jobs = [
            subprocess.Popen(list(command), env={**launcher_environment(), **environ}, stdin=subprocess.DEVNULL,
                             stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True)
            for command, environ in zip(commands, environs, strict=True)
        ]  # fmt: skip
    try:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not ready.exists():
            assert time.monotonic() < deadline_s
            assert all(job.poll() is None for job in jobs), output.read_text()
            time.sleep(0.05)
        yield children_of({job.pid for job in jobs})
    finally:
        for job in jobs:
            with suppress(ProcessLookupError):
                os.killpg(job.pid, signal.SIGTERM)
        for job in jobs:
            try:
                job.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                os.killpg(job.pid, signal.SIGKILL)
                job.wait()


def by_hand(port: int) -> list[dict[str, str]]:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(NUM_RANKS)}
    return [{**meeting, "RANK": str(rank)} for rank in range(NUM_RANKS)]


def training(folder: Path, history: Path) -> list[str]:
    return [sys.executable, "-m", "mpitrain", f"output.model_dir={folder}", f"data.data_path={history}",
            "training.epochs=1000000", "training.engine=eager"]  # fmt: skip


@pytest.mark.lab
def test_by_hand_nothing_listens_beyond_loopback(small_history: Path, tmp_path: Path) -> None:
    """But MPI's library, which is asked first and then only knows that each rank is alone."""
    ready = tmp_path / "alone" / "ready"
    ready.parent.mkdir()
    with running([[sys.executable, "-c", MPI_ALONE.format(ready=str(ready))]], [{}], ready) as pids:
        of_mpi = len(open_listeners(pids))
    commands = [training(tmp_path / "run", small_history)] * NUM_RANKS
    with running(commands, by_hand(free_port()), tmp_path / "run" / "metrics.jsonl") as pids:
        assert len(pids) >= NUM_RANKS
        assert len(open_listeners(pids)) <= NUM_RANKS * of_mpi


@pytest.mark.lab
@pytest.mark.parametrize("backend", ["mpi", "gloo"])
def test_under_mpirun_only_mpi_listens_beyond_loopback(small_history: Path, tmp_path: Path, backend: str) -> None:
    mpirun = [find_mpirun(), "-np", str(NUM_RANKS)]
    ready = tmp_path / "alone" / "ready"
    ready.parent.mkdir()
    alone = [*mpirun, sys.executable, "-c", MPI_ALONE.format(ready=str(ready))]
    with running([alone], [{}], ready) as pids:
        of_mpi = len(open_listeners(pids))
    command = [*mpirun, *training(tmp_path / "run", small_history), f"compute.backend={backend}"]
    with running([command], [{}], tmp_path / "run" / "metrics.jsonl") as pids:
        assert len(open_listeners(pids)) <= of_mpi


# Joins as rank 1 with torch's own means, and sends pickles in the place of the first objects.
IMPOSTOR = """
import datetime, os, pickle, sys
import torch, torch.distributed as dist
class Planted:
    def __reduce__(self): return (open, (sys.argv[1], "w"))
timeout = datetime.timedelta(seconds=60)
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, False, timeout=timeout)
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
dist.init_process_group("gloo", store=store, rank=1, world_size=2, timeout=timeout)
message = torch.frombuffer(bytearray(pickle.dumps(Planted())), dtype=torch.uint8)
try:
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
    dist.all_gather(lengths, torch.tensor([len(message)]))
    padded = torch.zeros(int(max(lengths)), dtype=torch.uint8)
    padded[:len(message)] = message
    dist.all_gather([torch.empty_like(padded) for _ in range(2)], padded)
    dist.barrier()
except RuntimeError:
    pass
"""


@pytest.mark.lab
def test_an_impostors_pickle_is_not_executed(tmp_path: Path, small_history: Path) -> None:
    canary, environs = tmp_path / "canary", by_hand(free_port())
    impostor = [sys.executable, "-c", IMPOSTOR, str(canary)]
    pair = [
        subprocess.Popen(command, env={**launcher_environment(), **environ}, stdin=subprocess.DEVNULL,
                         stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for command, environ in zip([training(tmp_path / "run", small_history), impostor], environs, strict=True)
    ]  # fmt: skip
    try:
        _, stderr = pair[0].communicate(timeout=TIMEOUT_S)
    finally:
        for process in pair:
            process.kill()
            process.communicate()
    assert not canary.exists(), "the impostor's code ran"
    assert pair[0].returncode == 3, stderr
    (line,) = [line for line in stderr.splitlines() if line.startswith("mpitrain: error")]
    assert "received data that is not a message of this version of mpitrain" in line
    assert "Traceback" not in stderr


def test_a_store_takes_nothing_without_the_secret() -> None:
    store = dist.HashStore()
    sealed, stranger = SealedStore(store, b"secret"), SealedStore(store, b"guess")
    sealed.set("a", "1")
    sealed.set("b", b"\0\xff")
    assert (sealed.get("a"), sealed.multi_get(["b", "a"])) == (b"1", [b"\0\xff", b"1"])
    stranger.set("a", "2")
    store.set("b", "plain")
    store.set("c", store.get("a"))
    for key in ("a", "b", "c"):
        with pytest.raises(LaunchError, match="without this launch's secret"):
            sealed.get(key)
    sealed.set("a", "1")
    store.set("d", store.get("a"))  # another key's value
    with pytest.raises(LaunchError, match="without this launch's secret"):
        sealed.get("d")


@pytest.mark.parametrize(("host", "is_local"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("n1", False)])
def test_loopback_by_name(host: str, is_local: bool) -> None:
    assert is_loopback(host) is is_local
    assert address_to_meet(host) == host


@pytest.mark.parametrize(("secrets", "code"), [(("same", "same"), 0), (("one", "other"), 3)])
def test_ranks_meet_by_the_same_secret_only(
    small_history: Path, tmp_path: Path, secrets: tuple[str, str], code: int
) -> None:
    command = [*training(tmp_path / "run", small_history)[:-2], "training.epochs=1"]
    pair = [
        subprocess.Popen(command, env={**launcher_environment(), **environ, "MPITRAIN_SECRET": secret},
                         stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for environ, secret in zip(by_hand(free_port()), secrets, strict=True)
    ]  # fmt: skip
    said = "".join(process.communicate(timeout=TIMEOUT_S)[1] for process in pair)
    assert [process.returncode for process in pair] == [code] * 2, said
    assert len([line for line in said.splitlines() if line.startswith("mpitrain: error")]) == (code > 0), said


def test_a_server_of_somebody_else_at_the_port_is_named_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"cannot listen at 127.0.0.1:{port} \(Address already in use\)"):
            open_store_at(("127.0.0.1", port), 0, 2, False, datetime.timedelta(seconds=5))
