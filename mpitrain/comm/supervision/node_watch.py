"""A rank's word to its node's supervisor: where it is in the start, that it runs, that it leaves, why it fails.

The ranks of a node have one supervisor, a process that the first of them starts before it loads torch or MPI: a thread
of a rank could not speak while an import or MPI_Init holds Python's lock, nor after the rank was killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from mpitrain.cluster.place import read_place, say_once_before_ranks_meet
from mpitrain.comm.supervision.end_signal import let_end_signal_exit
from mpitrain.comm.supervision.start_report import AGREEING, IMPORTING, MPI_INIT, describe_lost
from mpitrain.comm.supervision.status_folder import (
    folder_name,
    has_ended,
    launch_identity,
    launcher_pid,
    make_private_folder,
    process_born,
    wait_until,
    write_note,
)
from mpitrain.comm.supervision.time_limit import start_limit_s
from mpitrain.errors import LaunchError, MpitrainError

# Who was first to speak of a failure has claimed the one, and leaves the other when its words are with the launcher.
SPOKEN, SAID = "spoken", "said"

_SUPERVISOR = "mpitrain.comm.supervision.node_supervisor"
_OF_RANKS = re.compile(r"RANK|WORLD_SIZE|PMI|OMPI_|PALS_|SLURM_(PROCID|LOCALID)|MPI_LOCAL|MASTER_")
_FOLLOW_S = 1.0
_POLL_S = 0.05
_OTHERS_SPEAK_WITHIN_S = 8.0


class NodeWatch:
    """What one rank tells its node's supervisor. Without a launch of several ranks all methods do nothing."""

    def __init__(self, folder: Path | None = None, rank: int = 0, order: Mapping[str, Any] | None = None) -> None:
        self._folder, self.rank, self._order = folder, rank, dict(order or {})
        self._note: dict[str, Any] = {"pid": os.getpid(), "born": process_born(os.getpid()), "rank": rank}
        self._note |= {"host": socket.gethostname(), "state": "starting", "waits": False}
        self._following = threading.Event()

    @property
    def is_active(self) -> bool:
        """False for a process that no launcher started together with others."""
        return self._folder is not None

    @property
    def folder(self) -> Path:
        """Where the node's ranks leave word. Raises ValueError for a process that no launcher started with others."""
        if self._folder is None:
            raise ValueError("no launch of several ranks")
        return self._folder

    @property
    def limit_s(self) -> float:
        """How long the ranks' start may take."""
        return float(self._order.get("limit_s", start_limit_s(os.environ, is_one_node=False)))

    def enter(self, stage: int, where: str = "") -> None:
        """Arrive at a stage of the start; `where` is the address at which the ranks meet. Not collective."""
        self._post(state="starting", stage=stage, waits=MPI_INIT <= stage < AGREEING, where=where)

    def follow(self, position: Callable[[], Mapping[str, Any]]) -> None:
        """Tell once a second what `position` gives, for a stage in which ranks both work and wait, until `run`."""
        if self._folder is None:
            return
        self._following.clear()

        def keep_telling() -> None:
            while not self._following.wait(_FOLLOW_S):
                self._post(**position())

        threading.Thread(target=keep_telling, name="mpitrain start", daemon=True).start()

    def run(self) -> None:
        """Tell that the start is over: from now on the watchdog keeps the time. Not collective."""
        self._following.set()
        self._post(state="running", waits=False)

    def tell_folder(self, folder: Path) -> None:
        """Tell where the failures of all nodes are written, so that one alone is printed."""
        self._post(failures=str(folder / "failure.txt"))

    def leave(self) -> None:
        """Tell that this rank ends, or goes on, without the others."""
        self._following.set()
        self._post(state="left", waits=False)

    def refuse(self, text: str, exit_code: int) -> None:
        """Tell why this rank cannot start: the supervisor says so, unless rank 0 does."""
        self._following.set()
        self._post(state="refused", waits=False, failure=text, exit_code=exit_code)

    def fail(self, exit_code: int) -> None:
        """Tell that this rank ends with an error that it says itself."""
        self._following.set()
        self._post(state="failed", waits=False, exit_code=exit_code)

    def find_cause(self, limit_s: float) -> tuple[str, int] | None:
        """Return what another rank of this node failed of, and the exit code, if that comes to light within the limit.

        For a rank whose connections broke: the text is empty where the other rank says it itself.
        """
        deadline_s = time.monotonic() + limit_s
        while True:
            notes = self.others()
            failed = [note for note in notes.values() if note["state"] in ("failed", "refused")]
            if failed:
                return "", int(failed[0]["exit_code"])
            gone = [rank for rank, note in notes.items() if is_lost(note)]
            if gone:
                return describe_lost(notes, gone), LaunchError.exit_code
            if not notes or time.monotonic() > deadline_s:
                return None
            time.sleep(_POLL_S)

    def claim(self) -> bool:
        """Tell whether this rank is the first of its node to speak of a failure."""
        return self._folder is None or claim_in([self._folder], SPOKEN)

    def mark_said(self) -> None:
        """Tell that the words of the first to speak are with the launcher, which may now end all ranks."""
        if self._folder is not None:
            with contextlib.suppress(OSError):
                (self._folder / SAID).touch()

    def wait_until_said(self, limit_s: float) -> None:
        """Wait until the first to speak has been heard, or may have been."""
        wait_until(lambda: self._was_left(SAID), limit_s)

    def wait_until_spoken(self, limit_s: float = _OTHERS_SPEAK_WITHIN_S) -> bool:
        """Wait until somebody has spoken of a failure; False where nobody did, or nobody is watched."""
        return self.is_active and wait_until(lambda: self._was_left(SPOKEN), limit_s)

    def _was_left(self, name: str) -> bool:
        """Tell whether a file of the folder is there, or the folder gone, which comes last; never where none is."""
        return self._folder is not None and ((self._folder / name).exists() or not self._folder.exists())

    def others(self) -> dict[int, dict[str, Any]]:
        """Return the notes of the node's other ranks."""
        notes = {} if self._folder is None else read_notes(self._folder)
        return {rank: note for rank, note in notes.items() if rank != self.rank}

    def _post(self, **fields: Any) -> None:
        if self._folder is None:
            return
        self._note |= fields
        # Its end ends the start of all: should nobody supervise any more, this rank sees to it.
        with contextlib.suppress(OSError):
            make_private_folder(self._folder)
            write_note(self._folder, f"rank-{self.rank:06d}", self._note)
            if self._note["state"] == "starting":
                self._start_supervisor()

    def _start_supervisor(self) -> None:
        assert self._folder is not None
        # Seen before the lock is held: a rank that finds it taken may speak at once, and must have been heard.
        left_over = [path for path in (self._folder / name for name in (SPOKEN, SAID, "waiting")) if path.exists()]
        lock = os.open(self._folder / "supervisor", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if "is_first" not in self._order:
                _remove_left_over(self._folder, self.rank, left_over)
            _spawn({**self._order, "folder": str(self._folder), "lock": lock}, lock)
        except OSError:  # another rank's supervisor holds it
            pass
        finally:
            self._order["is_first"] = False
            os.close(lock)


def begin_watch(
    environ: Mapping[str, str] = os.environ, config_path: Path | None = None, overrides: Sequence[str] = ()
) -> NodeWatch:
    """Arrive: let this node's supervisor know of this rank, and start it where this rank is the first.

    Raises LaunchError for a time limit that is none.
    """
    place = read_place(environ)
    is_one_node = place.is_one_node and not _meets_elsewhere(environ)
    limit_s = start_limit_s(environ, is_one_node)
    if place.world_size < 2 or place.problem or not Path("/proc/self/stat").exists():
        return NodeWatch()
    order = {
        "world_size": place.world_size,
        "is_one_node": is_one_node,
        "limit_s": limit_s,
        "shared": str(Path.cwd() / folder_name(environ, "start")),
        "config_path": None if config_path is None else str(config_path),
        "overrides": list(overrides),
        "launcher": _launcher(environ),
    }
    watch = NodeWatch(_folder_of(environ), place.rank, order)
    let_end_signal_exit()
    watch.enter(IMPORTING)
    return watch


@contextmanager
def watching_start(
    environ: Mapping[str, str] = os.environ, config_path: Path | None = None, overrides: Sequence[str] = ()
) -> Iterator[NodeWatch]:
    """Arrive, and let the block load what the ranks need: an error in it is told to the ranks that would wait.

    Such an error ends this process.
    """
    try:
        watch = begin_watch(environ, config_path, overrides)
    except LaunchError as error:
        end_start(NodeWatch(), error, environ)
        raise SystemExit(error.exit_code) from None
    with telling_failures(watch, environ):
        yield watch


@contextmanager
def telling_failures(watch: NodeWatch, environ: Mapping[str, str]) -> Iterator[None]:
    """Let the ranks that would wait know of an error in the block, and end this process; our own errors are raised."""
    try:
        yield
    except MpitrainError:
        raise
    except (ImportError, OSError) as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        end_start(watch, LaunchError(f"{text}; see whether this host's Python is that of the others"), environ)
        sys.stdout.flush()
        os._exit(LaunchError.exit_code)  # not by way of Python's end, where MPI would wait for the others
    except BaseException as error:
        fail_in_start(watch, error)


def fail_in_start(watch: NodeWatch, error: BaseException) -> NoReturn:
    """Say what happened on this rank before the ranks have met, and end it; the supervisor ends the others."""
    watch.fail(MpitrainError.exit_code)
    if watch.claim():
        where = f"rank {watch.rank} on {socket.gethostname()}: " if watch.is_active else ""
        details = "" if isinstance(error, SystemExit | KeyboardInterrupt) else "\n" + traceback.format_exc()
        print(f"mpitrain: error: {where}{type(error).__name__}: {error}{details}", file=sys.stderr)  # noqa: T201
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(MpitrainError.exit_code)


def end_start(watch: NodeWatch, error: MpitrainError, environ: Mapping[str, str]) -> None:
    """Say once why the ranks cannot start: by rank 0 where it fails too, else by the supervisor."""
    watch.refuse(str(error), error.exit_code)
    text = f"mpitrain: error: {error}"
    if not watch.is_active:
        say_once_before_ranks_meet(text, environ)
    elif watch.rank != 0:
        watch.wait_until_spoken()
    elif watch.claim():
        print(text, file=sys.stderr, flush=True)  # noqa: T201


def is_lost(note: Mapping[str, Any]) -> bool:
    """Tell whether a rank's process has ended without a word."""
    return note["state"] in ("starting", "running") and has_ended(note["pid"], note["born"])


def read_notes(folder: Path) -> dict[int, dict[str, Any]]:
    """Return what the ranks of a node have told, by rank."""
    notes = {}
    for path in folder.glob("rank-*.json"):
        with contextlib.suppress(OSError, ValueError):
            notes[int(path.stem.removeprefix("rank-"))] = json.loads(path.read_text(encoding="utf-8"))
    return dict(sorted(notes.items()))


def claim_in(folders: Iterable[Path], name: str) -> bool:
    """Tell whether nobody has claimed `name` in these folders; True where that cannot be told."""
    try:
        for folder in folders:
            (folder / name).open("x").close()
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def _launcher(environ: Mapping[str, str]) -> list[Any] | None:
    """Return the launcher's process where it has this one launch only; a shell may start the same ranks again."""
    if launch_identity(environ).startswith("torch"):
        return None
    pid = launcher_pid(environ)
    return [pid, process_born(pid)]


def _folder_of(environ: Mapping[str, str]) -> Path:
    import tempfile

    return Path(tempfile.gettempdir()) / folder_name(environ, "start")


def _meets_elsewhere(environ: Mapping[str, str]) -> bool:
    """Tell whether ranks that were started by hand may be on several hosts: nothing else says how many there are."""
    if environ.get("LOCAL_WORLD_SIZE") or not environ.get("RANK"):
        return False
    return not re.match(r"127\.|localhost$|::1$|$", environ.get("MASTER_ADDR", ""))


def _remove_left_over(folder: Path, own_rank: int, left_over: Sequence[Path]) -> None:
    """Remove what a launch of the same name left, which was killed with its supervisor."""
    ended = [rank for rank, note in read_notes(folder).items() if has_ended(note["pid"], note["born"])]
    for path in (*left_over, *(folder / f"rank-{rank:06d}.json" for rank in ended if rank != own_rank)):
        path.unlink(missing_ok=True)


def _spawn(order: Mapping[str, Any], lock: int) -> None:
    # Without the launcher's variables: the supervisor is no rank. With the lock, which lasts as long as it does.
    environ = {name: value for name, value in os.environ.items() if not _OF_RANKS.search(name)}
    read_end, write_end = os.pipe()
    null = os.open(os.devnull, os.O_WRONLY)
    os.set_inheritable(lock, True)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, read_end, 0), (os.POSIX_SPAWN_DUP2, null, 1)]
        # In a session of its own: launchers kill the ranks' process groups.
        os.posix_spawn(sys.executable, [sys.executable, "-m", _SUPERVISOR], environ, file_actions=actions, setsid=True)
        os.write(write_end, json.dumps(dict(order)).encode())
    finally:
        for descriptor in (read_end, write_end, null):
            os.close(descriptor)
