"""A running session: the ranks, this rank's device, the tensors' backend, and the collective verbs on them."""

from __future__ import annotations

import datetime
import functools
import gc
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from mpitrain.cluster.cores import oversubscription_warning, threads_per_rank
from mpitrain.cluster.rank_info import RankInfo
from mpitrain.comm.agreement import mark_agreed, on_root, together
from mpitrain.comm.communicator import Communicator, ReduceOperation
from mpitrain.comm.meeting import open_store_over
from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.comm.mpi.process_group import BACKEND_NAME, register_mpi_backend
from mpitrain.comm.torch_backend import TorchCommunicator
from mpitrain.comm.watch.watchdog import start_watchdog
from mpitrain.comm.world import World, fail_alone
from mpitrain.config import RunConfig
from mpitrain.errors import LaunchError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Session:
    """What training needs to know of its surroundings; passed in, never global.

    `control` carries objects and small agreements on the CPU; `data` carries tensors of `device`. `shares_memory`:
    all ranks are on one node and MPI can give them common memory (`control.node_shared_tensor`). `node_cores`: how many
    cores the ranks of this node may use together.
    """

    ranks: RankInfo
    device: torch.device
    backend: str
    reduction: str
    num_threads: int
    host: str
    control: Communicator
    data: Communicator
    shares_memory: bool = False
    node_cores: int = 1

    @property
    def is_root(self) -> bool:
        """True on the one rank that writes files and speaks to the user."""
        return self.ranks.rank == 0

    def all_reduce(self, tensor: torch.Tensor, operation: ReduceOperation = "sum") -> None:
        """Replace `tensor` (on `device`, contiguous) by its reduction over all ranks. Collective."""
        self.data.all_reduce(tensor, operation)

    def broadcast_object(self, value: Any) -> Any:
        """Return the root's picklable `value` on every rank. Collective."""
        return self.control.broadcast_object(value)

    def gather_object(self, value: Any) -> list[Any]:
        """Return all ranks' values in rank order, on every rank. Collective."""
        return self.control.all_gather_object(value)

    def together(self, action: Callable[[], Result]) -> Result:
        """Run `action` on every rank; an error of one rank is raised on all. Collective."""
        return together(self.control, action)

    def on_root(self, action: Callable[[], Result]) -> Result:
        """Run `action` on the root and return its result on every rank; its error is raised on all. Collective."""
        return on_root(self.control, action)

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""
        self.control.barrier()

    def note_step(self, step: int) -> None:
        """Note how far this rank's training is, for the report when a rank does not arrive. Not collective."""
        self.control.notes.step = step


@contextmanager
def open_session(world: World, config: RunConfig) -> Iterator[Session]:
    """Choose device, backend and threads for `world` and start torch.distributed. Collective.

    Raises LaunchError, on all ranks, when the asked device or backend is not to be had here.
    """
    device = world.together(lambda: choose_device(config.compute.device, world.ranks.local_rank))
    backend = world.together(lambda: choose_backend(config, device, world))
    reduction = config.training.reduction or ("any" if backend == "nccl" else "fixed")
    num_threads = _set_threads(config, world, reduction)
    data = _start_torch_group(world, backend, config.distributed.timeout_s)
    _start_watchdog(world, data, config.distributed.timeout_s)
    shares_memory = world.transport == "mpi" and world.ranks.num_nodes == 1
    yield Session(
        world.ranks, device, backend, reduction, num_threads, world.host, world.communicator, data, shares_memory,
        world.node_cores,
    )  # fmt: skip
    # Not after an error: ending a group may wait for ranks that will never come; `run_on_all_ranks` knows what is safe.
    world.stop_watchdog()
    # A DistributedDataParallel that only a cycle keeps alive would free the group later, from a thread that waits for
    # Python's lock: a hang at exit.
    gc.collect()
    if world.transport == "mpi":  # else the group is the world's own
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


