"""Set-up of computation and communication: device, backend, number of threads, torch.distributed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from mpitrain.cluster.cores import oversubscription_warning, threads_per_rank
from mpitrain.comm.agent.arrival import limit_collectives
from mpitrain.comm.agreement import mark_agreed
from mpitrain.comm.arrays import require_torch
from mpitrain.comm.device import Device, choose_device, find_gpu_conflict
from mpitrain.comm.ranks import Ranks
from mpitrain.comm.start import fail_alone
from mpitrain.config import ComputeSection, TrainingSection
from mpitrain.errors import LaunchError

_THIS_RUN = (
    "this run (torch is optional only for model.name=icenet or mlp with training.engine=compiled, semantics=standard "
    "and MPI)"
)


@contextmanager
def open_tensors(
    ranks: Ranks, semantics: str, compute: ComputeSection, training: TrainingSection, timeout_s: float,
    needs_torch: bool = True,
) -> Iterator[None]:  # fmt: skip
    """Choose device, backend and threads for `ranks`, and open their tensor communicator for the block. Collective.

    Parameters
    ----------
    ranks : Ranks
        Changed: `device`, `backend`, `reduction`, `num_threads` and `tensors` are set, warnings are appended to
        `notices`. With several ranks and no MPI `cpu` is replaced too.
    semantics : {"standard", "reference"}
        "reference" needs MPI, and its backend is always MPI.
    compute, training : ComputeSection, TrainingSection
        Settings of device, backend, order of addition and threads.
    timeout_s : float
        Seconds after which a collective that has not ended aborts the job, with an error that names the missing rank.
    needs_torch : bool
        False: torch.distributed is not started if tensors are sent by MPI; `begin_torch` may start it later.

    Raises
    ------
    LaunchError
        The device or the backend is not available, or the backend does not start or does not fit the device or the
        transport; two ranks share a GPU; or only some ranks have one. On all ranks together.
    MissingDependencyError
        Torch is needed and is not installed on one of the ranks. On all ranks together.

    Notes
    -----
    All arguments except `ranks` must be the same on all ranks. After the block torch's process group is destroyed if
    the ranks use MPI, but not if the block raises an error, since ranks that have failed may block it. The time limit
    remains, because the ranks enter further collectives. The end of the start is recorded for the node's agent.
    """
    settle_tensors(ranks, semantics, compute, training)
    with started_tensors(ranks, timeout_s, needs_torch):
        yield


def settle_tensors(ranks: Ranks, semantics: str, compute: ComputeSection, training: TrainingSection) -> None:
    """Choose device, backend, order of addition and threads for `ranks`; open no communicator. Collective.

    Raises LaunchError, on all ranks, if the requested device or backend is not available.
    """
    ranks.device = ranks.on_all_ranks(lambda: choose_device(compute.device, ranks.local_rank))
    ranks.backend = ranks.on_all_ranks(lambda: choose_backend(semantics, compute.backend, ranks.device, ranks))
    if semantics != "reference":
        _check_gpus(ranks)
    settle_order_and_threads(ranks, semantics, training)


def _check_gpus(ranks: Ranks) -> None:
    """Raise LaunchError, on all ranks, if two share a GPU or only some have one: nccl needs one each. Collective."""
    owned = ranks.gather_object((ranks.host, ranks.on_all_ranks(lambda: ranks.device.gpu)))
    conflict = find_gpu_conflict(*zip(*owned, strict=True))
    if conflict is not None:
        raise mark_agreed(LaunchError(f"{conflict[0]}; {conflict[1]}, or compute.device=cpu"))


def settle_order_and_threads(ranks: Ranks, semantics: str, training: TrainingSection) -> None:
    """Set the order of addition and the number of threads. Not collective."""
    ranks.reduction = training.reduction or ("any" if ranks.backend == "nccl" else "fixed")
    cores = ranks.node_cores
    keeps_bits = ranks.reduction == "fixed" or semantics == "reference"
    ranks.num_threads = threads_per_rank(training.threads_per_rank, keeps_bits, cores, ranks.local_world_size)
    ranks.set_torch_threads()
    warning = oversubscription_warning(ranks.local_world_size, ranks.num_threads, cores, ranks.host)
    if warning:
        ranks.notices.append(warning)


@contextmanager
def started_tensors(ranks: Ranks, timeout_s: float, needs_torch: bool = True) -> Iterator[None]:
    """Open the tensor communicator of `ranks` for the block, and set a time limit for collectives. Collective.

    `settle_tensors` must have been called. torch.distributed is started too, unless the tensors are sent by MPI and
    `needs_torch` is false: then `begin_torch` starts it later if the run needs it. The time limit remains after the
    block, because the ranks enter further collectives and one of them may be missing.
    """
    ranks.watch.follow(ranks.cpu.notes)  # removes the time limit of an earlier block
    ranks.tensors = ranks.cpu
    if (ranks.transport, ranks.backend) != ("mpi", "mpi"):
        _start_group(ranks, timeout_s)
    elif needs_torch:
        begin_torch(ranks, timeout_s)
    ranks.tensors.notes = ranks.cpu.notes
    limit_collectives(ranks, timeout_s, functools.partial(fail_alone, ranks))
    ranks.end_start()
    yield
    # Not after an error: destroying a process group may block for ranks that have failed; see `run_on_all_ranks`.
    if "torch" in sys.modules:
        from mpitrain.comm.torch_group import end_torch_group

        end_torch_group(ranks)


def begin_torch(ranks: Ranks, timeout_s: float) -> None:
    """Load torch, and start torch.distributed over the MPI ranks unless it is running already. Collective.

    `settle_tensors` must have been called. Raises MissingDependencyError, on all ranks, if torch is not installed.
    """
    ranks.on_all_ranks(lambda: require_torch(_THIS_RUN))
    ranks.set_torch_threads()
    if (ranks.transport, ranks.backend) == ("mpi", "mpi"):
        _start_group(ranks, timeout_s)


def _start_group(ranks: Ranks, timeout_s: float) -> None:
    ranks.on_all_ranks(lambda: require_torch(_THIS_RUN))
    from mpitrain.comm.torch_group import start_torch_group

    ranks.set_torch_threads()
    ranks.tensors = start_torch_group(ranks, timeout_s)


def choose_backend(semantics: str, requested: str, device: Device, ranks: Ranks) -> str:
    """Return the backend for tensors: "mpi", "gloo" or "nccl". Raises LaunchError if `requested` cannot be used."""
    automatic = "nccl" if device.type == "cuda" else ("mpi" if ranks.transport == "mpi" else "gloo")
    if semantics == "reference":
        # The reference semantics are defined by the order of addition in one MPI library's Allreduce.
        if ranks.transport != "mpi":
            raise LaunchError(
                "semantics=reference needs MPI between the ranks; start with mpirun or srun --mpi=pmi2 (or pmix)"
            )
        return "mpi"
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
            "compute.backend=mpi: these ranks do not use MPI; start with mpirun or srun --mpi=pmi2, or use gloo"
        )
    if requested in ("mpi", "gloo") and device.type == "cuda":
        raise LaunchError(
            f"compute.backend={requested}: supports CPU tensors only; use compute.backend=nccl or compute.device=cpu"
        )
    return automatic if requested == "auto" else requested
