"""A time limit for collectives: a blocking call into MPI has none, so two threads of each rank keep it.

The ranks tell each other where they are through a store in rank 0's process, which a thread in C++ serves: no main
thread needs to help, whatever it is stuck in. A healthy rank sends two small messages every few seconds.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from mpitrain.comm.watch.notes import CollectiveNotes, place_of
from mpitrain.comm.watch.stall_report import Position, describe_stall, render_positions
from mpitrain.errors import LaunchError

if TYPE_CHECKING:
    import torch.distributed as dist

    from mpitrain.comm.communicator import Communicator

Fail = Callable[[LaunchError, str], NoReturn]
_LONGEST_BEAT_S = 5.0
_RANKS_PER_BEAT_S = 200  # beats get slower with the number of ranks: rank 0 hears at most 200 a second
_BEATS_OF_SILENCE = 3
_MEETING_TIMEOUT_S = 20.0
_GRACE_S = 3.0
_END, _FAILED = "end", "failed"


class Watchdog:
    """Ends the job with a line that names the missing rank, when this rank waits too long in one collective."""

    def __init__(
        self, notes: CollectiveNotes, rank: int, hosts: Sequence[str], store: dist.Store, timeout_s: float, fail: Fail
    ) -> None:
        self._notes, self._rank, self._hosts, self._store = notes, rank, hosts, store
        self._timeout_s, self._fail = timeout_s, fail
        self._beat_s = min(timeout_s / 10, _LONGEST_BEAT_S + len(hosts) / _RANKS_PER_BEAT_S)
        self._main_thread = threading.main_thread().ident or 0
        self._waited_s = 0.0
        self._answered_s = time.monotonic()
        self._heard: dict[int, tuple[int, float]] = {}  # rank -> its last beat, and when that was new here
        self._positions: dict[int, Position] = {}
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=target, name=f"mpitrain {target.__name__.strip('_')}", daemon=True)
            for target in (self._keep_telling, self._keep_time)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop watching; returns at once, also where a thread is still held by a rank 0 that is gone."""
        self._stopped.set()
        for thread in self._threads:
            thread.join(timeout=1.0)

    def is_first_to_fail(self) -> bool:
        """Tell whether no other rank has asked this before; True where rank 0 does not answer within a second."""
        numbers = [1]
        self._within_a_second(lambda: numbers.insert(0, self._store.add(_FAILED, 1)))
        return numbers[0] == 1

    def _within_a_second(self, action: Callable[[], None]) -> None:
        def run() -> None:
            with contextlib.suppress(RuntimeError):  # torch's word for a closed connection
                action()

        # The store may not answer any more: then this thread ends with the process.
        asking = threading.Thread(target=run, daemon=True)
        asking.start()
        asking.join(timeout=1.0)

    def _keep_time(self) -> None:
        seen, last_s = (-1, -1), time.monotonic()
        while not self._stopped.wait(self._beat_s / 2):
            now_s = time.monotonic()
            position = (self._notes.count, self._notes.step)
            if self._notes.collective is None or position != seen:
                seen, self._waited_s = position, 0.0
            else:
                # By ticks, not by the clock: a job that its scheduler suspended for an hour has not waited.
                self._waited_s += min(now_s - last_s, self._beat_s)
            last_s = now_s
            if self._waited_s >= self._timeout_s:
                self._end_job()

    def _end_job(self) -> None:
        positions = self._all_positions()
        message = describe_stall(self._rank, positions, self._waited_s)
        self._within_a_second(lambda: self._store.set(_END, "1"))  # where no launcher ends the others, they do so
        self._fail(LaunchError(message), render_positions(positions))

    def _all_positions(self) -> list[Position]:
        notes, now_s = self._notes, time.monotonic()
        positions = [Position(rank, host, notes.count, notes.collective, notes.step, "")
                     for rank, host in enumerate(self._hosts)]  # fmt: skip
        without_answer_s = now_s - self._answered_s
        if self._is_long(without_answer_s) and self._rank != 0:
            # Then nothing is known of the others, and rank 0, whose process serves the store, is the one to look at.
            positions[0] = replace(self._positions.get(0, positions[0]), silent_s=without_answer_s)
            return positions
        for rank, position in self._positions.items():
            silent_s = now_s - self._heard[rank][1]
            if rank != self._rank:
                positions[rank] = replace(position, silent_s=silent_s if self._is_long(silent_s) else None)
        return positions

    def _is_long(self, silence_s: float) -> bool:
        return silence_s > _BEATS_OF_SILENCE * self._beat_s

    def _keep_telling(self) -> None:
        beat = 0
        while not self._stopped.wait(self._beat_s):
            beat += 1
            try:
                place = place_of(self._main_thread) if self._notes.collective is None else ""
                self._store.set(str(self._rank), _describe(beat, self._notes, place))
                is_waiting_long = self._timeout_s - self._waited_s < (_BEATS_OF_SILENCE + 2) * self._beat_s
                self._hear(range(len(self._hosts)) if is_waiting_long else (0,))
                has_ended = self._store.check([_END])
            except RuntimeError:  # torch's word for a closed connection
                self._lose_root()
                return
            self._answered_s = time.monotonic()
            if has_ended and not self._stopped.wait(_GRACE_S):
                self._fail(LaunchError("ended, since another rank waited for too long"), "")

    def _lose_root(self) -> None:
        # Its process has ended: a launcher ends the others, or their next collective tells; else they do it here.
        if not self._stopped.wait(_GRACE_S):
            self._fail(LaunchError(f"rank 0 on {self._hosts[0]} has ended before the others"), "")

    def _hear(self, ranks: Sequence[int]) -> None:
        now_s = time.monotonic()
        for rank, said in zip(ranks, self._store.multi_get([str(rank) for rank in ranks]), strict=True):
            beat, count, collective, step, place = json.loads(said)
            self._positions[rank] = Position(rank, self._hosts[rank], count, collective, step, place)
            if rank not in self._heard or self._heard[rank][0] != beat:
                self._heard[rank] = (beat, now_s)


