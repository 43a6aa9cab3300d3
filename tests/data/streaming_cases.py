"""A small gridded file whose points tell their own number, and what ranks played by threads see of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from field_files import config_of, write_xy
from played_ranks import on_played_ranks, played_ranks_of

from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.data.dataset.batches import BatchPlan, plan_batches
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.data.streaming.dataset import StreamedDataset, open_streamed

V = 8
SHAPE = (60, 6, 8)  # 2880 points
CHUNK_BYTES = 400


def write_numbers(path, shape=SHAPE, missing=()):
    """`x` holds each point's number, `y` its half; `missing` of them are NaN in `y`."""
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    y = x / 2
    y.reshape(-1)[list(missing)] = np.nan
    return write_xy(path, x, y, chunks={"x": (1, *shape[1:]), "y": (1, *shape[1:])})


@dataclass
class Seen:
    """One rank's data, and the slices of its virtual ranks."""

    data: StreamedDataset
    plan: BatchPlan
    slices: dict[int, list]


def stream(
    path, num_ranks, *settings, epoch=0, first_step=0, batch=64, dtype="float32", buffer=100, v=V, streams=None
):  # fmt: skip
    """What each of `num_ranks` ranks sees of an epoch from a step on.

    A batch is computed in `v` microbatches, and read in as many `streams` where these are None.
    """
    given = (f"data.shuffle_buffer_samples={buffer}", "data.streaming=true", *settings)
    config = config_of(path, *given)

    def body(communicator):
        ranks = played_ranks_of(communicator)
        source = ranks.on_root(lambda: open_source(selection_of(config), CHUNK_BYTES))
        data = open_streamed(
            source, ranks, VirtualRanks(v, num_ranks, communicator.rank, streams), config.split_data, dtype
        )
        plan = plan_batches(data.summary.num_training_samples, batch, v, data.summary.largest_share)
        sources = data.microbatches(plan, config.seed, config.shuffle)
        for one in sources:
            one.start_epoch(epoch, first_step)
        steps = range(first_step, plan.steps_per_epoch)
        slices = {one.virtual_rank: [one.microbatch(step) for step in steps] for one in sources}
        return Seen(data, plan, slices)

    return on_played_ranks(num_ranks, body)


def joined(parts) -> dict[int, list]:
    """All ranks' slices by virtual rank."""
    return {v: slices for part in parts for v, slices in part.slices.items()}


def numbers_of(slices) -> list[int]:
    """The points' numbers of slices, in order, without padding."""
    return [int(x) for piece in slices for x, w in zip(piece.inputs[:, 0], piece.weights[:, 0], strict=True) if w > 0]
