"""Threads that take steps in a planned order: one runs at a time, from one step to its next."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from conftest import TIMEOUT_S

Result = TypeVar("Result")


class Turns:
    """Whose turn it is: the first in `order` who has not ended yet; after the order, the one of the lowest number."""

    def __init__(self, order: Sequence[int], number: int) -> None:
        self._order, self._running = list(order), set(range(number))
        self._current: int | None = None
        self._changed = threading.Condition()
        self._own = threading.local()

    def step(self) -> None:
        """End the turn of the calling thread, and wait for its next one; does nothing in other threads."""
        own = getattr(self._own, "number", None)
        if own is None:
            return
        with self._changed:
            self._give_up(own)
            assert self._changed.wait_for(lambda: self._current is None and self._next() == own, TIMEOUT_S)
            self._current = own
            if self._order:
                self._order.pop(0)

    def run(self, number: int, body: Callable[[], Result]) -> Result | Exception:
        """Run `body` as the thread of this number; return its result, or what it raised."""
        self._own.number = number
        try:
            self.step()
            return body()
        except Exception as error:
            return error
        finally:
            with self._changed:
                self._running.discard(number)
                self._give_up(number)

    def _give_up(self, own: int) -> None:
        if self._current == own:
            self._current = None
        self._changed.notify_all()

    def _next(self) -> int:
        while self._order and self._order[0] not in self._running:
            self._order.pop(0)
        return self._order[0] if self._order else min(self._running)


def in_turns(turns: Turns, bodies: Sequence[Callable[[], Result]]) -> list[Result | Exception]:
    """Run each of `bodies` in a thread of its own, in planned turns; return what became of each."""
    results: list[Result | Exception] = [RuntimeError("has not run")] * len(bodies)

    def run(number: int) -> None:
        results[number] = turns.run(number, bodies[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
