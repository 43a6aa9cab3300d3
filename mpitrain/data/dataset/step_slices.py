"""The slices of a step, of all of a rank's virtual ranks at once: one indexing a column where they lie in one memory.

k  slices of this rank      c  those asked for      b  rows a slice      n  rows of all virtual ranks in one memory
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from mpitrain.data.dataset.batches import Slice, SliceSource, VirtualRankBatches, VirtualRankSamples

_ALL = slice(None)
Columns = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class StepSlices:
    """The slices of several sources, each read by itself."""

    def __init__(self, sources: Sequence[SliceSource]) -> None:
        self.sources = sources

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """See `SliceSource.start_epoch`, of all sources."""
        for source in self.sources:
            source.start_epoch(epoch, first_step)

    def apart(self, step: int) -> list[Slice]:
        """Return the slices one by one."""
        return [source.slice(step) for source in self.sources]

    def stacked(self, step: int, chosen: slice = _ALL) -> Slice:
        """Return the `chosen` ones of the k slices as tensors (c, b, ...) of their own, with the first's number."""
        pieces = [source.slice(step) for source in self.sources[chosen]]
        columns = zip(*((piece.inputs, piece.targets, piece.weights) for piece in pieces), strict=True)
        return Slice(pieces[0].virtual_rank, *map(torch.stack, columns))

    def joined(self, step: int) -> Slice:
        """Return one slice of all rows (k b, ...), which carries the first one's virtual rank."""
        whole = self.stacked(step)
        return Slice(whole.virtual_rank, *(it.flatten(0, 1) for it in (whole.inputs, whole.targets, whole.weights)))


class StepSlicesInMemory(StepSlices):
    """The slices of sources whose samples lie in one memory: `columns` (n, ...), of which `order` (steps, k, b) tells.

    Raises ValueError where they lie elsewhere.
    """

    def __init__(self, sources: Sequence[VirtualRankBatches]) -> None:
        super().__init__(sources)
        samples = [source.samples for source in sources]
        self._batches, self._first_rows = sources, _first_rows(samples)
        num_rows = self._first_rows[-1] + len(samples[-1].padded_inputs)
        first = samples[0]
        columns = first.padded_inputs, first.padded_targets, first.padded_weights
        self.columns = tuple(it.as_strided((num_rows, *it.shape[1:]), it.stride()) for it in columns)
        steps, rows = sources[0].epoch_rows().shape
        # [step][slice][row], so that the slices of a step, joined or not, follow one another.
        self.order = torch.zeros((steps, len(sources), rows), dtype=torch.int64)
        self._is_laid_out = False

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """See `SliceSource.start_epoch`, of all sources."""
        super().start_epoch(epoch, first_step)
        self._is_laid_out = False

    def lay_out(self) -> torch.Tensor:
        """Return `order`, as it is in this epoch."""
        if not self._is_laid_out:
            self._is_laid_out = True
            for column, (source, first_row) in enumerate(zip(self._batches, self._first_rows, strict=True)):
                torch.add(source.epoch_rows(), first_row, out=self.order[:, column])
        return self.order

    def stacked(self, step: int, chosen: slice = _ALL) -> Slice:
        """See `StepSlices.stacked`."""
        rows = self.lay_out()[step, chosen]
        return Slice(self._batches[chosen][0].virtual_rank, *(column[rows] for column in self.columns))


def open_step_slices(sources: Sequence[SliceSource]) -> StepSlices:
    """Return the slices of `sources`, read at once where they are in memory."""
    in_memory = [source for source in sources if isinstance(source, VirtualRankBatches)]
    return StepSlicesInMemory(in_memory) if len(in_memory) == len(sources) else StepSlices(sources)


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
