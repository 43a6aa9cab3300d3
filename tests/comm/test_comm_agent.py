"""The node's agent: whose folder it uses, how many processes there are, and what a lone rank leaves."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, find_mpirun, launch, launcher_environment

from mpitrain.comm.agent import SAME_MOMENT_S
from mpitrain.comm.agent.agent import NodeAgent
from mpitrain.comm.agent.folder import is_private, open_private_folder, read_notes, write_note
from mpitrain.comm.agent.processes import RankProcess, process_born

NOBODY = 65534
NAME = ".mpitrain-start-0-abc"
LAUNCHERS = ("mpirun", "mpiexec", "hydra_pmi_proxy", "prterun", "prted")


def as_another_user(action: Callable[[], None]) -> None:
    """Run `action` in a process of another user. Skips the test where this user may not become another one."""
    if os.getuid() != 0:
        pytest.skip("needs root to become another user")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setuid(NOBODY)
            action()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """A temporary folder for all users, as /tmp is."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)
    base = tmp_path / "tmp"
    base.mkdir()
    base.chmod(0o1777)
    return base


def hold(folder: Path) -> None:
    """Make a folder that everybody can write to, with a note in it."""
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    (folder / "rank-000001.json").write_text(json.dumps({"rank": 1, "state": "failed", "told_s": 0.0}))


def test_a_folder_of_another_user_is_passed_over_by_all_ranks_alike(temporary: Path) -> None:
    as_another_user(lambda: hold(temporary / NAME))
    own = open_private_folder(temporary, NAME)
    assert (own.name, own.stat().st_uid, own.stat().st_mode & 0o777) == (f"{NAME}-2", os.getuid(), 0o700)
    assert not is_private(temporary / NAME)
    assert read_notes(temporary / NAME) == {}
    with pytest.raises(PermissionError):
        write_note(temporary / NAME, "rank-000000", {})
    # Should the other user remove it, ranks that come later still find the same one.
    (temporary / NAME / "rank-000001.json").unlink()
    (temporary / NAME).rmdir()
    assert open_private_folder(temporary, NAME) == own


def test_a_link_and_an_open_folder_are_passed_over(temporary: Path) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (temporary / NAME).symlink_to(elsewhere)
    (temporary / f"{NAME}-2").mkdir(mode=0o700)
    (temporary / f"{NAME}-2").chmod(0o750)
    assert open_private_folder(temporary, NAME).name == f"{NAME}-3"


def test_a_note_of_another_user_is_not_believed(temporary: Path) -> None:
    folder = temporary / NAME
    folder.mkdir(mode=0o700)
    for rank in (0, 1):
        write_note(folder, f"rank-{rank:06d}", {"rank": rank, "told_s": 0.0})
    assert list(read_notes(folder)) == [0, 1]
    if os.getuid() == 0:
        os.chown(folder / "rank-000001.json", NOBODY, NOBODY)
        assert list(read_notes(folder)) == [0]


RUNNING = """
import sys, time
from pathlib import Path
from mpitrain.train.trainer import Trainer
from mpitrain.cli.main import main

def fit(self):
    self._ranks.barrier()
    Path(sys.argv[1], str(self._ranks.rank)).touch()
    while not Path(sys.argv[1], "go").exists():
        time.sleep(0.05)

Trainer.fit = fit
sys.exit(main(sys.argv[2:]))
"""


def processes_with(mark: str) -> list[list[str]]:
    """The commands of all processes that have `mark` in their environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (path / "environ").read_bytes():
                found.append((path / "cmdline").read_text().split("\0"))
        except OSError:
            continue
    return [command for command in found if command != [""]]


def kinds_of(commands: list[list[str]]) -> Counter[str]:
    """Count the ranks, the agents, the launcher's processes, and others by their command."""
    return Counter(
        "launcher" if Path(words[0]).name in LAUNCHERS
        else "rank" if words[1].endswith("running.py")
        else "agent" if "mpitrain.comm.agent" in words
        else " ".join(words)
        for words in commands
    )  # fmt: skip


