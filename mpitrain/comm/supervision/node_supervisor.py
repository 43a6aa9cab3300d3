"""The supervisor of a node's ranks: ends a start that takes too long, and names a rank that has ended without a word.

`python -m mpitrain.comm.supervision.node_supervisor` reads its order from standard input. It never uses MPI; once all
ranks run, it sleeps until one of them ends, and ends itself when the last of them has.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpitrain.comm.supervision.end_signal import END_SIGNAL
from mpitrain.comm.supervision.node_watch import SAID, SPOKEN, claim_in, read_notes
from mpitrain.comm.supervision.shared_memory import remove_shared_memory, shared_memory_of
from mpitrain.comm.supervision.start_report import (
    AGREEING,
    MPI_INIT,
    Start,
    describe_end,
    describe_failed,
    describe_lost,
    describe_waiting,
)
from mpitrain.comm.supervision.status_folder import has_ended, make_private_folder, write_note

_TICK_S, _LONG_TICK_S = 0.2, 1.0
_SAY_WAITING_S = 10.0
_SHARE_S = 5.0
_IMPORT_LIMITS = 5  # where nobody waits yet, a cold file system may take its time
_ROOT_FIRST_S = 1.5
_FAILING_TOGETHER_S = 6.0
_GRACE_S = {"starting": 1.0, "running": 3.0, "failed": 5.0}
_KILL_S = 1.0
_FORWARD_S = 0.1  # a rank's abort may overtake what the launcher has not yet read
# A launcher sees the connections of a crashed rank close, and ends the others, before the system has ended that one.
_SAME_MOMENT_S = 0.3
_LATE_S = 10.0
_MOST_DESCRIPTORS = 1 << 16


class NodeSupervisor:
    """Watches the processes of one node's ranks."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._folder, self._shared = Path(order["folder"]), Path(order["shared"])
        self._limit_s: float = order["limit_s"]
        self._notes: dict[int, dict[str, Any]] = {}
        self._processes: dict[int, _Process] = {}  # of the ranks that are alive
        self._seen: dict[int, int] = {}
        self._shared_memory: dict[int, set[str]] = {}
        self._waited_s = self._imported_s = 0.0
        self._refused_s = 0.0
        self._is_over = False
        self._late_until_s: float | None = None

    def watch(self) -> None:
        """Return when the last rank has ended."""
        last_s = time.monotonic()
        while True:
            self._look()
            if not self._processes and not self._stay_for_late_ranks():
                break
            ended = self._wait(_TICK_S if self._is_over or self._is_starting() else _LONG_TICK_S)
            now_s = time.monotonic()
            # By ticks, not by the clock: a job that its scheduler suspended has not waited.
            self._keep_time(min(now_s - last_s, 2 * _TICK_S))
            last_s = now_s
            self._judge(ended)
            if self._is_over:  # a rank that comes only now would wait in vain
                self._end_others(_KILL_S)
        remove_shared_memory(set().union(*self._shared_memory.values()))
        shutil.rmtree(self._folder, ignore_errors=True)
        self._unshare()

    def _look(self) -> None:
        """Read what the ranks tell, and find their processes."""
        self._notes = {**self._notes, **read_notes(self._folder)}
        for rank, note in self._notes.items():
            if self._seen.get(rank) != note["pid"]:
                self._seen[rank] = note["pid"]
                if rank in self._processes:  # its fork has begun in its place
                    self._processes[rank].close()
                # One that is gone already has ended for `_wait`, too.
                self._processes[rank] = _Process(note["pid"], note["born"])
        for rank in self._processes:
            if rank not in self._shared_memory and self._has_met(rank):
                self._shared_memory[rank] = shared_memory_of(self._seen[rank])

    def _stay_for_late_ranks(self) -> bool:
        """Stay silent while ranks are still to come to a failed start, so that they neither repeat it nor wait.

        False where none can come any more, or none has come in time.
        """
        is_over = self._is_over or any(note["state"] in ("refused", "failed") for note in self._notes.values())
        launcher = self._order.get("launcher")
        if not (is_over and launcher and self._order["is_one_node"] and len(self._notes) < self._order["world_size"]):
            return False
        if self._late_until_s is None:
            self._late_until_s = time.monotonic() + _LATE_S
            # The launcher may wait until nobody can write to it any more.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stderr.fileno())
            os.close(null)
        self._is_over = True
        return time.monotonic() < self._late_until_s and not has_ended(*launcher)

    def _is_starting(self) -> bool:
        return any(self._notes[rank]["state"] != "running" for rank in self._processes)

    def _wait(self, limit_s: float) -> list[int]:
        """Wait for ends of ranks; return those that have ended."""
        _sleep_until_an_end(list(self._processes.values()), limit_s)
        ended = [rank for rank, process in self._processes.items() if process.has_ended()]
        if ended:
            self._notes.update(read_notes(self._folder))
        for rank in ended:
            self._processes.pop(rank).close()
        return ended

    def _keep_time(self, tick_s: float) -> None:
        starting = [note for note in self._notes.values() if note["state"] == "starting"]
        if self._is_over or not starting:
            self._waited_s = self._imported_s = 0.0
            return
        if any(note["stage"] >= MPI_INIT for note in starting):
            before_s, self._waited_s = self._waited_s, self._waited_s + tick_s
            if before_s < _SHARE_S / 2 <= self._waited_s:
                threading.Thread(target=self._read_setting, daemon=True).start()
            if self._waited_s >= min(_SHARE_S, self._limit_s / 2) and not self._order["is_one_node"]:
                self._share()
            if before_s < _SAY_WAITING_S <= self._waited_s < self._limit_s:
                self._say_waiting()
        else:
            self._imported_s += tick_s
        if self._waited_s >= self._limit_s or self._imported_s >= _IMPORT_LIMITS * self._limit_s:
            self._end_start()

    def _judge(self, ended: Sequence[int]) -> None:
        """Act on ranks that have ended without a word, and on ranks that cannot start."""
        if self._is_over:
            return
        lost = self._without_a_word(ended)
        refused = [note for note in self._notes.values() if note["state"] == "refused"]
        failed = [note for note in self._notes.values() if note["state"] == "failed"]
        if lost and not refused and not failed:
            state = self._notes[lost[0]]["state"]
            if self._is_first_to_speak():
                lost += self._without_a_word(self._ended_within(_SAME_MOMENT_S))
                text = f"mpitrain: error: {describe_lost(self._notes, sorted(lost))}"
                self._speak(text, is_running=state == "running")
            self._end_others(_GRACE_S[state])
        elif refused and not (self._folder / SPOKEN).exists():
            self._refused_s += _TICK_S
            if self._refused_s >= self._time_for_root():
                self._say_once(f"mpitrain: error: {describe_failed(refused[0])}")
                self._end_others(_GRACE_S["starting"])
        elif refused or failed:
            # Ranks that have met hear of it from each other, one after the other, and leave with its exit code.
            have_met = all(self._has_met(rank) for rank in self._processes)
            self._end_others(_GRACE_S["failed" if have_met else "starting"])

    def _without_a_word(self, ended: Sequence[int]) -> list[int]:
        return [rank for rank in ended if self._notes[rank]["state"] in ("starting", "running")]

    def _ended_within(self, seconds: float) -> list[int]:
        deadline_s, ended = time.monotonic() + seconds, list[int]()
        while self._processes and (left_s := deadline_s - time.monotonic()) > 0:
            ended += self._wait(left_s)
        return ended

    def _has_met(self, rank: int) -> bool:
        note = self._notes[rank]
        return bool(note["state"] != "starting" or note["stage"] >= AGREEING)

    def _time_for_root(self) -> float:
        # Most launches fail alike on all ranks: then rank 0 is on its way to say so.
        root = self._notes.get(0, {"state": "starting", "stage": 0})
        is_coming = root["state"] == "refused" or (root["state"] == "starting" and root["stage"] < MPI_INIT)
        return _FAILING_TOGETHER_S if is_coming else _TICK_S

    def _start(self) -> Start:
        shared = self._read_shared()
        return Start(self._order["world_size"], self._order["is_one_node"], {**shared, **self._notes})

    def _say_waiting(self) -> None:
        if self._claim("waiting"):
            _say(f"note: {describe_waiting(self._start(), self._waited_s, self._limit_s)}")

    def _end_start(self) -> None:
        if not self._order["is_one_node"] and 0 not in self._notes:
            time.sleep(_ROOT_FIRST_S)
        self._say_once(f"mpitrain: error: {describe_end(self._start(), self._limit_s)}")
        self._end_others(0.0)

    def _say_once(self, text: str) -> None:
        if self._is_first_to_speak():
            self._speak(text)

    def _is_first_to_speak(self) -> bool:
        """Tell whether nobody has spoken yet, of this node's ranks or of another's that share a folder with them."""
        self._is_over = True
        return self._claim(SPOKEN)

    def _speak(self, text: str, is_running: bool = False) -> None:
        """Say it, unless another node has written of a failure into the same run folder."""
        failures = next((note["failures"] for note in self._notes.values() if "failures" in note), None)
        if is_running and failures is not None:
            try:
                with Path(failures).open("x") as file:
                    file.write(text + "\n")
            except FileExistsError:
                return
            except OSError:
                pass
        _say(text)
        time.sleep(_FORWARD_S)
        with contextlib.suppress(OSError):
            (self._folder / SAID).touch()

    def _claim(self, name: str) -> bool:
        """Tell whether nobody on this node, and on several nodes in the shared folder, has claimed `name`."""
        return claim_in([self._folder, *([self._shared] if self._shared.is_dir() else [])], name)

    def _end_others(self, grace_s: float) -> None:
        """End the ranks that are left: by an exit code, and those that are stopped by SIGKILL."""
        self._is_over = True
        for number, wait_s in ((None, grace_s), (END_SIGNAL, _KILL_S), (signal.SIGKILL, _KILL_S)):
            if number is not None:
                for process in self._processes.values():
                    process.send(number)
            deadline_s = time.monotonic() + wait_s
            while self._processes and time.monotonic() < deadline_s:
                self._wait(min(_TICK_S, max(deadline_s - time.monotonic(), 0.0)))

    def _read_setting(self) -> None:
        # Only now: most starts are over before, and the settings' file may be what does not answer.
        from mpitrain.comm.supervision.time_limit import START_TIMEOUT_VARIABLE
        from mpitrain.config import load_run_config
        from mpitrain.errors import MpitrainError

        path = self._order["config_path"]
        if os.environ.get(START_TIMEOUT_VARIABLE):
            return
        with contextlib.suppress(MpitrainError):
            config = load_run_config(Path(path) if path else None, self._order["overrides"]).config
            self._limit_s = config.distributed.start_timeout_s or self._limit_s

    def _share(self) -> None:
        """Let the supervisors of other nodes know of these ranks, in the folder where the job was started."""
        with contextlib.suppress(OSError):
            make_private_folder(self._shared)
            write_note(self._shared, self._share_name(), {str(rank): note for rank, note in self._notes.items()})

    def _read_shared(self) -> dict[int, dict[str, Any]]:
        notes: dict[int, dict[str, Any]] = {}
        for path in self._shared.glob("node-*.json"):
            with contextlib.suppress(OSError, ValueError):
                notes |= {int(rank): note for rank, note in json.loads(path.read_text(encoding="utf-8")).items()}
        return notes

    def _unshare(self) -> None:
        with contextlib.suppress(OSError):
            (self._shared / f"{self._share_name()}.json").unlink()
            if not list(self._shared.glob("node-*.json")):
                shutil.rmtree(self._shared, ignore_errors=True)

    def _share_name(self) -> str:
        return f"node-{socket.gethostname()}-{min(self._notes, default=0)}"


