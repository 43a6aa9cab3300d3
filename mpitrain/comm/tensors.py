"""How a run computes and communicates: this rank's device, backend, number of threads, torch.distributed."""

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

_THIS_RUN = "this run (anything but model.name=icenet or mlp by training.engine=compiled, semantics=standard and MPI)"


@contextmanager
def open_tensors(
    ranks: Ranks, semantics: str, compute: ComputeSection, training: TrainingSection, timeout_s: float,
    needs_torch: bool = True,
) -> Iterator[None]:  # fmt: skip
    """Choose device, backend and threads for `ranks`, and carry their tensors while the block runs. Collective.

    Sets `ranks.device`, `backend`, `reduction`, `num_threads` and `tensors`. `needs_torch` must agree on all ranks; see
    `started_tensors`. Raises LaunchError, on all ranks, when the device or the backend that is asked for is not to be
    had here.
    """
    settle_tensors(ranks, semantics, compute, training)
    with started_tensors(ranks, timeout_s, needs_torch):
        yield


def settle_tensors(ranks: Ranks, semantics: str, compute: ComputeSection, training: TrainingSection) -> None:
    """Choose device, backend, order of addition and threads for `ranks`, and start nothing. Collective.

    Raises LaunchError, on all ranks, when the device or the backend that is asked for is not to be had here.
    """
    ranks.device = ranks.on_all_ranks(lambda: choose_device(compute.device, ranks.local_rank))
    ranks.backend = ranks.on_all_ranks(lambda: choose_backend(semantics, compute.backend, ranks.device, ranks))
    if semantics != "reference":
        _check_gpus(ranks)
    settle_order_and_threads(ranks, semantics, training)


def _check_gpus(ranks: Ranks) -> None:
    """Raise LaunchError, on all ranks, where two share a GPU, or some have none: nccl needs one each. Collective."""
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
    """Carry the tensors of settled `ranks` while the block runs, and limit their collectives. Collective.

    torch.distributed is started with it, unless MPI carries the tensors and `needs_torch` is false: then `begin_torch`
    starts it for a run that turns out to need it. The limit stays: ranks that have left the block meet once more, and
    one of them may not come.
    """
    ranks.watch.follow(ranks.cpu.notes)  # without the limit of a block before
    ranks.tensors = ranks.cpu
    if (ranks.transport, ranks.backend) != ("mpi", "mpi"):
        _start_group(ranks, timeout_s)
    elif needs_torch:
        begin_torch(ranks, timeout_s)
    ranks.tensors.notes = ranks.cpu.notes
    limit_collectives(ranks, timeout_s, functools.partial(fail_alone, ranks))
    ranks.end_start()
    yield
    # Not after an error: ending a group may wait for ranks that will never come; `run_on_all_ranks` knows what is safe.
    if "torch" in sys.modules:
        from mpitrain.comm.torch_group import end_torch_group

        end_torch_group(ranks)


def begin_torch(ranks: Ranks, timeout_s: float) -> None:
    """Load torch, and start torch.distributed over settled `ranks` of MPI, unless that is done. Collective.

    Raises MissingDependencyError, on all ranks, where torch is not installed.
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
    """Return "mpi", "gloo" or "nccl" for the tensors. Raises LaunchError for one that cannot serve here."""
    automatic = "nccl" if device.type == "cuda" else ("mpi" if ranks.transport == "mpi" else "gloo")
    if semantics == "reference":
        # These semantics are defined by the order of one MPI library's Allreduce.
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
            "compute.backend=mpi: MPI does not connect these ranks; start with mpirun or srun --mpi=pmi2, or use gloo"
        )
    if requested in ("mpi", "gloo") and device.type == "cuda":
        raise LaunchError(
            f"compute.backend={requested}: carries CPU tensors only; use compute.backend=nccl or compute.device=cpu"
        )
    return automatic if requested == "auto" else requested