def test_a_node_has_one_process_besides_its_ranks(small_history: Path, tmp_path: Path) -> None:
    (tmp_path / "running.py").write_text(RUNNING)
    here, mark = tmp_path / "here", f"mark-{os.getpid()}-{time.monotonic_ns()}"
    here.mkdir()
    words = [tmp_path / "running.py", here, "train", f"output.model_dir={tmp_path / 'run'}",
             f"data.data_path={small_history}"]  # fmt: skip
    job = subprocess.Popen(
        [find_mpirun(), "-np", "4", sys.executable, *map(str, words)], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**launcher_environment(), "MARK_OF_TEST": mark},
    )  # fmt: skip
    try:
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(list(here.iterdir())) < 4:
            assert time.monotonic() < deadline_s
            assert job.poll() is None
            time.sleep(0.1)
        # Those that help at a start may take a while to end.
        deadline_s = time.monotonic() + TIMEOUT_S
        while (found := kinds_of(processes_with(mark))) != {"rank": 4, "agent": 1, "launcher": found["launcher"]}:
            assert time.monotonic() < deadline_s, processes_with(mark)
            time.sleep(0.1)
    finally:
        (here / "go").touch()
        job.wait(TIMEOUT_S)


@pytest.mark.parametrize("num_ranks", [None, 1])
def test_a_lone_rank_that_is_killed_leaves_no_shared_memory(num_ranks: int | None) -> None:
    program = (
        "import os, re, signal\n"
        "from pathlib import Path\n"
        "from mpitrain.comm.start import run_on_all_ranks\n"
        "def body(ranks):\n"
        "    maps = Path('/proc/self/maps').read_text()\n"
        "    print('HOLDS', *set(re.findall(r'/dev/shm/(?:mpich|sm_)\\S+', maps)), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "run_on_all_ranks(body)\n"
    )
    done = launch(["-c", program], num_ranks)
    (held,) = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("HOLDS")]
    assert held
    assert [path for path in held if Path(path).exists()] == []


PTRACE_CONT, PTRACE_SEIZE, PTRACE_O_TRACEEXIT = 7, 0x4206, 0x40


def ptrace(request: int, pid: int, data: int = 0) -> None:
    """Linux's ptrace(2): the thread that seizes a process is the one that lets it go on."""
    arguments = [ctypes.c_long(word) for word in (request, pid, 0, data)]
    if ctypes.CDLL(None, use_errno=True).ptrace(*arguments) == -1:
        pytest.skip(f"ptrace is not allowed here: {os.strerror(ctypes.get_errno())}")


@pytest.mark.lab
def test_a_rank_that_is_long_in_ending_is_named_beside_the_one_that_its_launcher_killed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Rank 1 crashes, its launcher kills rank 0 for it, and the system is done with rank 0 first."""
    folder = tmp_path / "notes"
    folder.mkdir(mode=0o700)
    victim, crashed = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    for rank, process in enumerate((victim, crashed)):
        fields = {"pid": process.pid, "born": process_born(process.pid), "rank": rank, "host": "here"}
        write_note(folder, f"rank-{rank:06d}", {**fields, "state": "running", "told_s": time.monotonic()})
    order = {"folder": str(folder), "shared": str(tmp_path / "shared"), "limit_s": 60.0, "world_size": 2}
    watching = threading.Thread(target=NodeAgent({**order, "is_one_node": True}).watch)
    try:
        ptrace(PTRACE_SEIZE, crashed.pid, PTRACE_O_TRACEEXIT)
        watching.start()
        crashed.send_signal(signal.SIGBUS)
        os.waitpid(crashed.pid, 0)  # it halts at the signal,
        ptrace(PTRACE_CONT, crashed.pid, signal.SIGBUS)
        os.waitpid(crashed.pid, 0)  # and at its exit
        victim.kill()
        victim.wait()
        time.sleep(3 * SAME_MOMENT_S)
        ptrace(PTRACE_CONT, crashed.pid)
        crashed.wait()
    finally:
        for process in (victim, crashed):
            process.kill()
        watching.join(timeout=TIMEOUT_S)
    said = capfd.readouterr().err
    assert (
        f"rank 0 on here (process {victim.pid}), rank 1 on here (process {crashed.pid}) exited without an error message"
        in said
    )


@pytest.mark.lab
def test_ranks_that_end_one_after_the_other_in_one_moment_are_all_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look finds another rank's end; the last one finds none."""
    order = {"folder": str(tmp_path), "shared": str(tmp_path / "shared"), "limit_s": 60.0, "world_size": 4}
    watching = NodeAgent({**order, "is_one_node": True})
    watching._processes = {0: RankProcess(os.getpid(), process_born(os.getpid()))}
    looks = [[1], [], [2, 3]]

    def wait(seconds: float) -> list[int]:
        if looks:
            return looks.pop(0)
        time.sleep(seconds)
        return []

    monkeypatch.setattr(watching, "_wait", wait)
    assert watching._ended_within(SAME_MOMENT_S) == [1, 2, 3]
