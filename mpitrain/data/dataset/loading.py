"""From a source to this rank's run of its samples: each chunk is read by one rank.

N  samples      C  chunks of the source      P  ranks
"""

from __future__ import annotations

import numpy as np

from mpitrain.comm.session import Session
from mpitrain.comm.virtual_ranks import rank_range
from mpitrain.config import RunConfig
from mpitrain.data.dataset.ownership import run_of
from mpitrain.data.samples import Samples, concatenate, is_measured
from mpitrain.data.selection.source import DEFAULT_CHUNK_BYTES, SampleSource, open_source


def open_source_together(config: RunConfig, session: Session, target_bytes: int = DEFAULT_CHUNK_BYTES) -> SampleSource:
    """Open the files of `config` on the root, and return the source on every rank. Collective.

    A chunk holds about `target_bytes` (see `open_source`).

    Raises DataError, on all ranks, where a file cannot serve.
    """
    return session.on_root(lambda: _open(config, target_bytes))


def _open(config: RunConfig, target_bytes: int) -> SampleSource:
    source = open_source(config, target_bytes)
    if not source.chunks:  # rows without a point that the rules could select are not even planned
        source.check_selection(0, [])
    return source


def read_run(source: SampleSource, session: Session) -> Samples:
    """Read this rank's run of the source's chunks; return its samples, all of them under `max_patterns`. Collective.

    The ranks' runs, laid end to end, are the selection in the order of the source. Raises DataError, on all ranks,
    where a file cannot be read, or nothing was selected.
    """
    own = rank_range(len(source.chunks), session.ranks.world_size, session.ranks.rank)
    samples = session.together(lambda: concatenate([source.read(source.chunks[c]) for c in own] or [_none(source)]))
    source.close()
    run = run_of(len(samples), session)
    _check_selection(source, samples, run.total, session)
    numbers = run.first + np.arange(len(samples))
    if source.max_patterns is None or run.total <= source.max_patterns:
        return samples
    return samples.take(np.flatnonzero(source.keeps(numbers, run.total)))


def _none(source: SampleSource) -> Samples:
    """Return no samples, of the source's shapes, for a rank without a chunk."""
    return source.read(source.chunks[0]).take(np.empty(0, dtype=np.int64))


def _check_selection(source: SampleSource, samples: Samples, num_selected: int, session: Session) -> None:
    columns = (array[:, c] for array in (samples.inputs, samples.targets) for c in range(array.shape[1]))
    counts = [int(is_measured(column).sum()) for column in columns]
    totals = np.sum(session.gather_object(counts), axis=0)
    session.together(lambda: source.check_selection(num_selected, totals.tolist()))
