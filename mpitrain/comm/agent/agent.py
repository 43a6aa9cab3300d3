"""The agent: ends a start or check that takes too long, reports ranks that exit without an error, cleans up."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpitrain.comm import agent
from mpitrain.comm.agent import folder, words
from mpitrain.comm.agent.folder import Note
from mpitrain.comm.agent.processes import END_SIGNAL, RankProcess, has_ended, sleep_until_an_end
from mpitrain.comm.agent.shared_memory import remove_shared_memory, shared_memory_of

_MOST_DESCRIPTORS = 1 << 16


class NodeAgent:
    """Monitor of the processes of one node's ranks. `order` has the settings from the first rank of the node."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._order = order
        self._folder, self._shared = Path(order["folder"]), Path(order["shared"])
        self._limit_s: float = order["limit_s"]
        self._notes: dict[int, Note] = {}
        self._processes: dict[int, RankProcess] = {}  # of the ranks that run
        self._seen: dict[int, int] = {}
        self._shared_memory: dict[int, set[str]] = {}
        self._steps: dict[int, tuple[int, float]] = {}  # in a check: the step of each rank, and the seconds in it
        self._waited_s = self._imported_s = self._refused_s = self._unshared_s = 0.0
        self._is_over = False
        self._late_until_s: float | None = None

    def watch(self) -> None:
        """Monitor the ranks until the last one has ended, then remove their files."""
        last_s = time.monotonic()
        while True:
            self._look()
            if not self._processes and not self._stay_for_late_ranks():
                break
            ended = self._wait(agent.TICK_S if self._is_over or not self._are_all_running() else agent.LONG_TICK_S)
            now_s = time.monotonic()
            # Count at most two ticks per iteration: the time for which the scheduler suspends a job is no waiting time.
            self._keep_time(min(now_s - last_s, 2 * agent.TICK_S))
            self._share(now_s - last_s)
            last_s = now_s
            self._judge(ended)
            if self._is_over:  # a rank that arrives only now would wait for ever
                self._end_others(agent.KILL_S)
        noted = (note.get("memory", ()) for note in self._notes.values())
        remove_shared_memory(set().union(*self._shared_memory.values(), *noted))
        shutil.rmtree(self._folder, ignore_errors=True)
        self._unshare()

    def _look(self) -> None:
        """Read the ranks' notes and find their processes."""
        self._notes = {**self._notes, **folder.read_notes(self._folder)}
        for rank, note in self._notes.items():
            if self._seen.get(rank) != note["pid"]:
                self._seen[rank] = note["pid"]
                # `_wait` returns a process that does not exist any more as ended.
                self._processes[rank] = RankProcess(note["pid"], note["born"])
        for rank in self._processes:
            if rank not in self._shared_memory and self._has_met(rank):
                self._find_shared_memory(rank)

    def _find_shared_memory(self, rank: int) -> None:
        self._shared_memory[rank] = self._shared_memory.get(rank, set()) | shared_memory_of(self._seen[rank])

    def _stay_for_late_ranks(self) -> bool:
        """Return whether to stay after a failed start, to end ranks that arrive late without a second message.

        False if no rank can arrive any more, or LATE_S has passed.
        """
        is_over = self._is_over or any(note["state"] in ("refused", "failed") for note in self._notes.values())
        launcher = self._order.get("launcher")
        if not (is_over and launcher and self._order["is_one_node"] and len(self._notes) < self._order["world_size"]):
            return False
        if self._late_until_s is None:
            self._late_until_s = time.monotonic() + agent.LATE_S
            # The launcher may wait until all writers of its pipes have closed them.
            null = os.open(os.devnull, os.O_WRONLY)
            for stream in (sys.stdout, sys.stderr):
                os.dup2(null, stream.fileno())
            os.close(null)
        self._is_over = True
        return time.monotonic() < self._late_until_s and not has_ended(*launcher)

    def _are_all_running(self) -> bool:
        return all(self._notes[rank]["state"] == "running" for rank in self._processes)

    def _wait(self, limit_s: float) -> list[int]:
        """Wait until a rank ends or `limit_s` has passed; return the ranks that have ended."""
        sleep_until_an_end(list(self._processes.values()), limit_s)
        if any(process.has_ended() for process in self._processes.values()):
            self._look()  # a rank that ended too may have written its first note since the last call
        ended = [rank for rank, process in self._processes.items() if process.has_ended()]
        for rank in ended:
            self._processes.pop(rank).close()
        return ended

    # --- time limits -------------------------------------------------------------------------------------------------

    def _keep_time(self, tick_s: float) -> None:
        self._keep_time_of_check(tick_s)
        starting = [note for note in self._notes.values() if note["state"] == "starting"]
        if self._is_over or not starting:
            self._waited_s = self._imported_s = 0.0
            return
        if any(note["stage"] >= words.MPI_INIT for note in starting):
            before_s, self._waited_s = self._waited_s, self._waited_s + tick_s
            if before_s < agent.SHARE_S / 2 <= self._waited_s:
                threading.Thread(target=self._read_setting, daemon=True).start()
            if before_s < agent.REPORT_WAITING_S <= self._waited_s < self._limit_s and folder.claim_in(
                self._folders(), "waiting"
            ):
                _say(f"note: {words.describe_waiting(self._start(), self._waited_s, self._limit_s)}")
        else:
            self._imported_s += tick_s
        if self._waited_s >= self._limit_s or self._imported_s >= agent.IMPORT_LIMITS * self._limit_s:
            self._let_root_be_first()
            self._say_once(f"mpitrain: error: {words.describe_end(self._start(), self._limit_s)}")
            self._end_others(0.0)

    def _keep_time_of_check(self, tick_s: float) -> None:
        for rank in self._processes:
            note = self._notes[rank]
            step, seconds = self._steps.get(rank, (0, 0.0))
            self._steps[rank] = (step, seconds + tick_s) if note.get("step") == step else (note.get("step", 0), 0.0)
            if not self._is_over and self._steps[rank][1] > note.get("limit_s", float("inf")):
                self._report(note)
                return

    def _report(self, waiting: Note) -> None:
        """Print the report of the module `order["reporter"]` on all notes and the waiting rank's; end all ranks."""
        self._let_root_be_first()
        if self._is_first_to_speak():
            reporter = importlib.import_module(self._order["reporter"])
            notes = self._all_notes()
            sys.stdout.write(reporter.report(notes, waiting, self._order))
            sys.stdout.flush()
            folder.mark_said(self._folders())
        self._end_others(agent.GRACE_S["checking"])

    def _read_setting(self) -> None:
        # In a thread, and only in a long start: the file system that holds the settings may be the one that hangs.
        from mpitrain.config import load_run_config
        from mpitrain.errors import MpitrainError

        path = self._order.get("config_path")
        if os.environ.get(words.START_TIMEOUT_VARIABLE):
            return
        with contextlib.suppress(MpitrainError):
            config = load_run_config(Path(path) if path else None, self._order.get("overrides", ())).config
            self._limit_s = config.distributed.start_timeout_s or self._limit_s

    # --- ranks that have ended or cannot start -----------------------------------------------------------------------

    def _judge(self, ended: Sequence[int]) -> None:
        """Handle ranks that have ended without an error message, and ranks that cannot start."""
        if self._is_over:
            return
        lost = self._without_error(ended)
        refused = [note for note in self._notes.values() if note["state"] == "refused"]
        failed = [note for note in self._notes.values() if note["state"] == "failed"]
        if lost and not refused and not failed:
            self._name_lost(lost)
        elif refused and not (self._folder / folder.SPOKEN).exists():
            self._refused_s += agent.TICK_S
            if self._refused_s >= self._time_for_root():
                of_rank = f"rank {refused[0]['rank']} on {refused[0]['host']}"
                self._say_once(f"mpitrain: error: {of_rank} could not start: {refused[0]['failure']}")
                self._end_others(agent.GRACE_S["starting"])
        elif refused or failed:
            have_met = all(self._has_met(rank) for rank in self._processes)
            self._end_others(agent.GRACE_S["failed" if have_met else "starting"])

    def _name_lost(self, lost: list[int]) -> None:
        state = self._notes[lost[0]]["state"]
        if state == "checking":
            for rank in lost:
                self._notes[rank]["ended"] = True
            self._report(self._notes[lost[0]])
            return
        if self._is_first_to_speak():
            lost += self._without_error(self._ended_within(agent.SAME_MOMENT_S))
            text = f"mpitrain: error: {words.describe_lost(self._notes, sorted(lost))}"
            self._speak(text, is_running=state == "running")
        self._end_others(agent.GRACE_S[state])

    def _without_error(self, ended: Sequence[int]) -> list[int]:
        return [rank for rank in ended if self._notes[rank]["state"] in ("starting", "running", "checking")]

    def _ended_within(self, seconds: float) -> list[int]:
        """Return the ranks that end within `seconds`; wait up to ENDING_S for processes that are exiting."""
        started_s, ended = time.monotonic(), list[int]()
        while self._processes:
            passed_s = time.monotonic() - started_s
            is_ending = any(process.is_ending() for process in self._processes.values())
            if passed_s >= (agent.ENDING_S if is_ending else seconds):
                break
            ended += self._wait(min(max(seconds - passed_s, agent.TICK_S), seconds))
        return ended

    def _has_met(self, rank: int) -> bool:
        note = self._notes[rank]
        return bool(note["state"] != "starting" or note["stage"] >= words.AGREEING)

    def _time_for_root(self) -> float:
        # Most launches fail alike on all ranks: then rank 0 will print the error itself.
        root = self._notes.get(0, {"state": "starting", "stage": 0})
        is_coming = root["state"] == "refused" or (root["state"] == "starting" and root["stage"] < words.MPI_INIT)
        return agent.FAILING_TOGETHER_S if is_coming else agent.TICK_S

    def _end_others(self, grace_s: float) -> None:
        """After `grace_s` end the remaining ranks by END_SIGNAL, and those that do not end then by SIGKILL."""
        self._is_over = True
        for number, wait_s in ((None, grace_s), (END_SIGNAL, agent.KILL_S), (signal.SIGKILL, agent.KILL_S)):
            for rank, process in self._processes.items():
                # Ranks that are blocked in MPI_Init have shared memory that their notes do not list yet.
                if self._notes[rank]["state"] != "starting" or self._notes[rank]["stage"] >= words.MPI_INIT:
                    self._find_shared_memory(rank)
                if number is not None:
                    process.send(number)
            deadline_s = time.monotonic() + wait_s
            while self._processes and time.monotonic() < deadline_s:
                self._wait(min(agent.TICK_S, max(deadline_s - time.monotonic(), 0.0)))

    # --- one message -------------------------------------------------------------------------------------------------

    def _let_root_be_first(self) -> None:
        if not self._order["is_one_node"] and 0 not in self._notes:
            time.sleep(agent.ROOT_FIRST_S)

    def _say_once(self, text: str) -> None:
        if self._is_first_to_speak():
            self._speak(text)

    def _is_first_to_speak(self) -> bool:
        """Return whether no rank has printed an error yet, on this node or on nodes that share a folder with it."""
        self._is_over = True
        return folder.claim_in(self._folders(), folder.SPOKEN)

    def _speak(self, text: str, is_running: bool = False) -> None:
        """Print the message, unless another node has written a failure to the same run folder."""
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
        folder.mark_said(self._folders())

    def _folders(self) -> list[Path]:
        return [self._folder, *([self._shared] if folder.is_private(self._shared) else [])]

    # --- several nodes -----------------------------------------------------------------------------------------------

    def _start(self) -> words.Start:
        return words.Start(self._order["world_size"], self._order["is_one_node"], self._all_notes())

    def _all_notes(self) -> dict[int, Note]:
        return {**folder.read_shared_notes(self._shared), **self._notes}

    def _share(self, tick_s: float) -> None:
        """Copy the notes to the folder that the agents of other nodes read, once a rank has waited for SHARE_S."""
        if self._order["is_one_node"]:
            return
        self._unshared_s += tick_s
        waits_long = max((note.get("waited_s", 0.0) for note in self._notes.values()), default=0.0) >= agent.SHARE_S
        is_starting_long = self._waited_s >= min(agent.SHARE_S, self._limit_s / 2)
        is_checking = any(note["state"] == "checking" for note in self._notes.values())
        is_due = self._unshared_s >= (agent.LONG_TICK_S if not self._are_all_running() else agent.BEAT_S / 2)
        if is_due and (waits_long or is_starting_long or is_checking or self._shared.is_dir()):
            self._unshared_s = 0.0
            with contextlib.suppress(OSError):
                self._shared.mkdir(mode=0o700, exist_ok=True)
                notes = {str(rank): note for rank, note in self._notes.items()}
                folder.write_note(self._shared, self._share_name(), notes)

    def _unshare(self) -> None:
        with contextlib.suppress(OSError):
            (self._shared / f"{self._share_name()}.json").unlink()
            if not list(self._shared.glob("node-*.json")):
                shutil.rmtree(self._shared, ignore_errors=True)

    def _share_name(self) -> str:
        return f"node-{socket.gethostname()}-{min(self._notes, default=0)}"


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # the pipe's reader has ended
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def main() -> None:
    """Read the settings from standard input and monitor the ranks until the last one has ended."""
    # Signals that end the ranks must not end the agent: a terminal's interrupt, a launcher's signals to its group.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    order = json.loads(sys.stdin.read())
    # Close the inherited connection to the launcher, which would assume that the rank runs as long as it is open.
    os.closerange(3, order["lock"])
    os.closerange(order["lock"] + 1, _MOST_DESCRIPTORS)
    NodeAgent(order).watch()
    # Not a normal exit: if the thread that reads the settings is inside pydantic, the interpreter would abort and print
    # a message of the C library on the ranks' standard error.
    os._exit(0)
