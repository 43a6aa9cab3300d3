"""From the run of samples that a rank has read to the samples that its virtual ranks own.

V  virtual ranks      P  real ranks      v, i  one virtual rank, the number of one sample
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from mpitrain.comm.session import Session
from mpitrain.comm.virtual_ranks import VirtualRanks, owner_of, rank_range
from mpitrain.data.samples import Samples

IndexArray = npt.NDArray[np.int64]
AnyArray = npt.NDArray[np.generic]


@dataclass(frozen=True)
class Run:
    """Where this rank's samples lie in the sequence of all ranks' samples: from `first`, of `total`."""

    first: int
    total: int


def run_of(count: int, session: Session) -> Run:
    """Return the place of this rank's `count` samples when the ranks' runs are laid end to end. Collective."""
    counts = session.gather_object(count)
    return Run(sum(counts[: session.ranks.rank]), sum(counts))


def take_run(samples: Samples, session: Session) -> Samples:
    """Return this rank's run of `samples`, which every rank holds whole. Not collective."""
    own = rank_range(len(samples), session.ranks.world_size, session.ranks.rank)
    return samples.take(np.arange(own.start, own.stop))


def send_to_owners(samples: Samples, session: Session, virtual_ranks: VirtualRanks) -> dict[int, Samples]:
    """Send sample number i to the owner of virtual rank i mod V; return each owned v's samples, in order. Collective.

    `samples` is this rank's run of a sequence that all ranks hold together; names and shapes must agree on all ranks.
    """
    run = run_of(len(samples), session)
    numbers = run.first + np.arange(len(samples))
    which = numbers % virtual_ranks.num_virtual_ranks
    if session.ranks.world_size == 1:
        return {v: samples.take(np.flatnonzero(which == v)) for v in virtual_ranks.owned}
    # Owners hold runs of virtual ranks: sorted by v, what goes to one rank lies together.
    order = np.argsort(which, kind="stable")
    sent = samples.take(order)
    destinations = owner_of(which[order], virtual_ranks)
    send_counts = np.bincount(destinations, minlength=session.ranks.world_size).tolist()
    receive_counts = [counts[session.ranks.rank] for counts in session.gather_object(send_counts)]

    def exchange(rows: AnyArray) -> AnyArray:
        tensor = torch.from_numpy(np.ascontiguousarray(rows))
        received: AnyArray = session.control.all_to_all_rows(tensor, send_counts, receive_counts).numpy()
        return received

    received = sent.changed(exchange)
    arrived = exchange(numbers[order]).astype(np.int64) % virtual_ranks.num_virtual_ranks
    # Blocks arrive in rank order and each is in order: so is what is left of them for one v.
    return {v: received.take(np.flatnonzero(arrived == v)) for v in virtual_ranks.owned}
