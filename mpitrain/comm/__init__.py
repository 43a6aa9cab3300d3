"""Ranks and collectives: the only subpackage that imports mpi4py or torch.distributed."""

from typing import TYPE_CHECKING

from mpitrain.faces import lazy_attributes

if TYPE_CHECKING:
    from mpitrain.comm.agent.arrival import watching_start
    from mpitrain.comm.agreement import mark_agreed
    from mpitrain.comm.arrays import Array, address_of, host_array, require_torch, set_values, to_tensor
    from mpitrain.comm.device import Device
    from mpitrain.comm.ranks import Ranks
    from mpitrain.comm.reduction import FixedTreeReducer, Reducer
    from mpitrain.comm.start import run_on_all_ranks
    from mpitrain.comm.tensors import open_tensors
    from mpitrain.comm.virtual_ranks import VirtualRanks
else:
    __getattr__ = lazy_attributes(
        __name__,
        {
            "agent.arrival": ("watching_start",),
            "agreement": ("mark_agreed",),
            "arrays": ("Array", "address_of", "host_array", "require_torch", "set_values", "to_tensor"),
            "device": ("Device",),
            "ranks": ("Ranks",),
            "reduction": ("FixedTreeReducer", "Reducer"),
            "start": ("run_on_all_ranks",),
            "tensors": ("open_tensors",),
            "virtual_ranks": ("VirtualRanks",),
        },
    )
