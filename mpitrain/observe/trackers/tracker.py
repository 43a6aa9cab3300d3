"""Protocol of trackers, and the thread that isolates the run from their failures and delays."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, Literal, Protocol, TypeVar

Result = TypeVar("Result")

Outcome = Literal["finished", "stopped", "failed"]
"""How a run ended; a stopped run can be continued with --resume."""


class Tracker(Protocol):
    """A record of the run in the format of another tool.

    The root opens it. One thread, which is not the training's, makes all calls: opening, `log` after each epoch,
    `finish` if the training completes, `close`. No training step waits for it. After an exception in one of them only
    `abandon` is called, and the run continues.
    """

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record numbers at an optimiser step. Called after each epoch.

        Parameters
        ----------
        step : int
            Number of optimiser steps so far.
        values : mapping of str to float
            The numbers of the epoch's record in `metrics.jsonl`, such as `train_loss` or `timing/shares/waiting`.
        """

    def finish(self, step: int, values: Mapping[str, float | str]) -> None:
        """Record the final results of a run whose training is complete. Called before `close`.

        Parameters
        ----------
        step : int
            Number of optimiser steps of the run.
        values : mapping of str to float or str
            Losses, epochs, hash of the weights and others; see `final_values`.
        """

    def close(self, outcome: Outcome) -> None:
        """End the record.

        Parameters
        ----------
        outcome : {"finished", "stopped", "failed"}
            How the run ended; a stopped run can be continued with --resume, and then opens the tracker again.
        """

    def abandon(self) -> None:
        """Release the resources of a failed record, so that it prints nothing later; exceptions are ignored."""
        return


class BackgroundTracker:
    """A tracker that works in a separate thread and is not used again after a failure.

    No training step waits for it, even if a disk is full or a server does not answer.
    """

    def __init__(self, name: str, load: Callable[[], Callable[[], Tracker]], tell: Callable[[str], None]) -> None:
        """Load the library by `load`, and start the thread, which opens the tracker by the function returned.

        `tell` receives one message if the tracker fails, in the thread that calls the methods.
        """
        self._name, self._tell = name, tell
        self._actions: SimpleQueue[Callable[[Tracker], None] | None] = SimpleQueue()
        self._failure: str | None = None
        self._is_left_out = False
        self._is_open = threading.Event()
        # Loaded in this thread: two threads that import one library at once can find a partly initialised module.
        make = self._guarded(load)
        # A daemon thread: a library that hangs does not prevent the process from ending.
        self._thread = threading.Thread(target=self._guarded, args=(lambda: self._work(make),), daemon=True)
        self._thread.start()

    def wait_until_open(self, until_s: float) -> None:
        """Wait until the tracker is open or has failed, at most until the monotonic clock shows `until_s`."""
        self._is_open.wait(max(0.0, until_s - time.monotonic()))
        if self._failure is not None:
            self._leave_out(self._failure)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        self._hand_over(lambda tracker: tracker.log(step, values))

    def finish(self, step: int, values: Mapping[str, float | str]) -> None:
        """See `Tracker.finish`."""
        self._hand_over(lambda tracker: tracker.finish(step, values))

    def close(self, outcome: Outcome, until_s: float) -> None:
        """End the record; wait for the thread until the monotonic clock shows `until_s`, then give it up."""
        self._hand_over(lambda tracker: tracker.close(outcome))
        self._actions.put(None)
        self._thread.join(max(0.0, until_s - time.monotonic()))
        if self._thread.is_alive():
            self._leave_out("it did not finish in time")
        elif self._failure is not None:
            self._leave_out(self._failure)

    def _hand_over(self, action: Callable[[Tracker], None]) -> None:
        if self._failure is not None:
            self._leave_out(self._failure)
        else:
            self._actions.put(action)

    def _leave_out(self, reason: str) -> None:
        if not self._is_left_out:
            self._is_left_out = True
            self._tell(f"tracking.{self._name}: failed and is no longer used ({reason}); the run continues")

    def _work(self, make: Callable[[], Tracker] | None) -> None:
        tracker = self._guarded(make) if make is not None else None
        self._is_open.set()
        if tracker is None:
            return
        try:
            while (action := self._actions.get()) is not None:
                action(tracker)
        except BaseException:
            with suppress(BaseException):
                tracker.abandon()
            raise

    def _guarded(self, action: Callable[[], Result]) -> Result | None:
        try:
            return action()
        except BaseException as error:  # also SystemExit: a library that calls it ends only its record
            self._failure = " ".join(f"{type(error).__name__}: {error}".split())
            return None


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a metrics record by names such as `timing/shares/waiting`; lists and text are left out."""
    pairs = flat(record, "/")
    return {name: float(one) for name, one in pairs if isinstance(one, int | float) and not isinstance(one, bool)}


def flat(values: Mapping[str, Any], separator: str, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings, each by its name joined to the names `above` it."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, separator, f"{above}{name}{separator}")
        else:
            yield f"{above}{name}", value
