"""Microbatches of one virtual rank, read from files in each epoch: chunks in random order, then a shuffle buffer.

v  virtual rank      b  rows per microbatch      F  input features      O  targets      h  samples per buffer round
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Array, address_of
from mpitrain.data.dataset.batches import BatchPlan, Microbatch
from mpitrain.data.dataset.dataset import Convert
from mpitrain.data.dataset.in_memory import padded
from mpitrain.data.files.compiled.rows import gather_rows, scatter_rows
from mpitrain.data.random_streams import Stream, keyed_permutation
from mpitrain.data.streaming.read_ahead import ReadAhead
from mpitrain.data.streaming.shuffle_buffer import BufferOrder, IndexArray

Columns = tuple[npt.NDArray[Any], ...]
# Upper limit for any `data.shuffle_buffer_samples`, because fields may be large.
LARGEST_BUFFER_BYTES = 32 * 2**20


@dataclass(frozen=True)
class StreamPlan:
    """All that determines the order of one virtual rank's samples, which is the same for any number of ranks.

    `chunks` are the indices of its chunks that hold training samples, `counts` the numbers of training samples.
    """

    virtual_rank: int
    chunks: IndexArray
    counts: IndexArray
    batches: BatchPlan
    round_size: int
    seed: int
    shuffle: bool

    def epoch(self, epoch: int) -> tuple[IndexArray, BufferOrder]:
        """Return the order in which `chunks` are read, as positions in `chunks`, and the order of the buffer."""
        order = np.arange(len(self.chunks))
        keys = None
        if self.shuffle:
            order = keyed_permutation((self.seed, Stream.CHUNKS, epoch, self.virtual_rank), len(self.chunks))
            keys = (self.seed, Stream.BUFFER, epoch, self.virtual_rank)
        return order, BufferOrder(int(self.counts.sum()), self.round_size, keys)


def round_size_of(buffer_samples: int, rows_a_step: int, row_bytes: int) -> int:
    """Return h: half of the buffer, rounded down to a multiple of `rows_a_step`, but at least one step."""
    slots = min(buffer_samples, LARGEST_BUFFER_BYTES // max(1, row_bytes))
    return max(1, slots // (2 * rows_a_step)) * rows_a_step


class StreamedMicrobatches:
    """`MicrobatchSource` that reads its chunks in each epoch; each sample occurs once, each chunk is read once.

    `reader` returns the training samples of a chunk, `empty` are columns with n = 0: inputs (n, F, ...), targets (n, O,
    ...) and possibly weights (n, 1 or O, ...), all contiguous and in the type of the model.
    """

    def __init__(
        self, plan: StreamPlan, reader: ReadAhead[Columns], ahead: int, convert: Convert, empty: Columns
    ) -> None:
        self.virtual_rank = plan.virtual_rank
        self._plan, self._reader, self._ahead, self._convert = plan, reader, ahead, convert
        self._microbatches_a_round = plan.round_size // plan.batches.microbatch_rows
        self._start: tuple[int, int] | None = None
        self._rounds: _Rounds | None = None
        self._first_round = 0
        self._round = -1
        self._padding = self._block_of(empty, 1)
        self._block = self._padding

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """See `MicrobatchSource.start_epoch`. Nothing is read before the first microbatch is requested."""
        if self._start == (epoch, first_step) and self._round in (-1, self._first_round):
            return  # already started there, and at most the first round was read
        if self._rounds is not None:
            self._rounds.close()
        self._start, self._rounds, self._round = (epoch, first_step), None, -1

    def microbatch(self, step: int) -> Microbatch:
        """See `MicrobatchSource.microbatch`. Raises DataError if a file has changed or cannot be read."""
        block, place = self._find(step)
        return block.microbatch(place)

    def addresses(self, step: int) -> tuple[int, ...]:
        """Return the addresses of inputs, targets and weights of microbatch `step`; valid until the next call.

        For engines that read memory: creating `Microbatch` objects would take longer than many steps.
        """
        block, place = self._find(step)
        return block.addresses(place)

    def _find(self, step: int) -> tuple[_Block, int]:
        self._advance_to(step)
        place = step - self._round * self._microbatches_a_round
        return (self._block, place) if place < self._block.num_microbatches else (self._padding, 0)

    def _advance_to(self, step: int) -> None:
        rounds = self._rounds = self._rounds or self._open()
        while self._round < min(step // self._microbatches_a_round, rounds.order.num_full_rounds):
            self._round = self._first_round if self._round < 0 else self._round + 1
            columns = next(rounds.columns)
            rows = self._plan.batches.microbatch_rows
            self._block = self._block_of(columns, -(-len(columns[0]) // rows)) if columns else self._padding

    def _open(self) -> _Rounds:
        epoch, first_step = self._start or (0, 0)
        self._start = (epoch, first_step)
        order, buffer_order = self._plan.epoch(epoch)
        self._first_round = min(first_step // self._microbatches_a_round, buffer_order.num_full_rounds)
        return _Rounds(self._plan, order, buffer_order, self._first_round, self._reader, self._ahead)

    def _block_of(self, columns: Columns, num_microbatches: int) -> _Block:
        """Return the samples as microbatches; the last one is padded with rows of weight 0."""
        rows = self._plan.batches.microbatch_rows
        weights = columns[2] if len(columns) > 2 else np.ones((len(columns[1]), 1), dtype=columns[1].dtype)
        num_rows, parts = rows * num_microbatches, (columns[0], columns[1], weights)
        filled = (one if len(one) == num_rows else padded(one, num_rows, one.dtype) for one in parts)
        return _Block(self.virtual_rank, tuple(map(self._convert, filled)), rows)


@dataclass(frozen=True)
class StreamPart:
    """`MicrobatchSource` of one virtual rank: microbatch `place` of the `share` microbatches per step of a stream.

    All parts of a stream on a rank must request the same step, in order, before any requests the next one.
    """

    virtual_rank: int
    stream: StreamedMicrobatches
    share: int
    place: int

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """See `MicrobatchSource.start_epoch`."""
        self.stream.start_epoch(epoch, first_step * self.share)

    def microbatch(self, step: int) -> Microbatch:
        """See `MicrobatchSource.microbatch`."""
        found = self.stream.microbatch(step * self.share + self.place)
        return Microbatch(self.virtual_rank, found.inputs, found.targets, found.weights)

    def addresses(self, step: int) -> tuple[int, ...]:
        """See `StreamedMicrobatches.addresses`; valid until the next step."""
        return self.stream.addresses(step * self.share + self.place)


class _Block:
    """The microbatches of one round: `columns` are inputs, targets and weights, with the microbatches concatenated."""

    def __init__(self, virtual_rank: int, columns: tuple[Array, ...], rows: int) -> None:
        self.num_microbatches = len(columns[0]) // rows
        self._virtual_rank, self._columns, self._rows = virtual_rank, columns, rows
        self._places = [(address_of(column), rows * column[:1].nbytes) for column in columns]

    def microbatch(self, place: int) -> Microbatch:
        rows = slice(place * self._rows, (place + 1) * self._rows)
        return Microbatch(self._virtual_rank, *(column[rows] for column in self._columns))

    def addresses(self, place: int) -> tuple[int, ...]:
        return tuple(first + place * num_bytes for first, num_bytes in self._places)


class _Rounds:
    """The rounds of one epoch from `first_round` on; reads only chunks with samples that are still needed."""

    def __init__(
        self, plan: StreamPlan, chunk_order: IndexArray, order: BufferOrder, first_round: int,
        reader: ReadAhead[Columns], ahead: int,
    ) -> None:  # fmt: skip
        self.order = order
        self._first_round = first_round
        self._content = order.content(first_round)  # position in the stream of each slot's sample
        self._next = min(
            order.num_samples, (2 + first_round) * order.round_size
        )  # first position that is not in the buffer
        ends = np.cumsum(plan.counts[chunk_order])
        in_buffer = np.searchsorted(ends, self._content[self._content >= 0], side="right")
        is_needed = ends > self._next
        is_needed[in_buffer] = True
        needed = np.flatnonzero(is_needed)
        self._firsts = iter((ends - plan.counts[chunk_order])[needed].tolist())
        self._reading = reader.in_order(plan.chunks[chunk_order][needed].tolist(), ahead)
        self._rest: tuple[int, Columns] = (0, ())
        self.columns = self._run()

    def close(self) -> None:
        """Stop reading."""
        self._reading.close()

    def _run(self) -> Iterator[Columns]:
        buffer = self._fill()
        for number in range(self._first_round, self.order.num_full_rounds):
            slots = self.order.drawn(number)
            yield take_rows(buffer, slots)
            self._refill(buffer, slots[: len(self.order.refilled(number))])
        yield take_rows(buffer, self.order.drawn(self.order.num_full_rounds))

    def _fill(self) -> Columns:
        """Return the buffer with its content at the start of the first round."""
        buffer: Columns = ()
        num_missing = int((self._content >= 0).sum())
        while num_missing:
            first, columns = self._read()
            if not buffer:
                shapes = [(self.order.num_slots, *column.shape[1:]) for column in columns]
                buffer = tuple(np.zeros(s, dtype=c.dtype) for s, c in zip(shapes, columns, strict=True))
            here = np.flatnonzero((self._content >= first) & (self._content < first + len(columns[0])))
            for target, column in zip(buffer, columns, strict=True):
                scatter_rows(target, here, gather_rows(column, self._content[here] - first))
            num_missing -= len(here)
        return buffer

    def _refill(self, buffer: Columns, slots: IndexArray) -> None:
        done = 0
        while done < len(slots):
            first, columns = self._rest
            if not columns or self._next >= first + len(columns[0]):
                first, columns = self._read()
            begin = self._next - first
            count = min(len(slots) - done, len(columns[0]) - begin)
            for target, column in zip(buffer, columns, strict=True):
                scatter_rows(target, slots[done : done + count], column[begin : begin + count])
            done, self._next = done + count, self._next + count

    def _read(self) -> tuple[int, Columns]:
        self._rest = (0, ())  # release the memory of the last chunk before the next one is read
        self._rest = (next(self._firsts), next(self._reading))
        return self._rest


def take_rows(columns: Columns, positions: IndexArray) -> Columns:
    """Return the rows at `positions` (m,) of each column (n, ...), in that order."""
    return tuple(gather_rows(column, positions) for column in columns)
