"""The microbatches of a step, for all virtual ranks of a rank at once.

k  microbatches of this rank      c  chosen ones      b  rows per microbatch      n  rows of one array
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from mpitrain.comm import Array, address_of
from mpitrain.comm.arrays import stack
from mpitrain.data.dataset.batches import Microbatch, MicrobatchSource, VirtualRankBatches, VirtualRankSamples
from mpitrain.data.dataset.dataset import Convert

_ALL = slice(None)
Columns = tuple[Array, Array, Array]


class StepMicrobatches:
    """The microbatches of several sources, each read separately."""

    def __init__(self, sources: Sequence[MicrobatchSource]) -> None:
        self.sources = sources

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """See `MicrobatchSource.start_epoch`, of all sources."""
        for source in self.sources:
            source.start_epoch(epoch, first_step)

    def apart(self, step: int) -> list[Microbatch]:
        """Return the microbatches as a list."""
        return [source.microbatch(step) for source in self.sources]

    def stacked(self, step: int, chosen: slice = _ALL) -> Microbatch:
        """Return the `chosen` ones of the k microbatches, copied to (c, b, ...), with the first one's virtual rank."""
        parts = [source.microbatch(step) for source in self.sources[chosen]]
        columns = zip(*((part.inputs, part.targets, part.weights) for part in parts), strict=True)
        return Microbatch(parts[0].virtual_rank, *map(stack, columns))

    def joined(self, step: int) -> Microbatch:
        """Return one microbatch of all rows (k b, ...), with the first one's virtual rank."""
        whole = self.stacked(step)
        return Microbatch(
            whole.virtual_rank,
            *(it.reshape(-1, *it.shape[2:]) for it in (whole.inputs, whole.targets, whole.weights)),
        )


class StepMicrobatchesInMemory(StepMicrobatches):
    """Microbatches of samples that are contiguous in memory: rows `order` (steps, k, b) of `columns` (n, ...).

    Raises ValueError if the samples are not contiguous in memory.
    """

    def __init__(self, sources: Sequence[VirtualRankBatches]) -> None:
        super().__init__(sources)
        samples = [source.samples for source in sources]
        self._batches, self._first_rows = sources, _first_rows(samples)
        num_rows = self._first_rows[-1] + len(samples[-1].padded_inputs)
        self.columns = _whole_columns(samples[0], num_rows)
        steps, rows = sources[0].epoch_rows().shape
        # [step][microbatch][row], so that the microbatches of a step are contiguous, whether joined or not.
        self.order = np.zeros((steps, len(sources), rows), dtype=np.int64)
        self._is_laid_out = False

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """See `MicrobatchSource.start_epoch`, of all sources."""
        super().start_epoch(epoch, first_step)
        self._is_laid_out = False

    def lay_out(self) -> npt.NDArray[np.int64]:
        """Return `order` for the current epoch."""
        if not self._is_laid_out:
            self._is_laid_out = True
            for column, (source, first_row) in enumerate(zip(self._batches, self._first_rows, strict=True)):
                np.add(source.epoch_rows(), first_row, out=self.order[:, column])
        return self.order

    def stacked(self, step: int, chosen: slice = _ALL) -> Microbatch:
        """See `StepMicrobatches.stacked`."""
        rows = self.lay_out()[step, chosen]
        return Microbatch(self._batches[chosen][0].virtual_rank, *(column[rows] for column in self.columns))


def open_step_microbatches(sources: Sequence[MicrobatchSource]) -> StepMicrobatches:
    """Return the microbatches of `sources`, gathered in one operation if all of them are in memory."""
    in_memory = [source for source in sources if isinstance(source, VirtualRankBatches)]
    return StepMicrobatchesInMemory(in_memory) if len(in_memory) == len(sources) else StepMicrobatches(sources)


def converted_samples(samples: Sequence[VirtualRankSamples], convert: Convert) -> list[VirtualRankSamples]:
    """Return the samples of several virtual ranks, contiguous in memory, with their arrays converted as a whole."""
    first_rows = _first_rows(samples)
    last = first_rows[-1] + len(samples[-1].padded_inputs)
    columns = [convert(column) for column in _whole_columns(samples[0], last)]
    found = []
    for one, first in zip(samples, first_rows, strict=True):
        rows = slice(first, first + len(one.padded_inputs))
        # Virtual ranks that share whole arrays must share the converted arrays as the same Python objects, by which
        # `_share_memory` recognises them.
        inputs, targets, weights = columns if _share_memory(samples) else [column[rows] for column in columns]
        found.append(replace(one, padded_inputs=inputs, padded_targets=targets, padded_weights=weights))
    return found


def _whole_columns(first: VirtualRankSamples, num_rows: int) -> Columns:
    """Return inputs, targets and weights of all samples, in the memory that begins with the samples of `first`."""
    inputs, targets, weights = (
        as_strided(it, (num_rows, *it.shape[1:]), it.strides)
        if isinstance(it, np.ndarray)
        else it.as_strided((num_rows, *it.shape[1:]), it.stride())
        for it in (first.padded_inputs, first.padded_targets, first.padded_weights)
    )
    return inputs, targets, weights


def _first_rows(samples: Sequence[VirtualRankSamples]) -> list[int]:
    """Return the index of each virtual rank's first row in the memory that holds the samples of all."""
    if _share_memory(samples):
        return [0] * len(samples)
    own = [0]
    for before, after in itertools.pairwise(samples):
        own.append(own[-1] + len(before) + 1)
        expected = address_of(before.padded_inputs) + before.padded_inputs.nbytes
        if address_of(after.padded_inputs) != expected:
            raise ValueError("the virtual ranks' samples are not contiguous in memory")
    return own


def _share_memory(samples: Sequence[VirtualRankSamples]) -> bool:
    """Return whether all virtual ranks' samples are rows, given by `places`, of the same arrays."""
    return all(one.places is not None and one.padded_inputs is samples[0].padded_inputs for one in samples)