def start_watchdog(communicator: Communicator, host: str, is_one_host: bool, timeout_s: float, fail: Fail) -> Watchdog:
    """Watch the collectives of `communicator` from now on. Collective.

    `fail` says an error, keeps the details with it, and ends the job; it is called from another thread than the main
    one. Raises LaunchError on all ranks when a rank cannot reach rank 0's host.
    """
    hosts = communicator.all_gather_object(host)
    store, failure = _meet(communicator, is_one_host)
    failures = communicator.all_gather_object(failure)
    for rank, reason in enumerate(failures):
        if reason is not None:
            raise LaunchError(f"rank {rank} on {hosts[rank]} cannot reach rank 0 on {hosts[0]} over TCP: {reason}")
    return Watchdog(communicator.notes, communicator.rank, hosts, store, timeout_s, fail)


def _meet(communicator: Communicator, is_one_host: bool) -> tuple[dist.Store, str | None]:
    """Return the store that rank 0 serves, or the reason why this rank cannot reach it. Collective."""
    import torch.distributed as dist

    from mpitrain.comm.tcp.meeting import open_store_over

    timeout = datetime.timedelta(seconds=_MEETING_TIMEOUT_S)
    try:
        store = open_store_over(communicator, timeout, is_one_host, waits=False)
        store.set(str(communicator.rank), _describe(0, communicator.notes, ""))
        # From here on `_keep_time` decides, not the store: a suspended job must be able to go on.
        store.set_timeout(datetime.timedelta(days=1000))
    except RuntimeError as error:
        return dist.HashStore(), str(error).splitlines()[0]
    return store, None


def _describe(beat: int, notes: CollectiveNotes, place: str) -> str:
    return json.dumps([beat, notes.count, notes.collective, notes.step, place])
