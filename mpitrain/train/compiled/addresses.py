"""Where the compiled step finds the rows of each batch: addresses of the samples, and which of them come when.

k  slices of this rank      b  rows a slice
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mpitrain.data.dataset.batches import EvaluationSource, Slice, VirtualRankSamples
from mpitrain.data.dataset.step_slices import StepSlices, StepSlicesInMemory
from mpitrain.data.streaming.microbatches import StreamedSlices

_MOST_KEPT_SAMPLES = 4096


class EpochAddresses:
    """Slices of samples in memory: an epoch's order is laid out once, and a step is an address in it.

    `table` (k, 3) holds the addresses of each slice's samples: `SampleAddresses` in dense_batch.hpp. With `joins` they
    are one slice of k b rows.
    """

    def __init__(self, slices: StepSlicesInMemory, joins: bool) -> None:
        self._slices = slices
        _, num_slices, self.slice_stride = slices.order.shape
        self.step_stride = num_slices * self.slice_stride
        self.num_slices, self.slice_rows = (1, self.step_stride) if joins else (num_slices, self.slice_stride)
        self.table = torch.tensor([[column.data_ptr() for column in slices.columns]] * self.num_slices)

    def order_address(self, step: int) -> int:
        """Return the address of the order of step number `step`; that of the next one is `step_stride` numbers on."""
        order = self._slices.lay_out()
        return order.data_ptr() + order.itemsize * step * self.step_stride


class StepAddresses:
    """Slices that come from elsewhere, file after file: a table of addresses that is set anew for each step."""

    def __init__(self, slices: StepSlices, slice_rows: int) -> None:
        self._slices, sources = slices, slices.sources
        self.num_slices, self.slice_rows, self.slice_stride = len(sources), slice_rows, 0
        self.step_stride = 0  # one step at a time
        self._order = torch.arange(slice_rows)
        self.table = torch.zeros((len(sources), 3), dtype=torch.int64)
        self._held: list[Slice] = []
        self._streams = [source for source in sources if isinstance(source, StreamedSlices)]
        self._rows = self.table.numpy()  # the same memory

    def order_address(self, step: int) -> int:
        """Fetch the slices of step number `step`, and return the address of their order."""
        if len(self._streams) == self.num_slices:
            self._rows[:] = [source.addresses(step) for source in self._streams]
            return self._order.data_ptr()
        self._held = [packed(piece) for piece in self._slices.apart(step)]
        # In place: the kernel knows this table by its address.
        self.table.copy_(torch.tensor([addresses_of(piece) for piece in self._held]))
        return self._order.data_ptr()


def batch_addresses(slices: StepSlices, slice_rows: int, joins: bool) -> EpochAddresses | StepAddresses:
    """Return where the rows of `slices` lie; those from files are never joined."""
    if isinstance(slices, StepSlicesInMemory):
        return EpochAddresses(slices, joins)
    return StepAddresses(slices, slice_rows)


class _KeptBlocks:
    """`EvaluationSource` of few samples, whose blocks are made once."""

    def __init__(self, source: EvaluationSource) -> None:
        self._blocks = [packed(block) for block in source.blocks()]

    def blocks(self) -> Iterator[Slice]:
        """See `EvaluationSource.blocks`."""
        return iter(self._blocks)


def kept_if_few(source: EvaluationSource) -> EvaluationSource:
    """Return `source`, with its blocks kept where they take little memory: an epoch may be shorter than making them."""
    if isinstance(source, VirtualRankSamples) and len(source) <= _MOST_KEPT_SAMPLES:
        return _KeptBlocks(source)
    return source


def packed(piece: Slice) -> Slice:
    """Return the slice with rows that follow one another in memory."""
    return Slice(piece.virtual_rank, piece.inputs.contiguous(), piece.targets.contiguous(), piece.weights.contiguous())


def addresses_of(rows: Slice) -> list[int]:
    """Return the addresses of inputs, targets and weights."""
    return [tensor.data_ptr() for tensor in (rows.inputs, rows.targets, rows.weights)]
