"""The rank's side of the agent: its note with its position, and the time limit of its collectives."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mpitrain.cluster import finding_package, run_module
from mpitrain.comm.agent import BEAT_S, MEMORY_S, OTHERS_SPEAK_S, SEVERAL_NODES_START_S
from mpitrain.comm.agent.folder import (
    SAID,
    SPOKEN,
    Note,
    claim_in,
    is_private,
    mark_said,
    read_notes,
    read_shared_notes,
    wait_until,
    write_note,
)
from mpitrain.comm.agent.position import CollectiveNotes, position_of
from mpitrain.comm.agent.processes import has_ended, process_born
from mpitrain.comm.agent.shared_memory import shared_memory_of
from mpitrain.comm.agent.words import (
    AGREEING,
    IMPORTING,
    MPI_INIT,
    describe_damage,
    describe_lost,
    describe_stall,
    render_positions,
)
from mpitrain.errors import LaunchError, one_line

_OF_RANKS = re.compile(r"RANK|WORLD_SIZE|PMI|OMPI_|PALS_|SLURM_(PROCID|LOCALID)|MPI_LOCAL|MASTER_")
_FOLLOW_START_S = 1.0
_POLL_S = 0.05

Fail = Callable[[LaunchError, str], NoReturn]


@dataclass(frozen=True)
class CollectiveLimit:
    """Time limit of one collective of `num_ranks` ranks, and the callback that aborts the job when it is exceeded.

    `group` has the fields of the note that identify the group of ranks: `group`, `node`, `num_of_node`. `fail` is
    called with the error and its details, from a thread other than the main one.
    """

    limit_s: float
    num_ranks: int
    group: Mapping[str, int]
    fail: Fail


class NodeWatch:
    """Connection of this rank to its node's agent, through its note. Without a folder all methods do nothing."""

    def __init__(self, folder: Path | None = None, rank: int = 0, order: Mapping[str, Any] | None = None) -> None:
        self._folder, self.rank, self._order = folder, rank, dict(order or {})
        self._note: Note = {"pid": os.getpid(), "born": process_born(os.getpid()), "rank": rank}
        self._note |= {"host": socket.gethostname(), "state": "starting", "stage": IMPORTING, "waits": False}
        self._stopped, self._thread = threading.Event(), threading.Thread()
        self._lock = threading.Lock()
        self.problem = ""
        """Why no agent monitors this rank although there are others; empty if there is no problem."""

    @property
    def is_active(self) -> bool:
        """Whether a launcher started this process together with others, so that it has a folder for its note."""
        return self._folder is not None

    @property
    def limit_s(self) -> float:
        """The time limit of the start in seconds."""
        return float(self._order.get("limit_s", SEVERAL_NODES_START_S))

    def enter(self, stage: int, where: str = "") -> None:
        """Record a stage of the start; `where` is the rendezvous address of the ranks. Not collective."""
        # Listed in the note so that the agent can remove these files even if all ranks end before it looks at them.
        memory = sorted(shared_memory_of(os.getpid())) if stage == AGREEING else []
        self.tell(state="starting", stage=stage, waits=MPI_INIT <= stage < AGREEING, where=where, memory=memory)

    def check(self, step: int, title: str, limit_s: float, *, leaves: bool = False) -> None:
        """Record a step of the doctor and its time limit `limit_s`; with `leaves`, the end. Not collective."""
        self.tell(state="left" if leaves else "checking", step=step, title=title, limit_s=limit_s)

    def note_file(self, path: Path | None) -> bool:
        """Record the data file that this rank opens (None: no file), in case the library that reads it crashes.

        Returns whether an agent will report the file in that case.
        """
        self.tell(file="" if path is None else one_line(str(path)))
        return self.is_active

    def follow(self, notes: CollectiveNotes, limit: CollectiveLimit | None = None) -> None:
        """Write the main thread's position to the note until `unfollow`; abort if a collective exceeds `limit`."""
        self.unfollow()
        if self._folder is not None:
            self._stopped = threading.Event()
            arguments = (self._stopped, notes, limit)
            self._thread = threading.Thread(target=self._keep_telling, args=arguments, daemon=True)
            self._thread.start()

    def unfollow(self) -> None:
        """Stop the thread of `follow`."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=1.0)

    def _keep_telling(self, stopped: threading.Event, notes: CollectiveNotes, limit: CollectiveLimit | None) -> None:
        beat_s = _FOLLOW_START_S if limit is None else min(limit.limit_s / 10, BEAT_S)
        seen: object = None
        waited_s, last_s = 0.0, time.monotonic()
        while True:
            position, now_s = position_of(notes), time.monotonic()
            now = position["count"], position["step"], position["meetings"]
            # Count at most two intervals per iteration: the time for which a job is suspended is no waiting time.
            waited_s = waited_s + min(now_s - last_s, 2 * beat_s) if position["waits"] and now == seen else 0.0
            seen, last_s = now, now_s
            self.tell(**position, **(limit.group if limit else {}), beat_s=beat_s, waited_s=waited_s)
            if limit is not None:
                self._judge(limit, waited_s)
            if stopped.wait(beat_s):
                return

    def _judge(self, limit: CollectiveLimit, waited_s: float) -> None:
        if waited_s < min(limit.limit_s, MEMORY_S):
            return
        notes = {rank: note for rank, note in self.notes().items() if note.get("group") == limit.group["group"]}
        damage = describe_damage(self.rank, notes) if waited_s >= MEMORY_S else ""
        if damage or waited_s >= limit.limit_s:
            message = damage or describe_stall(self.rank, notes, limit.num_ranks)
            limit.fail(LaunchError(message), render_positions(notes))

    def run(self) -> None:
        """Record that the start is over: from now on collectives have their own time limits. Not collective."""
        self.tell(state="running", waits=False)

    def leave(self) -> None:
        """Record that this rank ends, or continues, without the others."""
        self.unfollow()
        self.tell(state="left", waits=False)

    def refuse(self, text: str, exit_code: int) -> None:
        """Record why this rank cannot start: the agent prints the reason, unless rank 0 does."""
        self.unfollow()
        self.tell(state="refused", waits=False, failure=text, exit_code=exit_code)

    def fail(self, exit_code: int) -> None:
        """Record that this rank ends with an error that it prints itself."""
        self.unfollow()
        # Until the start is complete only this process knows which shared-memory files it would leave behind.
        memory = sorted(shared_memory_of(os.getpid()))
        self.tell(state="failed", waits=False, exit_code=exit_code, memory=memory)

    def find_cause(self, limit_s: float) -> tuple[str, int] | None:
        """Return the error and exit code of another rank of this node that failed; None if `limit_s` passes.

        Used by a rank that has lost its connections. The text is empty if the other rank prints its own error.
        """
        deadline_s = time.monotonic() + limit_s
        while True:
            notes = {} if self._folder is None else read_notes(self._folder)
            notes.pop(self.rank, None)
            failed = [note for note in notes.values() if note["state"] in ("failed", "refused")]
            if failed:
                return "", int(failed[0]["exit_code"])
            gone = [rank for rank, note in notes.items() if is_lost(note)]
            if gone:
                return describe_lost(notes, gone), LaunchError.exit_code
            if not notes or time.monotonic() > deadline_s:
                return None
            time.sleep(_POLL_S)

    def notes(self) -> dict[int, Note]:
        """Return the notes of this node's ranks, and those of other nodes' ranks if they are shared."""
        if self._folder is None:
            return {}
        return {**read_shared_notes(Path(self._order["shared"])), **read_notes(self._folder)}

    def claim(self) -> bool:
        """Claim the right to print the error; return whether this rank is the first to do so."""
        return self._folder is None or claim_in(self._folders(), SPOKEN)

    def mark_said(self) -> None:
        """See `folder.mark_said`."""
        mark_said(self._folders())

    def wait_until_said(self, limit_s: float) -> bool:
        """Wait until the launcher has had time to read the first error; return False if `limit_s` passes."""
        return wait_until(lambda: self._is_there(SAID), limit_s)

    def wait_until_spoken(self, limit_s: float = OTHERS_SPEAK_S) -> bool:
        """Wait until a process has printed an error; return False if `limit_s` passes or there is no agent."""
        return self.is_active and wait_until(lambda: self._is_there(SPOKEN), limit_s)

    def _folders(self) -> list[Path]:
        folders = [self._folder, Path(self._order.get("shared", ""))] if self._folder is not None else []
        return [folder for folder in folders if folder is not None and is_private(folder)]

    def _is_there(self, name: str) -> bool:
        """Return whether the file `name` exists, or the folder has been removed, which happens last."""
        own = self._folder
        return own is not None and (not own.exists() or any((folder / name).exists() for folder in self._folders()))

    def tell(self, **fields: Any) -> None:
        """Set fields of the note (JSON types), which the agent and other ranks read. Not collective."""
        if self._folder is None:
            return
        with self._lock:
            self._note |= fields
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                write_note(self._folder, f"rank-{self.rank:06d}", {**self._note, "told_s": time.monotonic()})
                # If this rank ends, an agent must end the start on all ranks: start one if none runs.
                if self._note["state"] in ("starting", "checking"):
                    self._start_agent()
            except OSError as error:
                self.problem = self.problem or str(error)

    def _start_agent(self) -> None:
        assert self._folder is not None
        # List the files of an earlier launch before taking the lock: once it is taken, other ranks may create files of
        # these names for this launch, which must not be removed.
        left_over = [path for path in (self._folder / name for name in (SPOKEN, SAID, "waiting")) if path.exists()]
        lock = os.open(self._folder / "agent", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if "is_first" not in self._order:
                _remove_left_over(self._folder, self.rank, left_over)
            _spawn({**self._order, "folder": str(self._folder), "lock": lock}, lock)
        except BlockingIOError:  # an agent runs already and holds the lock
            pass
        finally:
            self._order["is_first"] = False
            os.close(lock)


def is_lost(note: Note) -> bool:
    """Return whether a rank's process has exited without an error message."""
    return note["state"] in ("starting", "running", "checking") and has_ended(note["pid"], note["born"])


