"""All transports of tensors between the ranks, open in one run, to compare their speed."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from mpitrain.comm.device import Device, choose_device
from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.comm.mpi.process_group import BACKEND_NAME, register_mpi_backend
from mpitrain.comm.ranks import Ranks
from mpitrain.comm.tcp.meeting import open_store_over, use_loopback_for_gloo, wait_until_all_reach
from mpitrain.errors import LaunchError

if TYPE_CHECKING:
    from mpi4py import MPI

Call = Callable[[], object]
# The first names are those of torch 2.13, which deprecates the second ones; earlier versions have only the latter.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass(frozen=True)
class Transport:
    """One transport: "mpi4py" (called directly), "mpi" (through torch.distributed), "gloo" or "nccl".

    `prepare(collective, sent, received)` returns a function that runs one collective: "all_reduce", "broadcast",
    "all_gather", "reduce_scatter", "all_to_all" or "exchange". "all_reduce" and "broadcast" (root: rank 0) are in place
    on `received`. In "exchange" each rank sends to the next rank and receives from the previous one.
    """

    name: str
    device: torch.device | Device
    prepare: Callable[[str, torch.Tensor, torch.Tensor], Call]

    def finish(self) -> None:
        """Wait for all pending operations on this rank's device. Not collective."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def available_transports(ranks: Ranks) -> tuple[str, ...]:
    """Return the available transports, the same on all ranks; nccl only if each rank has its own GPU. Collective."""
    gpus = ranks.cpu.all_gather_object(_own_gpu(ranks))
    has_gpus = all(gpus) and len(set(gpus)) == len(gpus)
    through_mpi = ("mpi4py", "mpi") if isinstance(ranks.cpu, MpiCommunicator) else ()
    return (*through_mpi, "gloo", *(("nccl",) if has_gpus else ()))


def _own_gpu(ranks: Ranks) -> str:
    try:
        return choose_device("cuda", ranks.local_rank).gpu or ""
    except LaunchError:
        return ""


def start_transports(ranks: Ranks, names: Sequence[str], timeout_s: float) -> list[Transport]:
    """Start the transports `names`, which must be available. Collective.

    torch.distributed's default group is initialised; `run_on_all_ranks` destroys it.
    """
    control, timeout = ranks.cpu, datetime.timedelta(seconds=timeout_s)
    if isinstance(control, MpiCommunicator):
        if ranks.num_nodes == 1:
            use_loopback_for_gloo()
        register_mpi_backend(control.mpi_comm)
        store = open_store_over(control, timeout, ranks.num_nodes == 1)
        dist.init_process_group(BACKEND_NAME, store=store, rank=control.rank, world_size=control.size, timeout=timeout)
        wait_until_all_reach(store, control, "started")
    return [_start(ranks, name, timeout) for name in names]


def _start(ranks: Ranks, name: str, timeout: datetime.timedelta) -> Transport:
    control, cpu = ranks.cpu, torch.device("cpu")
    if name == "mpi4py" and isinstance(control, MpiCommunicator):
        comm = control.mpi_comm
        return Transport(name, cpu, lambda *arguments: prepare_bare(comm, *arguments))
    device = choose_device("cuda", ranks.local_rank) if name == "nccl" else cpu
    if name == "nccl":
        torch.cuda.set_device(device)
    group = None if name == "mpi" else dist.new_group(backend=name, timeout=timeout)
    return Transport(name, device, lambda *arguments: _prepare_in_group(group, *arguments))


def prepare_bare(comm: MPI.Intracomm, collective: str, sent: torch.Tensor, received: torch.Tensor) -> Call:
    """Implement `Transport.prepare` with mpi4py on `comm`."""
    from mpi4py import MPI

    source, target = sent.numpy(), received.numpy()
    after, before = (comm.Get_rank() + 1) % comm.Get_size(), (comm.Get_rank() - 1) % comm.Get_size()
    calls: dict[str, Call] = {
        "all_reduce": lambda: comm.Allreduce(MPI.IN_PLACE, target),
        "broadcast": lambda: comm.Bcast(target, 0),
        "all_gather": lambda: comm.Allgather(source, target),
        "reduce_scatter": lambda: comm.Reduce_scatter_block(source, target),
        "all_to_all": lambda: comm.Alltoall(source, target),
        "exchange": lambda: comm.Sendrecv(source, after, recvbuf=target, source=before),
    }
    return calls[collective]


def _prepare_in_group(
    group: dist.ProcessGroup | None, collective: str, sent: torch.Tensor, received: torch.Tensor
) -> Call:
    size, rank = dist.get_world_size(group), dist.get_rank(group)
    # All-to-all instead of send and recv, which would deadlock if a backend's send blocks.
    to_next, from_before = (
        [sent.numel() if other == chosen % size else 0 for other in range(size)] for chosen in (rank + 1, rank - 1)
    )
    calls: dict[str, Call] = {
        "all_reduce": lambda: dist.all_reduce(received, group=group),
        "broadcast": lambda: dist.broadcast(received, 0, group=group),
        "all_gather": lambda: _all_gather(received, sent, group=group),
        "reduce_scatter": lambda: _reduce_scatter(received, sent, group=group),
        "all_to_all": lambda: dist.all_to_all_single(received, sent, group=group),
        "exchange": lambda: dist.all_to_all_single(received, sent, from_before, to_next, group=group),
    }
    return calls[collective]
