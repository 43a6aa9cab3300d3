"""The position of a rank in its collectives, kept at nearly no cost, so that a rank that does not arrive is named."""

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
    """Where this rank is: how many collectives it entered, in which one it waits, and at which step of the training.

    Written by the main thread, read by the one that keeps the rank's note: each is a plain number or name, so no lock
    is needed. The count means the same on all ranks, since all call the same collectives in the same order.
    """

    __slots__ = ("collective", "count", "meetings", "seconds", "step_at_call", "steps_in_call")

    def __init__(self) -> None:
        self.count = 0
        self.collective: str | None = None
        self.seconds = 0.0  # in collectives that have ended
        self.step_at_call = 0
        # Compiled code that takes many steps in one call counts them here.
        self.steps_in_call = ctypes.c_int64(0)
        # Meetings in the memory that the node's ranks share: how many this rank has begun, and how many it has left.
        self.meetings = (ctypes.c_int64 * 2)()

    @property
    def step(self) -> int:
        """Steps of the training that are done."""
        return self.step_at_call + self.steps_in_call.value

    @step.setter
    def step(self, step: int) -> None:
        self.steps_in_call.value = 0
        self.step_at_call = step


@contextmanager
def waiting_in(name: str, notes: CollectiveNotes) -> Iterator[None]:
    """Note entry to and return from a collective that is no method of a communicator."""
    notes.count += 1
    notes.collective = name
    yield
    notes.collective = None  # not after an exception: see `noted`


def noted(verb: Verb) -> Verb:
    """Note entry to and return from a collective method, in the `notes` of its communicator (about 0.3 us)."""
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
    """Return the main thread's position, as the fields of a rank's note."""
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
    """Return the function and line of Python that a thread runs."""
    frame = sys._current_frames().get(thread)
    if frame is None:
        return ""
    code = frame.f_code
    return f"{code.co_name} ({code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"
