"""Rank and world size from the launcher's variables, before the ranks are connected; printing an error only once."""

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
    """Rank and world size of this process by the launcher's variables.

    Attributes
    ----------
    rank : int
        Rank of this process, from 0.
    world_size : int
        Number of ranks; 1 if no variable contains it.
    is_launched : bool
        Whether a launcher's variables contain a rank, or are wrong.
    is_one_node : bool
        Whether all ranks are on one node, as far as the variables show it.
    problem : str
        Message about wrong variables, or empty. If not empty, `world_size` is 1 and `is_one_node` True.
    """

    rank: int
    world_size: int
    is_launched: bool
    is_one_node: bool
    problem: str = ""


def read_place(environ: Mapping[str, str]) -> Place:
    """Return the place of this process by the launcher's variables, without MPI, since MPI_Init may hang.

    Parameters
    ----------
    environ : mapping of str to str
        Environment variables of the process.

    Returns
    -------
    Place
        Rank and world size of the launcher with the largest world size, for example if mpirun was started inside a
        Slurm step; rank 0 of 1 without a launcher.

    Notes
    -----
    Not collective. Wrong variables raise no exception: `Place.problem` contains the message. Whether MPI agrees is
    checked later, by `run_on_all_ranks`.
    """
    try:
        claims = without_inherited(read_claims(environ), environ)
    except LaunchError as error:
        return Place(claimed_rank(environ), 1, True, True, str(error))
    with_rank = [claim for claim in claims if claim.rank is not None]
    largest = max(with_rank, key=lambda claim: claim.world_size or 1, default=None)
    if largest is None:
        return Place(0, 1, False, True)
    world_size = largest.world_size or 1
    # PMI's variables contain no number of nodes; those of Slurm and Flux, which may be set too, do.
    of_launch = [claim for claim in with_rank if claim.world_size in (None, world_size)]
    return Place(largest.rank or 0, world_size, True, all(_is_one_node(claim, world_size) for claim in of_launch))


def _is_one_node(claim: RankClaim, world_size: int) -> bool:
    if claim.num_nodes is not None:
        return claim.num_nodes == 1
    return (claim.local_world_size or world_size) == world_size


def print_once_before_connection(text: str, environ: Mapping[str, str]) -> None:
    """Print `text` on standard error if the launcher's variables have rank 0; other ranks sleep for PRINT_WITHIN_S.

    There is no barrier before the ranks are connected, and the launcher may kill rank 0 as soon as another rank exits
    with an error: the sleep gives rank 0 the time to print.
    """
    if claimed_rank(environ) == 0:
        print(text, file=sys.stderr, flush=True)  # noqa: T201
    else:
        time.sleep(PRINT_WITHIN_S)
