"""The rank's side of the agent: its note, with its position, and the time limit of its collectives."""

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
    """How long this rank may wait in one collective of its `num_ranks` ranks, and how the job is ended then.

    `group` has the fields of the note that tell the group from others: `group`, `node`, `num_of_node`. `fail` takes the
    error and its details; it is called from another thread than the main one.
    """

    limit_s: float
    num_ranks: int
    group: Mapping[str, int]
    fail: Fail


class NodeWatch:
    """This rank's note to its node's agent. Without a launch of several ranks all methods do nothing."""

    def __init__(self, folder: Path | None = None, rank: int = 0, order: Mapping[str, Any] | None = None) -> None:
        self._folder, self.rank, self._order = folder, rank, dict(order or {})
        self._note: Note = {"pid": os.getpid(), "born": process_born(os.getpid()), "rank": rank}
        self._note |= {"host": socket.gethostname(), "state": "starting", "stage": IMPORTING, "waits": False}
        self._stopped, self._thread = threading.Event(), threading.Thread()
        self._lock = threading.Lock()
        self.problem = ""
        """Why nobody watches this rank, though there are others; empty where all is well."""

    @property
    def is_active(self) -> bool:
        """Whether a launcher started this process together with others."""
        return self._folder is not None

    @property
    def limit_s(self) -> float:
        """The time limit of the ranks' start in seconds."""
        return float(self._order.get("limit_s", SEVERAL_NODES_START_S))

    def enter(self, stage: int, where: str = "") -> None:
        """Arrive at a stage of the start; `where` is the address at which the ranks meet. Not collective."""
        # The agent removes this memory, also where all ranks end at once before it has looked at them.
        memory = sorted(shared_memory_of(os.getpid())) if stage == AGREEING else []
        self.tell(state="starting", stage=stage, waits=MPI_INIT <= stage < AGREEING, where=where, memory=memory)

    def check(self, step: int, title: str, limit_s: float, *, leaves: bool = False) -> None:
        """Arrive at a step of the doctor, which may take `limit_s`; with `leaves`, at the end. Not collective."""
        self.tell(state="left" if leaves else "checking", step=step, title=title, limit_s=limit_s)

    def note_file(self, path: Path | None) -> bool:
        """Note which data file this rank opens, None for none: a library that crashes on it ends the rank.

        Returns whether an agent knows, which then names the file.
        """
        self.tell(file="" if path is None else one_line(str(path)))
        return self.is_active

    def follow(self, notes: CollectiveNotes, limit: CollectiveLimit | None = None) -> None:
        """Keep the main thread's position in the note until `unfollow`; end the job if a collective exceeds `limit`."""
        self.unfollow()
        if self._folder is not None:
            self._stopped = threading.Event()
            arguments = (self._stopped, notes, limit)
            self._thread = threading.Thread(target=self._keep_telling, args=arguments, daemon=True)
            self._thread.start()

    def unfollow(self) -> None:
        """Stop what `follow` began."""
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
            # By ticks, not by the clock: a job that its scheduler suspended for an hour has not waited.
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
        """Note that the start is over: from now on collectives have time limits. Not collective."""
        self.tell(state="running", waits=False)

    def leave(self) -> None:
        """Note that this rank ends, or continues, without the others."""
        self.unfollow()
        self.tell(state="left", waits=False)

    def refuse(self, text: str, exit_code: int) -> None:
        """Note why this rank cannot start: the agent prints it, unless rank 0 does."""
        self.unfollow()
        self.tell(state="refused", waits=False, failure=text, exit_code=exit_code)

    def fail(self, exit_code: int) -> None:
        """Note that this rank ends with an error that it prints itself."""
        self.unfollow()
        # Before the ranks have met nobody else knows which memory this process leaves.
        memory = sorted(shared_memory_of(os.getpid()))
        self.tell(state="failed", waits=False, exit_code=exit_code, memory=memory)

    def find_cause(self, limit_s: float) -> tuple[str, int] | None:
        """Return why another rank of this node failed, and the exit code, if that is known within the limit.

        For a rank whose connections broke: the text is empty where the other rank prints it itself.
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
        """Return the notes of this node's ranks, and of other nodes' ranks where these are shared."""
        if self._folder is None:
            return {}
        return {**read_shared_notes(Path(self._order["shared"])), **read_notes(self._folder)}

    def claim(self) -> bool:
        """Claim the right to print the error; return whether this rank is the first."""
        return self._folder is None or claim_in(self._folders(), SPOKEN)

    def mark_said(self) -> None:
        """See `folder.mark_said`."""
        mark_said(self._folders())

    def wait_until_said(self, limit_s: float) -> bool:
        """Wait until the launcher has had time to read the first error; False where none came within the limit."""
        return wait_until(lambda: self._is_there(SAID), limit_s)

    def wait_until_spoken(self, limit_s: float = OTHERS_SPEAK_S) -> bool:
        """Wait until somebody has printed an error; False where nobody did, or nobody is watched."""
        return self.is_active and wait_until(lambda: self._is_there(SPOKEN), limit_s)

    def _folders(self) -> list[Path]:
        folders = [self._folder, Path(self._order.get("shared", ""))] if self._folder is not None else []
        return [folder for folder in folders if folder is not None and is_private(folder)]

    def _is_there(self, name: str) -> bool:
        """Return whether the mark is set, or the folder has been removed, which happens last."""
        own = self._folder
        return own is not None and (not own.exists() or any((folder / name).exists() for folder in self._folders()))

    def tell(self, **fields: Any) -> None:
        """Put these fields (of JSON's types) into the note, for whoever has to report. Not collective."""
        if self._folder is None:
            return
        with self._lock:
            self._note |= fields
            try:
                self._folder.mkdir(mode=0o700, exist_ok=True)
                write_note(self._folder, f"rank-{self.rank:06d}", {**self._note, "told_s": time.monotonic()})
                # Its end ends the start of all: should no agent be alive any more, this rank starts one.
                if self._note["state"] in ("starting", "checking"):
                    self._start_agent()
            except OSError as error:
                self.problem = self.problem or str(error)

    def _start_agent(self) -> None:
        assert self._folder is not None
        # Listed before the lock is held: a rank that finds it taken may speak at once, and must have been heard.
        left_over = [path for path in (self._folder / name for name in (SPOKEN, SAID, "waiting")) if path.exists()]
        lock = os.open(self._folder / "agent", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if "is_first" not in self._order:
                _remove_left_over(self._folder, self.rank, left_over)
            _spawn({**self._order, "folder": str(self._folder), "lock": lock}, lock)
        except BlockingIOError:  # another rank's agent holds it
            pass
        finally:
            self._order["is_first"] = False
            os.close(lock)


def is_lost(note: Note) -> bool:
    """Return whether a rank's process has ended without reporting it."""
    return note["state"] in ("starting", "running", "checking") and has_ended(note["pid"], note["born"])


def _remove_left_over(folder: Path, own_rank: int, left_over: Sequence[Path]) -> None:
    """Remove the files of an earlier launch of the same name that was killed with its agent."""
    ended = [rank for rank, note in read_notes(folder).items() if has_ended(note["pid"], note["born"])]
    for path in (*left_over, *(folder / f"rank-{rank:06d}.json" for rank in ended if rank != own_rank)):
        path.unlink(missing_ok=True)


def _spawn(order: Mapping[str, Any], lock: int) -> None:
    # Without the launcher's variables: the agent is no rank. With the lock, which lasts as long as it does.
    environ = {name: value for name, value in finding_package(os.environ).items() if not _OF_RANKS.search(name)}
    read_end, write_end = os.pipe()
    null = os.open(os.devnull, os.O_WRONLY)
    os.set_inheritable(lock, True)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, read_end, 0)]
        if "reporter" not in order:  # which prints its report on standard output
            actions.append((os.POSIX_SPAWN_DUP2, null, 1))
        command = run_module("mpitrain.comm.agent")
        # In a session of its own: launchers kill the ranks' process groups.
        os.posix_spawn(sys.executable, command, environ, file_actions=actions, setsid=True)
        os.write(write_end, json.dumps(dict(order)).encode())
    finally:
        for descriptor in (read_end, write_end, null):
            os.close(descriptor)
