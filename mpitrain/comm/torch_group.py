"""torch.distributed process group over the ranks of a run; loaded only by runs that compute with torch."""

from __future__ import annotations

import datetime

import torch.distributed as dist

from mpitrain.comm.agent.position import waiting_in
from mpitrain.comm.agreement import on_all_ranks
from mpitrain.comm.communicator import Communicator
from mpitrain.comm.data_parallel import free_wrappers
from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.comm.mpi.process_group import BACKEND_NAME, register_mpi_backend
from mpitrain.comm.ranks import Ranks
from mpitrain.comm.tcp.meeting import open_store_over, use_loopback_for_gloo
from mpitrain.comm.torch_backend import TorchCommunicator
from mpitrain.errors import LaunchError


def end_torch_group(ranks: Ranks) -> None:
    """Destroy the process group of `start_torch_group`, if there is one. Collective."""
    free_wrappers()
    if ranks.transport == "mpi" and dist.is_initialized():  # otherwise the group is the ranks' control communicator
        dist.destroy_process_group()


def start_torch_group(ranks: Ranks, timeout_s: float) -> Communicator:
    """Initialise torch.distributed with the backend of `ranks`; return the tensor communicator. Collective."""
    backend = ranks.backend
    if ranks.transport == "mpi" and dist.is_initialized():
        return ranks.tensors
    # The limit of `limit_collectives` must expire first, since it names the missing rank; it does not cover GPU waits.
    patient, timeout = (datetime.timedelta(seconds=seconds) for seconds in (2 * timeout_s + 60, timeout_s))
    if ranks.transport == "torch" and ranks.world_size > 1:
        with waiting_in("new_group", ranks.cpu.notes):
            control_group = TorchCommunicator(dist.new_group(backend="gloo", timeout=patient))
        control_group.notes = ranks.cpu.notes
        ranks.cpu = control_group
    control = ranks.cpu
    if not isinstance(control, MpiCommunicator):
        return control if backend == "gloo" else TorchCommunicator(dist.new_group(backend=backend, timeout=timeout))
    timeout = timeout if backend == "nccl" else patient
    name, store = rendezvous_over_mpi(control, backend, timeout, ranks.num_nodes == 1)
    if backend == "mpi":
        _initialise(name, store, control, timeout)
        return control
    # One rank may fail after the others have succeeded.
    on_all_ranks(control, lambda: _start_next_to_mpi(backend, store, control, timeout))
    return TorchCommunicator()


def rendezvous_over_mpi(
    control: MpiCommunicator, backend: str, timeout: datetime.timedelta, is_one_host: bool
) -> tuple[str, dist.Store]:
    """Return torch's name of `backend` and the store for the rendezvous of the ranks of `control`. Collective."""
    if backend == "mpi":
        register_mpi_backend(control.mpi_comm)
        return BACKEND_NAME, dist.HashStore()
    if is_one_host:
        use_loopback_for_gloo()
    return backend, open_store_over(control, timeout, is_one_host, is_sealed=backend != "nccl")


def _start_next_to_mpi(backend: str, store: dist.Store, control: Communicator, timeout: datetime.timedelta) -> None:
    try:
        _initialise(backend, store, control, timeout)
    except RuntimeError as error:
        raise LaunchError(f"compute.backend={backend} did not start: {str(error).splitlines()[0]}") from error


def _initialise(backend: str, store: dist.Store, control: Communicator, timeout: datetime.timedelta) -> None:
    with waiting_in("init_process_group", control.notes):
        dist.init_process_group(backend, store=store, rank=control.rank, world_size=control.size, timeout=timeout)
