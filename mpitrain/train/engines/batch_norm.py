"""Batch norm in engines that compute each microbatch separately.

k  microbatches of this rank      b  rows of a microbatch      m  sums of all layers, or of one layer
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch

from mpitrain.comm import Reducer
from mpitrain.data import Microbatch
from mpitrain.models import batch_norm_layers
from mpitrain.models.batch_norm import find_batch_context, moment_length, take_batch_sums, update_running_statistics
from mpitrain.train.engines.standard import EngineInputs

Exchange = Callable[[torch.Tensor], torch.Tensor]


class MicrobatchBatchNorm:
    """Provides the batch-norm layers of a model with the engine's data; does nothing for a model without them."""

    def __init__(self, inputs: EngineInputs, reducer: Reducer) -> None:
        self._model = inputs.model
        self._layers, self._context = batch_norm_layers(inputs.model), find_batch_context(inputs.model)
        self.num_sums = moment_length(inputs.model)
        self._no_sums = next(inputs.model.parameters()).new_zeros(0)
        self.is_synchronised = self._context is not None and inputs.distributed.sync_batch_norm
        self._rounds = MicrobatchRounds(reducer) if self.is_synchronised else None

    def run(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Run the microbatches' passes, one by one, or in rounds if moments are synchronised. Collective."""
        if self._rounds is not None:
            self._rounds.run(bodies)
            return
        for body in bodies:
            body()

    @contextmanager
    def microbatch(self, number: int, microbatch: Microbatch) -> Iterator[None]:
        """Set the layers' microbatch for the passes in the block: its padding, and how its moments are summed."""
        if self._context is None:
            yield
            return
        self._context.row_weights = row_weights(microbatch)
        if self._rounds is not None:
            self._context.synchronise = functools.partial(summed, exchange=functools.partial(self._exchange, number))
        yield
        self._context.row_weights = self._context.synchronise = None

    def _exchange(self, number: int, vector: torch.Tensor) -> torch.Tensor:
        """Run the other microbatches up to the same exchange, restore the layers' state, and return the sum (m,)."""
        context, rounds = self._context, self._rounds
        if context is None or rounds is None:
            raise RuntimeError("batch norm is synchronised only inside run()")
        saved, sums = (context.row_weights, context.synchronise), [layer.batch_sums for layer in self._layers]
        total = rounds.exchange(number, vector)
        context.row_weights, context.synchronise = saved
        for layer, own in zip(self._layers, sums, strict=True):
            layer.batch_sums = own
        return total

    def take_sums(self) -> torch.Tensor:
        """Return the sums (m,) of the last forward pass."""
        return self._no_sums if self._context is None else take_batch_sums(self._model)

    def update(self, sums: torch.Tensor) -> None:
        """Update the running statistics with the sums (m,) over the microbatches of all ranks."""
        if self._context is not None:
            update_running_statistics(self._model, sums)


def row_weights(microbatch: Microbatch) -> torch.Tensor:
    """Return (b,): 1 for each row with any positive weight, 0 for padding."""
    weights: torch.Tensor = microbatch.weights
    return (weights.flatten(1) > 0).any(dim=1).to(weights.dtype)


class MicrobatchRounds:
    """Runs the passes of k microbatches in turn; each `exchange` blocks a pass until all passes of all ranks reach it.

    Each pass has a thread; one thread runs at a time, in the order of the microbatches. Sums are taken by microbatch,
    so that no bit depends on which rank computes which microbatch. Each pass has its own state of torch's random
    numbers.
    """

    def __init__(self, reducer: Reducer) -> None:
        self._reducer = reducer
        self._passes: list[_Pass] = []

    def run(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Run all bodies to their ends. Collective; all bodies on all ranks must call `exchange` equally often."""
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
        """Return the sum of `vector` (m,) over microbatches and ranks. Called from the body of microbatch `number`."""
        return self._passes[number].meet(vector)

    def _meet(self) -> None:
        waiting = [one for one in self._passes if one.vector is not None]
        if not waiting:
            return
        total = self._reducer.reduce(torch.stack([cast(torch.Tensor, one.vector) for one in waiting]))
        for one in waiting:
            # Each gets its own copy, so that it may change it in place.
            one.vector, one.total = None, total.clone()


class _Pass:
    """One microbatch's pass in its own thread, which runs only while `go_on` waits for it."""

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
        """Run the pass until it calls `meet` or ends; raise its exception, if any."""
        if not self.is_running:
            return
        torch.set_rng_state(self._random_state)
        self._may_run.release()
        self._has_stopped.acquire()
        self._random_state = torch.get_rng_state()
        if self._error is not None:
            raise self._error

    def meet(self, vector: torch.Tensor) -> torch.Tensor:
        """Publish `vector` and block until its sum is available; return the sum."""
        self.vector = vector
        self._has_stopped.release()
        self._may_run.acquire()
        if self._is_given_up or self.total is None:
            raise _GivenUpError
        return self.total

    def give_up(self) -> None:
        """End a pass that is not continued because another one failed."""
        self._is_given_up = True
        self._may_run.release()
        self._thread.join()

    def _run(self, body: Callable[[], None]) -> None:
        self._may_run.acquire()
        try:
            if not self._is_given_up:
                # Run the backward pass in this thread. Autograd's thread for a GPU is shared by all passes: the first
                # pass to block in it would block the others.
                with torch.autograd.set_multithreading_enabled(False):
                    body()
        except _GivenUpError:
            pass
        except BaseException as error:
            self._error = error
        self.is_running = False
        self._has_stopped.release()


class _GivenUpError(Exception):
    """Ends the thread of a pass that is given up."""


def summed(vector: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """Return `exchange(vector)`, the sum over microbatches and ranks; its gradient is summed by `exchange` too."""
    return cast(torch.Tensor, _Summed.apply(vector, exchange))


class _Summed(torch.autograd.Function):
    """y = sum of x over microbatches and ranks. Each loss depends on all x, so gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, vector: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        ctx.exchange = exchange
        return exchange(vector.detach())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.exchange(gradient.contiguous()), None
