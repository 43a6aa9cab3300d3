"""Slices that need each other's sums in the middle of their passes: synchronised batch norm.

k  slices of this rank      m  numbers of a sum
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch

from mpitrain.comm.reduction import Reducer

Exchange = Callable[[torch.Tensor], torch.Tensor]


class SliceRounds:
    """Runs k slices' passes in turn; where a pass meets, it waits until all have, on all ranks, and gets their sum.

    Each pass has a thread, of which one runs at a time, slice after slice: the sums are taken slice by slice, as
    everywhere, so that no bit depends on which rank computes which slice. torch's random state is kept for each.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._passes: list[_Pass] = []

    def run(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Run all bodies to their ends. Collective; every body on every rank must meet equally often."""
        random_state = torch.get_rng_state()
        self._passes = [_Pass(body, random_state) for body in bodies]
        try:
            while any(one.is_running for one in self._passes):
                for one in self._passes:
                    one.go_on()
                self._meet()
        finally:
            for one in self._passes:
                one.give_up()
            torch.set_rng_state(random_state)

    def exchange(self, number: int, vector: torch.Tensor) -> torch.Tensor:
        """Return the sum of the k slices' and all ranks' `vector` (m,). Called from the body of slice `number`."""
        return self._passes[number].meet(vector)

    def _meet(self) -> None:
        waiting = [one for one in self._passes if one.vector is not None]
        if not waiting:
            return
        total = self._reducer.reduce(torch.stack([cast(torch.Tensor, one.vector) for one in waiting]))
        for one in waiting:
            # Each gets its own copy: what one changes in place must not reach the others.
            one.vector, one.total = None, total.clone()


class _Pass:
    """One slice's pass in its own thread, which runs only while `go_on` waits for it."""

    def __init__(self, body: Callable[[], None], random_state: torch.Tensor) -> None:
        self.vector: torch.Tensor | None = None
        self.total: torch.Tensor | None = None
        self.is_running = True
        self._random_state = random_state
        self._error: BaseException | None = None
        self._is_given_up = False
        self._may_run, self._has_stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(body,), daemon=True)
        self._thread.start()

    def go_on(self) -> None:
        """Let the pass run until it meets or ends; raise what it raised."""
        if not self.is_running:
            return
        torch.set_rng_state(self._random_state)
        self._may_run.release()
        self._has_stopped.acquire()
        self._random_state = torch.get_rng_state()
        if self._error is not None:
            raise self._error

    def meet(self, vector: torch.Tensor) -> torch.Tensor:
        """Hand over `vector` and stop until its sum is there."""
        self.vector = vector
        self._has_stopped.release()
        self._may_run.acquire()
        if self._is_given_up or self.total is None:
            raise _GivenUpError
        return self.total

    def give_up(self) -> None:
        """End a pass that will not be continued, after an error elsewhere."""
        self._is_given_up = True
        self._may_run.release()
        self._thread.join()

    def _run(self, body: Callable[[], None]) -> None:
        self._may_run.acquire()
        try:
            if not self._is_given_up:
                body()
        except _GivenUpError:
            pass
        except BaseException as error:
            self._error = error
        self.is_running = False
        self._has_stopped.release()


class _GivenUpError(Exception):
    """Ends a waiting pass's thread."""


def summed(vector: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """Return `exchange(vector)`, the sum over slices and ranks; the gradient is summed by it too on its way back."""
    return cast(torch.Tensor, _Summed.apply(vector, exchange))


class _Summed(torch.autograd.Function):
    """y = sum over slices and ranks of x: every slice's loss depends on every x, so gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, vector: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        ctx.exchange = exchange
        return exchange(vector.detach())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.exchange(gradient.contiguous()), None
