"""Batch norm in an engine that computes microbatch by microbatch.

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
    """What the batch-norm layers of a model need from the engine; of no effect for a model without any."""

    def __init__(self, inputs: EngineInputs, reducer: Reducer) -> None:
        self._model = inputs.model
        self._layers, self._context = batch_norm_layers(inputs.model), find_batch_context(inputs.model)
        self.num_sums = moment_length(inputs.model)
        self._no_sums = next(inputs.model.parameters()).new_zeros(0)
        self.is_synchronised = self._context is not None and inputs.distributed.sync_batch_norm
        self._rounds = MicrobatchRounds(reducer) if self.is_synchronised else None

    def run(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Run the microbatches' passes, one by one, or in rounds where moments are synchronised. Collective."""
        if self._rounds is not None:
            self._rounds.run(bodies)
            return
        for body in bodies:
            body()

    @contextmanager
    def microbatch(self, number: int, piece: Microbatch) -> Iterator[None]:
        """Set the layers' microbatch for the passes inside of the block: its padding, and its partners."""
        if self._context is None:
            yield
            return
        self._context.row_weights = row_weights(piece)
        if self._rounds is not None:
            self._context.synchronise = functools.partial(summed, exchange=functools.partial(self._exchange, number))
        yield
        self._context.row_weights = self._context.synchronise = None

    def _exchange(self, number: int, vector: torch.Tensor) -> torch.Tensor:
        """Let the other microbatches pass through the same layers, and restore the layers afterwards."""
        context, rounds = self._context, self._rounds
        if context is None or rounds is None:
            raise RuntimeError("batch norm is synchronised inside of run() only")
        told, sums = (context.row_weights, context.synchronise), [layer.batch_sums for layer in self._layers]
        total = rounds.exchange(number, vector)
        context.row_weights, context.synchronise = told
        for layer, own in zip(self._layers, sums, strict=True):
            layer.batch_sums = own
        return total

    def take_sums(self) -> torch.Tensor:
        """Return the sums (m,) that the last forward pass left."""
        return self._no_sums if self._context is None else take_batch_sums(self._model)

    def update(self, sums: torch.Tensor) -> None:
        """Update the running statistics by the sums (m,) over the microbatches of all ranks."""
        if self._context is not None:
            update_running_statistics(self._model, sums)


def row_weights(piece: Microbatch) -> torch.Tensor:
    """Return 1 for each row (b,) that has any weight, 0 for padding."""
    weights: torch.Tensor = piece.weights
    return (weights.flatten(1) > 0).any(dim=1).to(weights.dtype)


class MicrobatchRounds:
    """Runs k microbatches' passes in turn; at a meeting each waits for all passes of all ranks, and gets their sum.

    Each pass has a thread, of which one runs at a time, in the microbatches' order: sums are taken by microbatch, as
    everywhere, so that no bit depends on which rank computes which microbatch. torch's random state is kept for each.
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
        """Return the sum of `vector` (m,) over microbatches and ranks. Called from the body of microbatch `number`."""
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
                # In this thread also on a GPU, whose backward passes otherwise share one: the first would wait there.
                with torch.autograd.set_multithreading_enabled(False):
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
    """Return `exchange(vector)`, the sum over microbatches and ranks; the gradient is summed by it too."""
    return cast(torch.Tensor, _Summed.apply(vector, exchange))


class _Summed(torch.autograd.Function):
    """y = sum over microbatches and ranks of x: every loss depends on every x, so gradients are summed too."""

    @staticmethod
    def forward(ctx: Any, vector: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        ctx.exchange = exchange
        return exchange(vector.detach())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.exchange(gradient.contiguous()), None