def _remove_left_over(folder: Path, own_rank: int, left_over: Sequence[Path]) -> None:
    """Remove the files of an earlier launch with the same folder name that was killed together with its agent."""
    ended = [rank for rank, note in read_notes(folder).items() if has_ended(note["pid"], note["born"])]
    for path in (*left_over, *(folder / f"rank-{rank:06d}.json" for rank in ended if rank != own_rank)):
        path.unlink(missing_ok=True)


def _spawn(order: Mapping[str, Any], lock: int) -> None:
    # Without the launcher's variables, since the agent is no rank; with the lock's descriptor, held until it ends.
    environ = {name: value for name, value in finding_package(os.environ).items() if not _OF_RANKS.search(name)}
    read_end, write_end = os.pipe()
    null = os.open(os.devnull, os.O_WRONLY)
    os.set_inheritable(lock, True)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, read_end, 0)]
        if "reporter" not in order:  # a reporter prints on standard output, otherwise the agent needs none
            actions.append((os.POSIX_SPAWN_DUP2, null, 1))
        command = run_module("mpitrain.comm.agent")
        # In its own session: launchers kill the process groups of the ranks.
        os.posix_spawn(sys.executable, command, environ, file_actions=actions, setsid=True)
        os.write(write_end, json.dumps(dict(order)).encode())
    finally:
        for descriptor in (read_end, write_end, null):
            os.close(descriptor)