class _Process:
    """A process that is not a child of this one: seen to end at once where the system offers it, else asked."""

    def __init__(self, pid: int, born: str) -> None:
        self._pid, self._born = pid, born
        try:
            self.descriptor: int | None = os.pidfd_open(pid)
        except (OSError, AttributeError):  # gone, or Linux before 5.3
            self.descriptor = None

    def has_ended(self) -> bool:
        if self.descriptor is not None and select.select([self.descriptor], [], [], 0)[0]:
            return True
        return has_ended(self._pid, self._born)

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.descriptor is not None:
                signal.pidfd_send_signal(self.descriptor, number)
            elif not self.has_ended():
                os.kill(self._pid, number)

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)


def _sleep_until_an_end(processes: Sequence[_Process], limit_s: float) -> None:
    descriptors = [process.descriptor for process in processes if process.descriptor is not None]
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    poll.poll(1000 * (limit_s if len(descriptors) == len(processes) else min(limit_s, _TICK_S)))


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def main() -> None:
    """Supervise as ordered."""
    # What ends the ranks must not end their supervisor: a terminal's interrupt, a launcher's signals to its group.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    order = json.loads(sys.stdin.read())
    # The launcher takes a rank's open connection to it for a sign of life.
    os.closerange(3, order["lock"])
    os.closerange(order["lock"] + 1, _MOST_DESCRIPTORS)
    NodeSupervisor(order).watch()


if __name__ == "__main__":
    main()
