"""Batch norm in an engine that computes slice by slice.

k  slices of this rank      b  rows of a slice      m  sums of all layers
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from mpitrain.comm.reduction import Reducer
from mpitrain.data.dataset.batches import Slice
from mpitrain.models.batch_norm import (
    batch_norm_layers,
    find_batch_context,
    moment_length,
    take_batch_sums,
    update_running_statistics,
)
from mpitrain.train.engines.slice_rounds import SliceRounds, summed
from mpitrain.train.engines.standard import EngineInputs


class SliceBatchNorm:
    """What the batch-norm layers of a model need from the engine; of no effect for a model without any."""

    def __init__(self, inputs: EngineInputs, reducer: Reducer) -> None:
        self._model = inputs.model
        self._layers, self._context = batch_norm_layers(inputs.model), find_batch_context(inputs.model)
        self.num_sums = moment_length(inputs.model)
        self._no_sums = next(inputs.model.parameters()).new_zeros(0)
        self.is_synchronised = self._context is not None and inputs.config.distributed.sync_batch_norm
        self._rounds = SliceRounds(reducer) if self.is_synchronised else None

    def run(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Run the slices' passes, one by one, or in rounds where moments are synchronised. Collective."""
        if self._rounds is not None:
            self._rounds.run(bodies)
            return
        for body in bodies:
            body()

    @contextmanager
    def slice(self, number: int, piece: Slice) -> Iterator[None]:
        """Tell the layers of the slice whose passes, forward and backward, run inside: its padding, its partners."""
        if self._context is None:
            yield
            return
        self._context.row_weights = row_weights(piece)
        if self._rounds is not None:
            self._context.synchronise = functools.partial(summed, exchange=functools.partial(self._exchange, number))
        yield
        self._context.row_weights = self._context.synchronise = None

    def _exchange(self, number: int, vector: torch.Tensor) -> torch.Tensor:
        """Give way to the other slices, which pass through the same layers, and leave these as they were."""
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
        """Update the running statistics by the sums (m,) over the slices of all ranks."""
        if self._context is not None:
            update_running_statistics(self._model, sums)


def row_weights(piece: Slice) -> torch.Tensor:
    """Return 1 for each row (b,) of which anything counts, 0 for padding."""
    return (piece.weights.flatten(1) > 0).any(dim=1).to(piece.weights.dtype)
