"""The position of a rank in its collectives, recorded at low cost, so that an error can name the missing rank."""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, TypeVar, cast

Verb = TypeVar("Verb", bound=Callable[..., Any])


class CollectiveNotes:
    """Position of this rank: number of collectives entered, name of the current one, and training step.

    Written by the main thread, read by the thread that writes the rank's note: each value is a plain number or name, so
    no lock is needed. Counts of different ranks are comparable, since all call the same collectives in the same order.
    """

    __slots__ = ("collective", "count", "meetings", "seconds", "step_at_call", "steps_in_call")

    def __init__(self) -> None:
        self.count = 0
        self.collective: str | None = None
        self.seconds = 0.0  # total, in collectives that have ended
        self.step_at_call = 0
        # Compiled code that takes many steps in one call counts them here.
        self.steps_in_call = ctypes.c_int64(0)
        # Exchanges in the node's shared memory: how many this rank has begun, and how many it has completed.
        self.meetings = (ctypes.c_int64 * 2)()

    @property
    def step(self) -> int:
        """Number of completed training steps."""
        return self.step_at_call + self.steps_in_call.value

    @step.setter
    def step(self, step: int) -> None:
        self.steps_in_call.value = 0
        self.step_at_call = step


@contextmanager
def waiting_in(name: str, notes: CollectiveNotes) -> Iterator[None]:
    """Record entry to and return from a collective that is not a method of a communicator."""
    notes.count += 1
    notes.collective = name
    yield
    notes.collective = None  # kept after an exception: see `noted`


def noted(verb: Verb) -> Verb:
    """Record entry to and return from a collective method in the `notes` of its communicator (about 0.3 us)."""
    name = verb.__name__

    @functools.wraps(verb)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        notes = self.notes
        notes.count += 1
        notes.collective = name
        started_s = perf_counter()
        result = verb(self, *arguments, **options)
        notes.seconds += perf_counter() - started_s
        # Keep the name after an exception: other ranks may still be blocked in this collective.
        notes.collective = None
        return result

    return cast(Verb, call)


def position_of(notes: CollectiveNotes) -> dict[str, Any]:
    """Return the main thread's position as fields of the rank's note."""
    collective = notes.collective
    return {
        "waits": collective is not None,
        "collective": collective,
        "count": notes.count,
        "step": notes.step,
        "meetings": list(notes.meetings),
        "place": "" if collective is not None else _place_of(threading.main_thread().ident or 0),
    }


def _place_of(thread: int) -> str:
    """Return the Python function and line that a thread executes; empty if the thread does not exist."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return ""
    code = frame.f_code
    return f"{code.co_name} ({code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"
