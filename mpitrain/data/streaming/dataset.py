"""Data set of `standard` semantics that reads the samples from the files in every epoch (`data.streaming`).

C  chunks      S  streams      V  virtual ranks      F  input features      O  targets

Chunk c belongs to stream c mod S. In each epoch stream s reads its chunks in an order that depends on (seed, epoch, s)
only, and draws from a buffer of `data.shuffle_buffer_samples` samples (see `shuffle_buffer` for the quality of this
shuffling). Each step takes V / S microbatches from a stream, which is read by every rank that computes one of them.
Chunks without training samples are not read. Held-out samples are kept in memory when their chunk is read, up to a
limit; the chunks of the others are read once more after each epoch.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Ranks, VirtualRanks
from mpitrain.config import DataSection
from mpitrain.data.dataset.batches import (
    BatchPlan,
    EvaluationSource,
    Microbatch,
    MicrobatchSource,
    VirtualRankSamples,
    members_of,
)
from mpitrain.data.dataset.dataset import (
    Convert,
    DataSummary,
    LayoutOfSamples,
    check_some_are_left,
    normalization_of,
    settled,
)
from mpitrain.data.dataset.exchange import open_source_on_root
from mpitrain.data.dataset.in_memory import Column, padded_columns
from mpitrain.data.dataset.split import plan_split
from mpitrain.data.dataset.split_rule import SplitRule
from mpitrain.data.samples import Samples
from mpitrain.data.selection.opening import DEFAULT_CHUNK_BYTES
from mpitrain.data.selection.source import SampleSource
from mpitrain.data.streaming.first_pass import ChunkSplitter, FirstPass, make_first_pass
from mpitrain.data.streaming.microbatches import (
    Columns,
    StreamedMicrobatches,
    StreamPart,
    StreamPlan,
    round_size_of,
    take_rows,
)
from mpitrain.data.streaming.read_ahead import ReadAhead

# Memory of one rank for held-out samples, and for chunks that its threads read ahead.
HELD_OUT_BYTES = 128 * 2**20
AHEAD_BYTES = 128 * 2**20
# With fewer chunks per stream their content affects the training too much: smaller chunks are used.
FEWEST_CHUNKS_A_STREAM = 8
SMALLEST_CHUNK_BYTES = 64 * 2**10
_FLOAT32_BYTES = 4
# Ratio of the largest to the mean number of samples of a stream from which a notice is given.
UNEVEN_SHARE = 1.25


@dataclass(frozen=True)
class StreamedDataset:
    """`Dataset` of samples that stay in their files."""

    source: SampleSource
    first_pass: FirstPass
    summary: DataSummary
    virtual_ranks: VirtualRanks
    notices: tuple[str, ...]
    _chunks: _ChunkReader
    _buffer_samples: int
    _num_threads: int
    _convert: Convert = np.asarray

    def microbatches(self, plan: BatchPlan, seed: int, shuffle: bool) -> list[MicrobatchSource]:
        """See `Dataset.microbatches`."""
        empty = self._chunks.empty()
        row_bytes = sum(column.dtype.itemsize * int(np.prod(column.shape[1:])) for column in empty)
        reader = ReadAhead(self.source, self._chunks.training, self._num_threads)
        share = self._share
        round_size = round_size_of(self._buffer_samples, share * plan.microbatch_rows, row_bytes)
        counts = self.first_pass.counts.training
        streams: dict[int, StreamedMicrobatches] = {}
        for stream in self._own_streams:
            chunks = self._chunks_of(stream, counts)
            one = StreamPlan(stream, chunks, counts[chunks], plan, round_size, seed, shuffle)
            streams[stream] = StreamedMicrobatches(one, reader, self._ahead, self._convert, empty)
        if share == 1:
            return list(streams.values())
        return [StreamPart(v, streams[v // share], share, v % share) for v in self.virtual_ranks.owned]

    @property
    def _share(self) -> int:
        """Number of microbatches of a step that come from one stream."""
        return self.virtual_ranks.num_virtual_ranks // self.virtual_ranks.num_streams

    @property
    def _own_streams(self) -> list[int]:
        """The streams from which this rank computes microbatches; an idle rank has one stream without samples."""
        return sorted({v // self._share for v in self.virtual_ranks.owned})

    def evaluation(self, held_out: bool = True) -> list[EvaluationSource]:
        """See `Dataset.evaluation`; the samples are read chunk by chunk."""
        counts, share = self.first_pass.counts, self._share
        chosen, read = (
            (counts.validation, self._chunks.held_out) if held_out else (counts.training, self._chunks.trained_on)
        )
        # The chunks of a stream are distributed over the virtual ranks that read it.
        own = {v: self._chunks_of(v // share, chosen, slice(v % share, None, share)) for v in self.virtual_ranks.owned}
        return [StreamedBlocks(v, self.source, chunks, read, self._convert) for v, chunks in own.items()]

    def converted(self, convert: Convert) -> StreamedDataset:
        """See `Dataset.converted`."""
        return replace(self, _convert=convert)

    def _chunks_of(
        self, stream: int, counts: npt.NDArray[np.int64], which: slice = slice(None)
    ) -> npt.NDArray[np.int64]:
        """Return the chunks of a stream that hold samples, of those that the slice `which` selects."""
        own = members_of(stream, self.virtual_ranks.num_streams, len(counts))[which]
        return own[counts[own] > 0]

    @property
    def _ahead(self) -> int:
        """Number of chunks that each stream reads ahead: two, or one if they would exceed `AHEAD_BYTES`."""
        total = 2 * DEFAULT_CHUNK_BYTES * len(self._own_streams)
        return 2 if total <= AHEAD_BYTES else 1


def in_enough_chunks(source: SampleSource, num_streams: int, ranks: Ranks) -> SampleSource:
    """Return `source`, opened again with smaller chunks if it has too few for so many streams. Collective."""
    fewest = FEWEST_CHUNKS_A_STREAM * num_streams
    if len(source.chunks) >= fewest:
        return source
    num_values = source.num_points * (len(source.input_names) + len(source.target_names))
    smaller = max(SMALLEST_CHUNK_BYTES, num_values * _FLOAT32_BYTES // fewest)
    return open_source_on_root(source.selection, ranks, min(smaller, DEFAULT_CHUNK_BYTES))


def open_streamed(
    source: SampleSource, ranks: Ranks, layout: LayoutOfSamples, settings: DataSection, dtype: npt.DTypeLike
) -> StreamedDataset:
    """Return the streamed data set of `source`, after a first pass that counts and measures the samples. Collective.

    Raises DataError, on all ranks, if a file cannot be read or no training sample is left.
    """
    rule = ranks.on_root(lambda: plan_split(settings, source))
    first_pass = make_first_pass(source, ranks, rule)
    counts = first_pass.counts
    each = (counts.kept, counts.valid, counts.training, counts.validation)
    kept, valid, training, validation = (int(one.sum()) for one in each)
    check_some_are_left(kept, kept - valid, training)
    virtual_ranks = settled(layout, valid, training)
    shares = [int(counts.training[s :: virtual_ranks.num_streams].sum()) for s in range(virtual_ranks.num_streams)]
    largest_share = -(-max(shares) * virtual_ranks.num_streams // virtual_ranks.num_virtual_ranks)
    normalization = normalization_of(first_pass.training, len(source.input_names), dtype)
    summary = DataSummary(
        training, validation, kept - valid, normalization, first_pass.training, source.input_names, source.target_names,
        tuple(first_pass.num_missing.tolist()), largest_share, rule, valid - training - validation, first_pass.left_out,
    )  # fmt: skip
    chunks = _ChunkReader(source, first_pass, rule, normalization.mean, dtype)
    notices = (*_notices(shares), *summary.split_notices)
    return StreamedDataset(
        source, first_pass, summary, virtual_ranks, notices, chunks, settings.shuffle_buffer_samples,
        settings.num_workers,
    )  # fmt: skip


def _notices(shares: Sequence[int]) -> Iterator[str]:
    mean = sum(shares) / len(shares)
    if max(shares) > UNEVEN_SHARE * mean:
        yield (
            f"data.streaming: the streams hold {min(shares)} to {max(shares)} samples, {mean:.0f} on average, so the "
            "last steps of an epoch train on few samples; store the data in smaller chunks (mpitrain data convert)"
        )


class _ChunkReader:
    """Reader of chunks for training and for validation, on any thread."""

    def __init__(
        self, source: SampleSource, first_pass: FirstPass, rule: SplitRule, input_mean: Column, dtype: npt.DTypeLike
    ) -> None:
        self._source, self._splitter = source, ChunkSplitter(first_pass, rule)
        self._input_mean, self._dtype = input_mean, dtype
        self._validation = first_pass.counts.validation
        self._kept: dict[int, Samples] = {}
        self._kept_bytes, self._lock = 0, threading.Lock()

    def training(self, source: SampleSource, chunk: int) -> Columns:
        """Return the training samples of a chunk as columns; keep its held-out samples in memory, if there is room."""
        samples, training, held_out = self._splitter.read(source, chunk)
        self._keep(chunk, samples, held_out)
        return self._columns(samples, training)

    def held_out(self, source: SampleSource, chunk: int) -> VirtualRankSamples:
        """Return the held-out samples of a chunk."""
        validation = self._kept.get(chunk)
        if validation is None:
            samples, _, held_out = self._splitter.read(source, chunk)
            validation = self._keep(chunk, samples, held_out)
        return self._blocks(validation)

    def trained_on(self, source: SampleSource, chunk: int) -> VirtualRankSamples:
        """Return the training samples of a chunk."""
        samples, training, _ = self._splitter.read(source, chunk)
        return self._blocks(samples.take(training))

    def empty(self) -> Columns:
        """Return columns without samples, with the shapes of the source and the type of the model."""
        num_inputs, num_targets = len(self._source.input_names), len(self._source.target_names)
        tail = self._source.grid_shape if self._source.kind == "fields" else ()
        weights = [num_targets] if tail else [1] if self._source.selection.weighs_loss else []
        shapes = [num_inputs, num_targets, *weights]
        return tuple(np.zeros((0, size, *tail), dtype=self._dtype) for size in shapes)

    def _columns(self, samples: Samples, positions: npt.NDArray[np.int64]) -> Columns:
        if samples.inputs.ndim > 2:
            return tuple(np.ascontiguousarray(one[:-1]) for one in self._padded(samples.take(positions)))
        of_points = () if samples.weights is None else (samples.weights,)
        columns: Columns = (samples.inputs, samples.targets, *of_points)
        if len(positions) < len(samples):  # otherwise all are selected, in order
            columns = take_rows(columns, positions)
        return tuple(np.asarray(one, dtype=self._dtype) for one in columns)

    def _blocks(self, samples: Samples) -> VirtualRankSamples:
        return VirtualRankSamples(0, *self._padded(samples), samples.grid_index)

    def _padded(self, samples: Samples) -> tuple[Column, Column, Column]:
        return padded_columns(samples, self._input_mean, self._dtype)

    def _keep(self, chunk: int, samples: Samples, held_out: npt.NDArray[np.int64]) -> Samples:
        if chunk in self._kept:
            return self._kept[chunk]
        validation = samples.take(held_out)
        columns = (validation.inputs, validation.targets, validation.grid_index, validation.weights)
        num_bytes = sum(column.nbytes for column in columns if column is not None)
        with self._lock:
            if self._kept_bytes + num_bytes <= HELD_OUT_BYTES:
                self._kept[chunk] = validation
                self._kept_bytes += num_bytes
        return validation


@dataclass(frozen=True)
class StreamedBlocks:
    """`EvaluationSource` of one virtual rank's chunks; a block never spans two chunks, kept in memory or not."""

    virtual_rank: int
    source: SampleSource
    chunks: npt.NDArray[np.int64]
    read: Callable[[SampleSource, int], VirtualRankSamples]
    convert: Convert = np.asarray

    def blocks(self) -> Iterator[Microbatch]:
        """See `EvaluationSource.blocks`. Raises DataError if a file has changed or cannot be read."""
        for chunk in self.chunks.tolist():
            for block in self.read(self.source, chunk).blocks():
                columns = (self.convert(one) for one in (block.inputs, block.targets, block.weights))
                yield Microbatch(self.virtual_rank, *columns)
