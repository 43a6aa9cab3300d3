"""The place that the launcher's variables give this process before it has met the others, and one message of all."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

from mpitrain.cluster.launchers import claimed_rank, read_claims, without_inherited
from mpitrain.cluster.rank_info import RankClaim
from mpitrain.errors import LaunchError

PRINT_WITHIN_S = 1.0


@dataclass(frozen=True)
class Place:
    """What the launcher's variables say of this process; `problem` is what is wrong with them."""

    rank: int
    world_size: int
    is_launched: bool
    is_one_node: bool
    problem: str = ""


def read_place(environ: Mapping[str, str]) -> Place:
    """Read what the launcher says: before MPI is started, which may already hang."""
    try:
        claims = without_inherited(read_claims(environ), environ)
    except LaunchError as error:
        return Place(claimed_rank(environ), 1, True, True, str(error))
    told = [claim for claim in claims if claim.rank is not None]
    largest = max(told, key=lambda claim: claim.world_size or 1, default=None)
    if largest is None:
        return Place(0, 1, False, True)
    world_size = largest.world_size or 1
    # PMI's variables, which know nothing of nodes, stand beside Slurm's and Flux's, which do.
    of_launch = [claim for claim in told if claim.world_size in (None, world_size)]
    return Place(largest.rank or 0, world_size, True, all(_is_one_node(claim, world_size) for claim in of_launch))


def _is_one_node(claim: RankClaim, world_size: int) -> bool:
    if claim.num_nodes is not None:
        return claim.num_nodes == 1
    return (claim.local_world_size or world_size) == world_size


def say_once_before_ranks_meet(text: str, environ: Mapping[str, str]) -> None:
    """Print `text` on standard error from the process whose launcher calls it rank 0; the others wait a moment.

    No barrier can order processes that have not met. The launcher may kill rank 0 as soon as another one exits with
    an error, so the others give it the time to print.
    """
    if claimed_rank(environ) == 0:
        print(text, file=sys.stderr, flush=True)  # noqa: T201
    else:
        time.sleep(PRINT_WITHIN_S)
