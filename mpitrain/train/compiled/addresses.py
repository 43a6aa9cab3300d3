"""Where the compiled step finds the rows of each batch: addresses of the samples, and which of them come when.

k  slices of this rank      b  rows a slice
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch

from mpitrain.data.dataset.batches import (
    EvaluationSource,
    Slice,
    SliceSource,
    VirtualRankBatches,
    VirtualRankSamples,
)
from mpitrain.data.streaming.microbatches import StreamedSlices

_MOST_KEPT_SAMPLES = 4096


class EpochAddresses:
    """Slices of samples in memory: an epoch's order is laid out once, and a step is an address in it.

    `table` (k, 3) holds the addresses of each slice's samples: `SampleAddresses` in dense_batch.hpp. With `joins` they
    are one slice of k b rows.
    """

    def __init__(
        self, sources: Sequence[VirtualRankBatches], slice_rows: int, steps_per_epoch: int, joins: bool
    ) -> None:
        self._sources = sources
        samples = [source.samples for source in sources]
        self._offsets = _first_rows(samples) if joins else [0] * len(sources)
        # [step][slice][row], so that the slices of a step, joined or not, follow one another.
        self._order = torch.zeros((steps_per_epoch, len(sources), slice_rows), dtype=torch.int64)
        self.slice_stride, self.step_stride = slice_rows, len(sources) * slice_rows
        self.num_slices, self.slice_rows = (1, self.step_stride) if joins else (len(sources), slice_rows)
        self.table = torch.tensor([addresses_of(one) for one in samples[: self.num_slices]])

    def start_epoch(self) -> None:
        """Lay out the order of the epoch that the sources have begun."""
        for column, (source, offset) in enumerate(zip(self._sources, self._offsets, strict=True)):
            self._order[:, column] = source.epoch_rows() + offset

    def order_address(self, step: int) -> int:
        """Return the address of the order of step number `step`; that of the next one is `step_stride` numbers on."""
        return self._order.data_ptr() + self._order.itemsize * step * self.step_stride


class StepAddresses:
    """Slices that come from elsewhere, file after file: a table of addresses that is set anew for each step."""

    def __init__(self, sources: Sequence[SliceSource], slice_rows: int) -> None:
        self._sources = sources
        self.num_slices, self.slice_rows, self.slice_stride = len(sources), slice_rows, 0
        self.step_stride = 0  # one step at a time
        self._order = torch.arange(slice_rows)
        self.table = torch.zeros((len(sources), 3), dtype=torch.int64)
        self._held: list[Slice] = []
        self._streams = [source for source in sources if isinstance(source, StreamedSlices)]
        self._rows = self.table.numpy()  # the same memory

    def start_epoch(self) -> None:
        """Nothing is laid out ahead."""

    def order_address(self, step: int) -> int:
        """Fetch the slices of step number `step`, and return the address of their order."""
        if len(self._streams) == self.num_slices:
            self._rows[:] = [source.addresses(step) for source in self._streams]
            return self._order.data_ptr()
        slices = [source.slice(step) for source in self._sources]
        self._held = [packed(piece) for piece in slices]
        # In place: the kernel knows this table by its address.
        self.table.copy_(torch.tensor([addresses_of(piece) for piece in self._held]))
        return self._order.data_ptr()


def batch_addresses(
    sources: Sequence[SliceSource], slice_rows: int, steps_per_epoch: int, joins: bool
) -> EpochAddresses | StepAddresses:
    """Return where the rows of an engine's batches lie; slices from files are never joined."""
    in_memory = [source for source in sources if isinstance(source, VirtualRankBatches)]
    if len(in_memory) < len(sources):
        return StepAddresses(sources, slice_rows)
    return EpochAddresses(in_memory, slice_rows, steps_per_epoch, joins)


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


def addresses_of(rows: VirtualRankSamples | Slice) -> list[int]:
    """Return the addresses of inputs, targets and weights."""
    if isinstance(rows, Slice):
        tensors = (rows.inputs, rows.targets, rows.weights)
    else:
        tensors = (rows.padded_inputs, rows.padded_targets, rows.padded_weights)
    return [tensor.data_ptr() for tensor in tensors]


def _first_rows(samples: Sequence[VirtualRankSamples]) -> list[int]:
    """Return where each virtual rank's rows begin in the memory that all of them share, counted in rows."""
    if all(one.places is not None and one.padded_inputs is samples[0].padded_inputs for one in samples):
        return [0] * len(samples)  # the rows are those of tensors that all of them share
    own = [0]
    for before, after in itertools.pairwise(samples):
        own.append(own[-1] + len(before) + 1)
        expected = before.padded_inputs.data_ptr() + before.padded_inputs.nbytes
        if after.padded_inputs.data_ptr() != expected:
            raise ValueError("the virtual ranks' samples do not lie behind one another in memory")
    return own
