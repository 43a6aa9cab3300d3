"""Samples that many runs train on, held once per node: every run has its own view of which are held out.

N  usable samples      F  input features      O  targets      V  virtual ranks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Ranks, VirtualRanks
from mpitrain.comm.communicator import NodeSharedArray
from mpitrain.data.dataset.batches import VirtualRankSamples, members_of
from mpitrain.data.dataset.dataset import (
    DataSummary,
    LayoutOfSamples,
    check_some_are_left,
    normalization_of,
    settled,
)
from mpitrain.data.dataset.exchange import offset_of, read_own_chunks
from mpitrain.data.dataset.in_memory import Column, InMemoryDataset, padded_columns
from mpitrain.data.dataset.split_rule import TRAINING, VALIDATION, IndexArray, SplitRule
from mpitrain.data.moments import allreduce_moments, moments_of_samples
from mpitrain.data.samples import Samples, missing_of, valid_rows
from mpitrain.data.selection.source import SampleSource


@dataclass(frozen=True)
class SharedSamples:
    """All usable samples of a source, in its order, in memory that the ranks of a node share.

    `padded` are inputs (N + 1, F), targets (N + 1, O) and weights (N + 1, 1), with zeros in the last row; `samples` is
    a view of the first N rows.
    """

    samples: Samples
    padded: tuple[Column, Column, Column]
    num_selected: int
    num_missing: tuple[int, ...]
    memory: Sequence[NodeSharedArray]

    @property
    def num_bytes(self) -> int:
        """The bytes of memory that the samples take on a node."""
        return sum(column.nbytes for column in self.padded)

    def dataset(self, rule: SplitRule, layout: LayoutOfSamples, ranks: Ranks) -> InMemoryDataset:
        """Return the data set of a run on `ranks`, with the same values as `distribute` but without a copy. Collective.

        Raises DataError, on all ranks, if nothing is left to train on.
        """
        num_dropped = self.num_selected - len(self.samples)
        roles = rule.roles(self.samples.grid_index, 0)
        training, held_out = (np.flatnonzero(roles == role) for role in (TRAINING, VALIDATION))
        ranks.on_all_ranks(lambda: check_some_are_left(self.num_selected, num_dropped, len(training)))
        virtual_ranks = settled(layout, len(self.samples), len(training))
        own = [self._places(training, v, virtual_ranks) for v in virtual_ranks.owned]
        moments = allreduce_moments(
            [moments_of_samples(self.samples.take(places[:-1])) for places in own], ranks.cpu, virtual_ranks
        )
        names = self.samples.input_names, self.samples.target_names
        normalization = normalization_of(moments, len(names[0]), self.padded[0].dtype)
        return InMemoryDataset(
            [self._view(v, places) for v, places in zip(virtual_ranks.owned, own, strict=True)],
            [self._view(v, self._places(held_out, v, virtual_ranks)) for v in virtual_ranks.owned],
            DataSummary(
                len(training), len(held_out), num_dropped, normalization, moments, *names, self.num_missing,
                split=rule, num_test_samples=len(roles) - len(training) - len(held_out),
            ),
            virtual_ranks,
        )  # fmt: skip

    def _places(self, chosen: IndexArray, virtual_rank: int, layout: VirtualRanks) -> IndexArray:
        """Return the rows of a virtual rank's share of the samples `chosen`, followed by the row of zeros."""
        own = chosen[members_of(virtual_rank, layout.num_virtual_ranks, len(chosen))]
        return np.append(own, len(self.samples))

    def _view(self, virtual_rank: int, places: IndexArray) -> VirtualRankSamples:
        grid_index = self.samples.grid_index[places[:-1]]
        return VirtualRankSamples(virtual_rank, *self.padded, grid_index, places)

    def close(self) -> None:
        """Free the memory, which must not be accessed afterwards. Collective over the node."""
        for shared in self.memory:
            shared.close()


def share_on_node(source: SampleSource, node: Ranks, dtype: npt.DTypeLike) -> SharedSamples:
    """Read the points of `source` with all ranks of one node into memory that they share. Collective over the node.

    Raises DataError, on all of them, if a file cannot be read or nothing is left to train on, LaunchError if the node
    lacks the memory.
    """
    own = read_own_chunks(source, node)
    kept = own.take(np.flatnonzero(valid_rows(own)))
    selected, usable = offset_of(len(own), node), offset_of(len(kept), node)
    num_missing = np.sum(node.gather_object(missing_of(own)), axis=0)
    no_mean = np.empty(0)  # points need no mean: it replaces missing values of fields
    columns = padded_columns(kept, no_mean, dtype)
    memory = _SharedMemory(node, usable.first, usable.total)
    inputs, targets, weights = (memory.gather(column[:-1], 1) for column in columns)
    area = None if kept.area_weights is None else memory.gather(kept.area_weights, 0)
    grid_index = memory.gather(kept.grid_index, 0)
    memory.publish()
    whole = Samples(inputs[:-1], targets[:-1], grid_index, own.input_names, own.target_names, area_weights=area)
    return SharedSamples(whole, (inputs, targets, weights), selected.total, tuple(num_missing.tolist()), memory.shared)


class _SharedMemory:
    """Rows of all ranks of a node in rank order; those of this rank begin at `first` of `total`."""

    def __init__(self, node: Ranks, first: int, total: int) -> None:
        self._node, self._first, self._total = node, first, total
        self.shared: list[NodeSharedArray] = []

    def gather(self, rows: Column, num_more: int) -> Column:
        """Return all ranks' rows and `num_more` rows of zeros, which are valid after `publish`. Collective."""
        shape = (self._total + num_more, *rows.shape[1:])
        if self._node.world_size == 1:
            return np.concatenate([rows, np.zeros((num_more, *rows.shape[1:]), rows.dtype)])
        shared = self._node.cpu.node_shared_array(shape, rows.dtype)
        self.shared.append(shared)
        shared.array[self._first : self._first + len(rows)] = rows
        if shared.fills:
            shared.array[self._total :] = 0
        return shared.array

    def publish(self) -> None:
        """Make all rows visible to all ranks. Collective."""
        for shared in self.shared:
            shared.publish()