def choose_backend(config: RunConfig, device: torch.device, world: World) -> str:
    """Return "mpi", "gloo" or "nccl" for the tensors. Raises LaunchError for one that cannot serve here."""
    requested = config.compute.backend
    automatic = "nccl" if device.type == "cuda" else ("mpi" if world.transport == "mpi" else "gloo")
    if config.semantics == "reference":
        return _reference_backend(world)
    if requested == "nccl_if_available":
        if automatic != "nccl":
            world.notices.append(
                f"distributed.backend=nccl: no GPU here, so {automatic} is used (compute.backend=auto)"
            )
        return automatic
    if requested == "nccl" and device.type != "cuda":
        raise LaunchError("compute.backend=nccl: no GPU on this rank; use compute.backend=auto, mpi or gloo")
    if requested == "mpi" and world.transport != "mpi":
        raise LaunchError(
            "compute.backend=mpi: MPI does not connect these ranks; start with mpirun or srun --mpi=pmi2, or use gloo"
        )
    if requested in ("mpi", "gloo") and device.type == "cuda":
        raise LaunchError(
            f"compute.backend={requested}: carries CPU tensors only; use compute.backend=nccl or compute.device=cpu"
        )
    return automatic if requested == "auto" else requested


def _reference_backend(world: World) -> str:
    # Its promise is the order of one MPI library's Allreduce: nothing else can keep it.
    if world.transport != "mpi":
        raise LaunchError(
            "semantics=reference needs MPI between the ranks; start with mpirun or srun --mpi=pmi2 (or pmix)"
        )
    return "mpi"


def _set_threads(config: RunConfig, world: World, reduction: str) -> int:
    cores = world.node_cores
    keeps_bits = reduction == "fixed" or config.semantics == "reference"
    num_threads = threads_per_rank(config.training.threads_per_rank, keeps_bits, cores, world.ranks.local_world_size)
    torch.set_num_threads(num_threads)
    warning = oversubscription_warning(world.ranks.local_world_size, num_threads, cores, world.host)
    if warning:
        world.notices.append(warning)
    return num_threads


def _start_torch_group(world: World, backend: str, timeout_s: float) -> Communicator:
    """Initialise torch.distributed over `backend` and return the tensors' communicator. Collective."""
    # The watchdog speaks first, since it can name the missing rank; it does not see what waits on a GPU.
    patient, timeout = (datetime.timedelta(seconds=seconds) for seconds in (2 * timeout_s + 60, timeout_s))
    if world.transport == "torch" and world.ranks.world_size > 1:
        world.communicator = TorchCommunicator(dist.new_group(backend="gloo", timeout=patient))
    control = world.communicator
    if not isinstance(control, MpiCommunicator):
        return control if backend == "gloo" else TorchCommunicator(dist.new_group(backend=backend, timeout=timeout))
    timeout = timeout if backend == "nccl" else patient
    if backend == "mpi":
        register_mpi_backend(control.mpi_comm)
        _initialise(BACKEND_NAME, dist.HashStore(), control, timeout)
        return control
    if world.ranks.num_nodes == 1:
        # Without this gloo resolves the host's own name, which many laptops and containers cannot.
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "lo")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    try:
        _initialise(backend, open_store_over(control, timeout, world.ranks.num_nodes == 1), control, timeout)
    except RuntimeError as error:
        raise mark_agreed(
            LaunchError(f"compute.backend={backend} did not start: {str(error).splitlines()[0]}")
        ) from error
    return TorchCommunicator()


def _start_watchdog(world: World, data: Communicator, timeout_s: float) -> None:
    """Watch all collectives of the run for ranks that do not arrive. Collective."""
    data.notes = world.communicator.notes
    if world.ranks.world_size > 1:
        world.watchdog = start_watchdog(
            world.communicator,
            world.host,
            world.ranks.num_nodes == 1,
            timeout_s,
            functools.partial(fail_alone, world),
        )


def _initialise(backend: str, store: dist.Store, control: Communicator, timeout: datetime.timedelta) -> None:
    dist.init_process_group(backend, store=store, rank=control.rank, world_size=control.size, timeout=timeout)
