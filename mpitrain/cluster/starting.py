"""Start-up progress: prints the current stage when it takes longer than two seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

from mpitrain.cluster.cpu.freed_memory import give_back_freed_memory
from mpitrain.errors import one_line

REPORTED_AFTER_S = 2.0
LOADING, FINDING = "loading packages", "finding the ranks"
BEFORE_THE_SETTINGS = (LOADING, FINDING)
# Set it to a large value in scripts that compare the output of runs.
SAID_AFTER_VARIABLE = "MPITRAIN_STARTING_AFTER_S"


class Starting:
    """Progress display that prints a stage once after it has taken `after_s` seconds; shorter stages are not printed.

    Parameters
    ----------
    say : callable, optional
        Prints a line, for example `print_on_stderr`. It is called from a separate thread, since the main thread is
        busy. Default, for all ranks except one: nothing is printed, only the times are recorded.
    after_s : float
        Seconds after which a stage is printed; default 2.
    """

    def __init__(self, say: Callable[[str], None] | None = None, after_s: float = REPORTED_AFTER_S) -> None:
        self.times: list[tuple[str, float]] = []
        """Completed stages and their durations in seconds."""
        self._say, self._after_s = say, after_s
        self._stage, self._since_s = "", time.monotonic()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # After an error a stage has not ended; a process that goes on, such as a notebook's, would print it later.
        if self._stage:
            self.done()

    def now(self, stage: str) -> None:
        """Begin a stage; the current one ends.

        Parameters
        ----------
        stage : str
            Description for the user, for example "reading the samples".
        """
        with self._changed:
            self._keep_time()
            self._stage = stage
            self._changed.notify()
            if self._thread is None and self._say is not None:
                self._thread = threading.Thread(target=self._watch, name="mpitrain starting", daemon=True)
                self._thread.start()

    def done(self) -> None:
        """End the current stage and the thread, and return freed memory to the system; `now` may be called again."""
        with self._changed:
            self._keep_time()
            self._stage, thread, self._thread = "", self._thread, None
            self._changed.notify()
        if thread is not None:
            thread.join()
        give_back_freed_memory()

    def phases(self, wall_time_s: float) -> tuple[tuple[str, float], ...]:
        """Return the durations of the phases of a run.

        Parameters
        ----------
        wall_time_s : float
            Seconds of the run so far, counted from the moment when the settings are read.

        Returns
        -------
        tuple of (str, float)
            ("starting", s), ("compiling", s) and ("training", s), in seconds. Compiling: the stages with a name that
            begins with "compiling". Training: the time since the settings were read outside all stages, at least 0.
        """
        before_s = sum(seconds for stage, seconds in self.times if stage in BEFORE_THE_SETTINGS)
        compiling_s = sum(seconds for stage, seconds in self.times if stage.startswith("compiling"))
        starting_s = sum(seconds for _, seconds in self.times) - compiling_s
        training_s = before_s + wall_time_s - starting_s - compiling_s
        return ("starting", starting_s), ("compiling", compiling_s), ("training", max(training_s, 0.0))

    def _keep_time(self) -> None:
        now_s = time.monotonic()
        if self._stage:
            self.times.append((self._stage, now_s - self._since_s))
        self._since_s = now_s

    def _watch(self) -> None:
        printed = ""
        with self._changed:
            while self._stage:
                stage = self._stage
                left_s = self._since_s + self._after_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(left_s)
                elif printed != stage and self._say is not None:
                    self._say(f"starting: {stage} ...")
                    printed = stage
                else:
                    self._changed.wait()


def said_after_s(environ: Mapping[str, str]) -> float:
    """Return MPITRAIN_STARTING_AFTER_S, the seconds after which a stage is printed; 2 if unset or not a number."""
    try:
        return float(environ.get(SAID_AFTER_VARIABLE, REPORTED_AFTER_S))
    except ValueError:
        return REPORTED_AFTER_S


def print_on_stderr(line: str) -> None:
    """Print a line on standard error.

    Parameters
    ----------
    line : str
        Text; unprintable characters, also newlines, are printed as escapes.
    """
    print(one_line(line), file=sys.stderr, flush=True)  # noqa: T201


def note_on_stderr(*notices: str) -> None:
    """Print notices on standard error, one line each.

    Parameters
    ----------
    *notices : str
        Texts, which are printed after "note: ".

    Notes
    -----
    Each process that calls it prints; `Ranks.note` prints on the root only.
    """
    for notice in notices:
        print_on_stderr(f"note: {notice}")
