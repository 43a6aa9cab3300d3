"""What carries the tensors of a run: this rank's device, the backend, the number of threads, torch.distributed."""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

from mpitrain.cluster.cores import oversubscription_warning, threads_per_rank
from mpitrain.comm.agreement import on_all_ranks
from mpitrain.comm.communicator import Communicator
from mpitrain.comm.data_parallel import free_wrappers
from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.comm.mpi.process_group import BACKEND_NAME, register_mpi_backend
from mpitrain.comm.ranks import Ranks
from mpitrain.comm.start import fail_alone
from mpitrain.comm.tcp.meeting import open_store_over, use_loopback_for_gloo
from mpitrain.comm.torch_backend import TorchCommunicator
from mpitrain.comm.watch.notes import waiting_in
from mpitrain.comm.watch.watchdog import start_watchdog
from mpitrain.config import RunConfig
from mpitrain.errors import LaunchError


@contextmanager
def open_tensors(ranks: Ranks, config: RunConfig) -> Iterator[None]:
    """Choose device, backend and threads for `ranks`, and start torch.distributed while the block runs. Collective.

    Sets `ranks.device`, `backend`, `reduction`, `num_threads` and `tensors`. Raises LaunchError, on all ranks, when the
    device or the backend that is asked for is not to be had here.
    """
    settle_tensors(ranks, config)
    with started_tensors(ranks, config.distributed.timeout_s):
        yield


def settle_tensors(ranks: Ranks, config: RunConfig) -> None:
    """Choose device, backend, order of addition and threads for `ranks`, and start nothing. Collective.

    Raises LaunchError, on all ranks, when the device or the backend that is asked for is not to be had here.
    """
    ranks.device = ranks.on_all_ranks(lambda: choose_device(config.compute.device, ranks.local_rank))
    ranks.backend = ranks.on_all_ranks(lambda: choose_backend(config, ranks.device, ranks))
    settle_order_and_threads(ranks, config)


def settle_order_and_threads(ranks: Ranks, config: RunConfig) -> None:
    """Take the order of addition and the number of threads from `config`. Not collective."""
    ranks.reduction = config.training.reduction or ("any" if ranks.backend == "nccl" else "fixed")
    cores = ranks.node_cores
    keeps_bits = ranks.reduction == "fixed" or config.semantics == "reference"
    ranks.num_threads = threads_per_rank(config.training.threads_per_rank, keeps_bits, cores, ranks.local_world_size)
    torch.set_num_threads(ranks.num_threads)
    warning = oversubscription_warning(ranks.local_world_size, ranks.num_threads, cores, ranks.host)
    if warning:
        ranks.notices.append(warning)


@contextmanager
def started_tensors(ranks: Ranks, timeout_s: float) -> Iterator[None]:
    """Start torch.distributed over settled `ranks` while the block runs, and the watchdog. Collective.

    The watchdog stays: ranks that have left the block meet once more, and one of them may not come.
    """
    ranks.stop_watchdog()  # of a block before
    ranks.tensors = _start_torch_group(ranks, timeout_s)
    _start_watchdog(ranks, timeout_s)
    yield
    # Not after an error: ending a group may wait for ranks that will never come; `run_on_all_ranks` knows what is safe.
    free_wrappers()
    if ranks.transport == "mpi":  # else the group is the ranks' own
        dist.destroy_process_group()


def choose_device(requested: str, local_rank: int) -> torch.device:
    """Return this rank's device. Raises LaunchError when a GPU is asked for and none is visible."""
    num_visible = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if requested == "cpu" or (requested == "auto" and num_visible == 0):
        return torch.device("cpu")
    if num_visible == 0:
        raise LaunchError(
            "compute.device=cuda: this rank sees no GPU; check CUDA_VISIBLE_DEVICES, or use compute.device=auto"
        )
    # A launcher that shows each rank only its own GPU numbers it 0, whatever the local rank.
    index = 0 if num_visible == 1 else local_rank
    if index >= num_visible:
        raise LaunchError(
            f"local rank {local_rank} has no GPU of its own: {num_visible} visible; start at most "
            f"{num_visible} ranks a node"
        )
    return torch.device("cuda", index)


def choose_backend(config: RunConfig, device: torch.device, ranks: Ranks) -> str:
    """Return "mpi", "gloo" or "nccl" for the tensors. Raises LaunchError for one that cannot serve here."""
    requested = config.compute.backend
    automatic = "nccl" if device.type == "cuda" else ("mpi" if ranks.transport == "mpi" else "gloo")
    if config.semantics == "reference":
        return _reference_backend(ranks)
    if requested == "nccl_if_available":
        if automatic != "nccl":
            ranks.notices.append(
                f"distributed.backend=nccl: no GPU here, so {automatic} is used (compute.backend=auto)"
            )
        return automatic
    if requested == "nccl" and device.type != "cuda":
        raise LaunchError("compute.backend=nccl: no GPU on this rank; use compute.backend=auto, mpi or gloo")
    if requested == "mpi" and ranks.transport != "mpi":
        raise LaunchError(
            "compute.backend=mpi: MPI does not connect these ranks; start with mpirun or srun --mpi=pmi2, or use gloo"
        )
    if requested in ("mpi", "gloo") and device.type == "cuda":
        raise LaunchError(
            f"compute.backend={requested}: carries CPU tensors only; use compute.backend=nccl or compute.device=cpu"
        )
    return automatic if requested == "auto" else requested


def _reference_backend(ranks: Ranks) -> str:
    # Its promise is the order of one MPI library's Allreduce: nothing else can keep it.
    if ranks.transport != "mpi":
        raise LaunchError(
            "semantics=reference needs MPI between the ranks; start with mpirun or srun --mpi=pmi2 (or pmix)"
        )
    return "mpi"


def _start_torch_group(ranks: Ranks, timeout_s: float) -> Communicator:
    """Initialise torch.distributed over the backend of `ranks` and return the tensors' communicator. Collective."""
    backend = ranks.backend
    # The watchdog speaks first, since it can name the missing rank; it does not see what waits on a GPU.
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
    name, store = meet_next_to_mpi(control, backend, timeout, ranks.num_nodes == 1)
    if backend == "mpi":
        _initialise(name, store, control, timeout)
        return control
    # One rank may fail where the others have begun already.
    on_all_ranks(control, lambda: _start_next_to_mpi(backend, store, control, timeout))
    return TorchCommunicator()


def meet_next_to_mpi(
    control: MpiCommunicator, backend: str, timeout: datetime.timedelta, is_one_host: bool
) -> tuple[str, dist.Store]:
    """Return torch's name of `backend` and the store at which the ranks of `control` meet for it. Collective."""
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


def _start_watchdog(ranks: Ranks, timeout_s: float) -> None:
    """Watch all collectives of the run for ranks that do not arrive. Collective."""
    ranks.tensors.notes = ranks.cpu.notes
    if ranks.world_size > 1:
        ranks.watchdog = start_watchdog(
            ranks.cpu,
            ranks.host,
            ranks.num_nodes == 1,
            timeout_s,
            functools.partial(fail_alone, ranks),
        )
    ranks.end_start()


def _initialise(backend: str, store: dist.Store, control: Communicator, timeout: datetime.timedelta) -> None:
    with waiting_in("init_process_group", control.notes):
        dist.init_process_group(backend, store=store, rank=control.rank, world_size=control.size, timeout=timeout)
