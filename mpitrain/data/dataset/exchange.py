"""Reading and distribution of samples: each chunk of a source is read by one rank, then samples go to their owners.

N  samples      C  chunks of the source      V  virtual ranks      P  real ranks      v, i  a virtual rank, a sample
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mpitrain.comm import Ranks, VirtualRanks
from mpitrain.comm.virtual_ranks import owner_of, rank_range
from mpitrain.data.formats.open import OnFile
from mpitrain.data.samples import NONE_LEFT_OUT, IndexArray, LeftOut, Samples, concatenate, is_measured, valid_rows
from mpitrain.data.selection.opening import DEFAULT_CHUNK_BYTES, open_source
from mpitrain.data.selection.settings import Selection
from mpitrain.data.selection.source import SampleSource

AnyArray = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Offset:
    """The position of this rank's samples in the sequence of all ranks' samples: from `first`, of `total`."""

    first: int
    total: int


def offset_of(count: int, ranks: Ranks) -> Offset:
    """Return the position of this rank's `count` samples among all ranks' samples in rank order. Collective."""
    counts = ranks.gather_object(count)
    return Offset(sum(counts[: ranks.rank]), sum(counts))


def total_left_out(ranks: Ranks, samples: Samples) -> LeftOut:
    """Return the numbers of points that are left out in all ranks' parts of a selection. Collective."""
    counts = ranks.gather_object(tuple(samples.left_out))
    return LeftOut(*np.sum(counts, axis=0).tolist())


def open_source_on_root(selection: Selection, ranks: Ranks, target_bytes: int = DEFAULT_CHUNK_BYTES) -> SampleSource:
    """Open the files of `selection` on the root, and return the source on every rank. Collective.

    Parameters
    ----------
    selection : Selection
        The files and the settings; that of the root is used.
    ranks : Ranks
        All ranks of the run.
    target_bytes : int
        Size of a chunk in bytes; default 8 MiB (see `open_source`).

    Returns
    -------
    SampleSource
        Equal on all ranks. Each rank opens the files when it first reads from them.

    Raises
    ------
    DataError
        A file cannot be used, or the settings select no point.
    ConfigError, MissingVariableError, MissingDependencyError
        As `open_source`.

    Notes
    -----
    Collective. An error of the root is raised on all ranks.
    """
    return ranks.on_root(lambda: _open(selection, target_bytes, ranks.watch.note_file))


def _open(selection: Selection, target_bytes: int, on_file: OnFile) -> SampleSource:
    source = open_source(selection, target_bytes, on_file=on_file)
    if not source.chunks:  # there are no chunks if no row has a point that the rule can select
        source.check_selection(0, [])
    return source


def read_own_chunks(source: SampleSource, ranks: Ranks) -> Samples:
    """Read this rank's share of the source's chunks; return its samples that `max_patterns` keeps. Collective.

    The samples of all ranks, in rank order, are the selection in the order of the source. Raises DataError, on all
    ranks, if a file cannot be read, or nothing was selected.
    """
    own = [source.chunks[number] for number in rank_range(len(source.chunks), ranks.world_size, ranks.rank)]
    samples = ranks.on_all_ranks(lambda: concatenate([source.read(chunk) for chunk in own] or [no_samples(source)]))
    source.close()
    offset = offset_of(len(samples), ranks)
    _check_selection(source, samples, offset.total, ranks)
    return keep_under_limit(source, samples, offset.first, offset.total)


def count_usable(source: SampleSource, ranks: Ranks) -> int:
    """Return how many samples of `source` can be trained on or held out; reads all of it. Collective.

    Raises DataError, on all ranks, if a file cannot be read.
    """
    own = [source.chunks[number] for number in rank_range(len(source.chunks), ranks.world_size, ranks.rank)]
    count = ranks.on_all_ranks(lambda: sum(int(valid_rows(source.read(chunk)).sum()) for chunk in own))
    source.close()
    total = int(sum(ranks.gather_object(count)))
    return total if source.max_patterns is None else min(total, source.max_patterns)


def keep_under_limit(source: SampleSource, samples: Samples, first_selected: int, total_selected: int) -> Samples:
    """Return those of the selected `samples` that `max_patterns` keeps; `first_selected` others come before them."""
    if source.max_patterns is None or total_selected <= source.max_patterns:
        return samples
    numbers = first_selected + np.arange(len(samples), dtype=np.int64)
    return samples.take(np.flatnonzero(source.keeps(numbers, total_selected)))


def no_samples(source: SampleSource) -> Samples:
    """Return an empty set of samples, of the source's shapes, for a rank without a chunk."""
    return replace(source.read(source.chunks[0]).take(np.empty(0, dtype=np.int64)), left_out=NONE_LEFT_OUT)


def _check_selection(source: SampleSource, samples: Samples, num_selected: int, ranks: Ranks) -> None:
    counts = [int(is_measured(column).sum()) for column in samples.features]
    totals = np.sum(ranks.gather_object(counts), axis=0)
    ranks.on_all_ranks(lambda: source.check_selection(num_selected, totals.tolist()))


def take_share(samples: Samples, ranks: Ranks) -> Samples:
    """Return this rank's part of `samples`, all of which every rank holds. Not collective."""
    own = rank_range(len(samples), ranks.world_size, ranks.rank)
    return samples.take(np.arange(own.start, own.stop))


def send_to_virtual_ranks(samples: Samples, ranks: Ranks, virtual_ranks: VirtualRanks) -> dict[int, Samples]:
    """Send sample number i to the owner of virtual rank i mod V; return each owned v's samples, in order. Collective.

    `samples` are this rank's part of the sequence of all ranks' samples; names and shapes agree on all ranks.
    """
    offset = offset_of(len(samples), ranks)
    which = (offset.first + np.arange(len(samples))) % virtual_ranks.num_virtual_ranks
    arrived, labels = send_to_ranks(samples, owner_of(which, virtual_ranks), which, ranks)
    return {v: arrived.take(np.flatnonzero(labels == v)) for v in virtual_ranks.owned}


def send_to_ranks(
    samples: Samples, destinations: IndexArray, labels: IndexArray, ranks: Ranks
) -> tuple[Samples, IndexArray]:
    """Send each of N samples, with its label (N,), to its rank in `destinations` (N,). Collective.

    Returns the samples and labels that this rank receives, in the order of the sequence of all ranks' samples: blocks
    arrive in rank order, and each keeps its own order.
    """
    if ranks.world_size == 1:
        return samples, labels
    order = np.argsort(destinations, kind="stable")  # stable: samples for the same rank keep their order
    send_counts = np.bincount(destinations, minlength=ranks.world_size).tolist()
    receive_counts = [counts[ranks.rank] for counts in ranks.gather_object(send_counts)]

    def exchange(rows: AnyArray) -> AnyArray:
        return np.asarray(ranks.cpu.all_to_all_rows(np.ascontiguousarray(rows), send_counts, receive_counts))

    return samples.take(order).changed(exchange), exchange(labels[order]).astype(np.int64)
