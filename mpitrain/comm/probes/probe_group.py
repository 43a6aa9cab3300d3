"""A torch.distributed group for a short look at one backend: short time limits, no watchdog, given back at once."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from mpitrain.comm.communicator import Communicator
from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.comm.mpi.process_group import BACKEND_NAME, register_mpi_backend
from mpitrain.comm.ranks import Ranks
from mpitrain.comm.tcp.meeting import open_store_over, use_loopback_for_gloo
from mpitrain.comm.tensors import choose_device
from mpitrain.comm.torch_backend import TorchCommunicator


@dataclass(frozen=True)
class ProbeGroup:
    """A backend that has started: its verbs, the tensors' device, and torch's group for DDP (None: the default one)."""

    data: Communicator
    device: torch.device
    group: dist.ProcessGroup | None


@contextmanager
def open_probe_group(ranks: Ranks, backend: str, timeout_s: float) -> Iterator[ProbeGroup]:
    """Start `backend` ("mpi", "gloo" or "nccl") between all ranks as training would. Collective.

    Raises RuntimeError or LaunchError where it does not start, on some ranks perhaps later than on others.
    """
    device = choose_device("cuda" if backend == "nccl" else "cpu", ranks.local_rank)
    timeout = datetime.timedelta(seconds=timeout_s)
    control = ranks.cpu
    if isinstance(control, MpiCommunicator):
        try:
            yield ProbeGroup(_start_next_to_mpi(ranks, control, backend, timeout), device, None)
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
    else:
        group = dist.new_group(backend=backend, timeout=timeout)
        yield ProbeGroup(TorchCommunicator(group), device, group)


def _start_next_to_mpi(
    ranks: Ranks, control: MpiCommunicator, backend: str, timeout: datetime.timedelta
) -> Communicator:
    if backend == "mpi":
        register_mpi_backend(control.mpi_comm)
        dist.init_process_group(
            BACKEND_NAME, store=dist.HashStore(), rank=control.rank, world_size=control.size, timeout=timeout
        )
        return control
    is_one_host = ranks.num_nodes == 1
    if is_one_host:
        use_loopback_for_gloo()
    store = open_store_over(control, timeout, is_one_host, is_sealed=backend != "nccl")
    dist.init_process_group(backend, store=store, rank=control.rank, world_size=control.size, timeout=timeout)
    return TorchCommunicator()
