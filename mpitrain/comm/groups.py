"""Groups of ranks: parts of the world that train independently, each with its own `Ranks`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from mpitrain.cluster.rank_info import rank_info_from_hosts
from mpitrain.comm.agreement import mark_agreed
from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.comm.ranks import Ranks
from mpitrain.comm.virtual_ranks import rank_range
from mpitrain.errors import LaunchError

if TYPE_CHECKING:
    from mpi4py import MPI


def split_into_groups(world: Ranks, num_groups: int) -> Ranks:
    """Return the ranks of this rank's group: contiguous in the world, sizes differ by one at most. Collective.

    Device, backend and threads are those of `world`: choose them first. Raises LaunchError, on all ranks, if the ranks
    do not use MPI.
    """
    groups = (rank_range(world.world_size, num_groups, group) for group in range(num_groups))
    return _split(world, next(number for number, own in enumerate(groups) if world.rank in own))


def split_into_nodes(world: Ranks) -> Ranks:
    """Return the ranks of this rank's node. Collective. Raises LaunchError like `split_into_groups`."""
    return _split(world, world.node_rank)


def _split(world: Ranks, color: int) -> Ranks:
    if world.world_size == 1:
        return replace(world, notices=[])
    if not isinstance(world.cpu, MpiCommunicator):
        raise mark_agreed(
            LaunchError(
                "an ensemble needs MPI between the ranks; start with mpirun or srun --mpi=pmi2 (or pmix), or start a "
                "single rank"
            )
        )
    part = cast("MPI.Intracomm", world.cpu.mpi_comm.Split(color, world.rank))
    own = MpiCommunicator(part)
    part.Free()
    own.is_patient = world.cpu.is_patient
    nodes = own.all_gather_object(str(world.node_rank))
    info = rank_info_from_hosts(own.rank, nodes, world.info.source)
    # The group's share of the node's cores, so that oversubscription is detected within the group.
    cores = max(1, world.node_cores * info.local_world_size // world.local_world_size)
    return replace(world, info=info, cpu=own, tensors=own, notices=[], node_cores=cores)
