"""A temporary torch.distributed group to test one backend, with a short time limit and no monitoring."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from mpitrain.comm.communicator import Communicator
from mpitrain.comm.device import Device, choose_device
from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.comm.ranks import Ranks
from mpitrain.comm.torch_backend import TorchCommunicator
from mpitrain.comm.torch_group import rendezvous_over_mpi


@dataclass(frozen=True)
class ProbeGroup:
    """A started backend: communicator, device of its tensors, torch process group for DDP (None: the default group)."""

    data: Communicator
    device: torch.device | Device
    group: dist.ProcessGroup | None


@contextmanager
def open_probe_group(ranks: Ranks, backend: str, timeout_s: float) -> Iterator[ProbeGroup]:
    """Start `backend` ("mpi", "gloo" or "nccl") between all ranks in the same way as training. Collective.

    Raises RuntimeError or LaunchError if it does not start, possibly at different times on different ranks.
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
    name, store = rendezvous_over_mpi(control, backend, timeout, ranks.num_nodes == 1)
    dist.init_process_group(name, store=store, rank=control.rank, world_size=control.size, timeout=timeout)
    if backend == "mpi":
        return control
    return TorchCommunicator()
