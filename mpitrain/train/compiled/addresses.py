"""Addresses of the samples in memory for the compiled step, and their order in each batch.

k  microbatches of this rank      b  rows a microbatch
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mpitrain.comm import address_of
from mpitrain.data import EvaluationSource, Microbatch
from mpitrain.data.dataset.batches import VirtualRankSamples
from mpitrain.data.dataset.step_microbatches import StepMicrobatches, StepMicrobatchesInMemory
from mpitrain.data.streaming.microbatches import StreamedMicrobatches, StreamPart

_MOST_KEPT_SAMPLES = 4096


class EpochAddresses:
    """Microbatches of samples in memory: the order of an epoch is laid out once, and each step is an address in it.

    `table` (k, 3) holds the addresses of each microbatch's samples: `SampleAddresses` in sample_addresses.hpp. With
    `joins` all are one microbatch of k b rows.
    """

    def __init__(self, microbatches: StepMicrobatchesInMemory, joins: bool) -> None:
        self._microbatches = microbatches
        _, num_microbatches, self.microbatch_stride = microbatches.order.shape
        self.step_stride = num_microbatches * self.microbatch_stride
        self.num_microbatches, self.microbatch_rows = (
            (1, self.step_stride) if joins else (num_microbatches, self.microbatch_stride)
        )
        self.table = np.array([[address_of(column) for column in microbatches.columns]] * self.num_microbatches)

    def order_address(self, step: int) -> int:
        """Return the address of the order of step `step`; that of the next step is `step_stride` numbers further on."""
        order = self._microbatches.lay_out()
        return address_of(order) + order.itemsize * step * self.step_stride


class StepAddresses:
    """Microbatches that are read from files: the table of addresses is set for each step."""

    def __init__(self, microbatches: StepMicrobatches, microbatch_rows: int) -> None:
        self._microbatches, sources = microbatches, microbatches.sources
        self.num_microbatches, self.microbatch_rows, self.microbatch_stride = len(sources), microbatch_rows, 0
        self.step_stride = 0  # one step at a time
        self._order = np.arange(microbatch_rows, dtype=np.int64)
        self.table = np.zeros((len(sources), 3), dtype=np.int64)
        self._held: list[Microbatch] = []
        self._streams = [source for source in sources if isinstance(source, StreamedMicrobatches | StreamPart)]

    def order_address(self, step: int) -> int:
        """Read the microbatches of step `step`, and return the address of their order."""
        if len(self._streams) == self.num_microbatches:
            self.table[:] = [source.addresses(step) for source in self._streams]
            return address_of(self._order)
        self._held = [packed(microbatch) for microbatch in self._microbatches.apart(step)]
        # In place: the kernel has the address of this table.
        self.table[:] = [addresses_of(microbatch) for microbatch in self._held]
        return address_of(self._order)


def batch_addresses(
    microbatches: StepMicrobatches, microbatch_rows: int, joins: bool
) -> EpochAddresses | StepAddresses:
    """Return the addresses of `microbatches`; microbatches that are read from files are never joined."""
    if isinstance(microbatches, StepMicrobatchesInMemory):
        return EpochAddresses(microbatches, joins)
    return StepAddresses(microbatches, microbatch_rows)


class _KeptBlocks:
    """`EvaluationSource` of few samples that keeps its blocks."""

    def __init__(self, source: EvaluationSource) -> None:
        self._blocks = [packed(block) for block in source.blocks()]

    def blocks(self) -> Iterator[Microbatch]:
        """See `EvaluationSource.blocks`."""
        return iter(self._blocks)


def kept_if_few(source: EvaluationSource) -> EvaluationSource:
    """Return `source`, with its blocks kept if it is small: an epoch may take less time than creating them."""
    if isinstance(source, VirtualRankSamples) and len(source) <= _MOST_KEPT_SAMPLES:
        return _KeptBlocks(source)
    return source


def packed(microbatch: Microbatch) -> Microbatch:
    """Return the microbatch with arrays that are contiguous in memory."""
    return Microbatch(
        microbatch.virtual_rank, *map(np.ascontiguousarray, (microbatch.inputs, microbatch.targets, microbatch.weights))
    )


def addresses_of(rows: Microbatch) -> list[int]:
    """Return the addresses of inputs, targets and weights."""
    return [address_of(column) for column in (rows.inputs, rows.targets, rows.weights)]
