"""What a process is doing before it has anything to show, said when it takes long: nobody should look at silence."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping

from mpitrain.cluster.cpu.freed_memory import give_back_freed_memory
from mpitrain.errors import one_line

SAID_AFTER_S = 2.0
LOADING, FINDING = "loading packages", "finding the ranks"
BEFORE_THE_SETTINGS = (LOADING, FINDING)
# Scripts that compare what a run prints set it higher than any start takes.
SAID_AFTER_VARIABLE = "MPITRAIN_STARTING_AFTER_S"


class Starting:
    """Says what is being done once it has taken `after_s` seconds; each thing once, and nothing where it is quick.

    A thread of its own does so, for the thread that works cannot. Without `say`, on all ranks but one, it only keeps
    the times.
    """

    def __init__(self, say: Callable[[str], None] | None = None, after_s: float = SAID_AFTER_S) -> None:
        self.times: list[tuple[str, float]] = []
        """What has been done so far, and the seconds that it took."""
        self._say, self._after_s = say, after_s
        self._what, self._since_s = "", time.monotonic()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def now(self, what: str) -> None:
        """Name what is done from now on, such as "reading the samples"."""
        with self._changed:
            self._keep_time()
            self._what = what
            self._changed.notify()
            if self._thread is None and self._say is not None:
                self._thread = threading.Thread(target=self._watch, name="mpitrain starting", daemon=True)
                self._thread.start()

    def done(self) -> None:
        """Nothing is under way that needs to be named; a later `now` begins again."""
        with self._changed:
            self._keep_time()
            self._what, thread, self._thread = "", self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join()
        give_back_freed_memory()

    def phases(self, wall_time_s: float) -> tuple[tuple[str, float], ...]:
        """Return the seconds of starting, compiling and training; `wall_time_s` begins when the settings are read."""
        before_s = sum(seconds for what, seconds in self.times if what in BEFORE_THE_SETTINGS)
        compiling_s = sum(seconds for what, seconds in self.times if what.startswith("compiling"))
        starting_s = sum(seconds for _, seconds in self.times) - compiling_s
        training_s = before_s + wall_time_s - starting_s - compiling_s
        return ("starting", starting_s), ("compiling", compiling_s), ("training", max(training_s, 0.0))

    def _keep_time(self) -> None:
        now_s = time.monotonic()
        if self._what:
            self.times.append((self._what, now_s - self._since_s))
        self._since_s = now_s

    def _watch(self) -> None:
        said = ""
        with self._changed:
            while self._what:
                what = self._what
                left_s = self._since_s + self._after_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                elif said != what and self._say is not None:
                    self._say(f"starting: {what} ...")
                    said = what
                else:
                    self._changed.wait()


def said_after_s(environ: Mapping[str, str]) -> float:
    """Return after how many seconds something is said: MPITRAIN_STARTING_AFTER_S, where it is a number, else 2."""
    try:
        return float(environ.get(SAID_AFTER_VARIABLE, SAID_AFTER_S))
    except ValueError:
        return SAID_AFTER_S


def say_on_stderr(line: str) -> None:
    """Print a line on standard error."""
    print(one_line(line), file=sys.stderr, flush=True)  # noqa: T201


def note_on_stderr(*notices: str) -> None:
    """Print notices on standard error, a line each."""
    for notice in notices:
        say_on_stderr(f"note: {notice}")
