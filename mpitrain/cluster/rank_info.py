"""Rank, world size and node of a process: the claim of one source, and the final result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mpitrain.errors import LaunchError


@dataclass(frozen=True)
class RankInfo:
    """Final rank numbers of this process. All counts are at least 1; all ranks start from 0."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    source: str


@dataclass(frozen=True)
class RankClaim:
    """Rank numbers of this process by one source (MPI, or a launcher's variables); None if the source has no value."""

    source: str
    rank: int | None = None
    world_size: int | None = None
    local_rank: int | None = None
    local_world_size: int | None = None
    node_rank: int | None = None
    num_nodes: int | None = None
    variables: tuple[str, ...] = ()


def rank_info_from_hosts(rank: int, hosts: Sequence[str], source: str) -> RankInfo:
    """Return the rank numbers of `rank` from the host names of all ranks, in rank order.

    Nodes are numbered in the order of their first ranks. Works for uneven layouts and for launchers that set no local
    rank. Raises LaunchError if `rank` is outside the list.
    """
    if not 0 <= rank < len(hosts):
        raise LaunchError(f"rank {rank} of {source}: {len(hosts)} host names were gathered; gather one from every rank")
    host = hosts[rank]
    nodes = list(dict.fromkeys(hosts))
    return RankInfo(
        rank=rank,
        world_size=len(hosts),
        local_rank=sum(1 for other in hosts[:rank] if other == host),
        local_world_size=sum(1 for other in hosts if other == host),
        node_rank=nodes.index(host),
        num_nodes=len(nodes),
        source=source,
    )
