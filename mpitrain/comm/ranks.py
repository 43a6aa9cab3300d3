"""The ranks of a run: who this process is among them, and the collective verbs between them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from mpitrain.cluster.rank_info import RankInfo
from mpitrain.cluster.starting import Starting
from mpitrain.comm.agreement import on_all_ranks, on_root
from mpitrain.comm.communicator import Communicator, ReduceOperation
from mpitrain.comm.supervision.node_watch import NodeWatch
from mpitrain.comm.watch.watchdog import Watchdog

Result = TypeVar("Result")


@dataclass
class Ranks:
    """All ranks of this run, seen from one of them; a value that is passed in, never global.

    `cpu` carries objects and small agreements, `tensors` the tensors of `device`. Before the settings are read
    (`open_tensors`) both are one, on the CPU. `transport` is "mpi" or "torch"; `node_cores` is how many cores the ranks
    of this node may use together; `notices` are for the user; a failure's details go into `failure_folder`; `starting`
    is told what is done before the training; `heard_by` hears what the root prints, as its log does.
    """

    info: RankInfo
    cpu: Communicator
    tensors: Communicator
    transport: str
    host: str
    node_cores: int = 1
    notices: list[str] = field(default_factory=list)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    backend: str = ""
    reduction: str = "fixed"
    num_threads: int = 1
    failure_folder: Path | None = None
    watchdog: Watchdog | None = None
    starting: Starting = field(default_factory=Starting)
    watch: NodeWatch = field(default_factory=NodeWatch)
    heard_by: Callable[[str], None] = lambda line: None

    @property
    def rank(self) -> int:
        """This process among all, from 0."""
        return self.info.rank

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return self.info.world_size

    @property
    def local_rank(self) -> int:
        """This process among those of its node, from 0."""
        return self.info.local_rank

    @property
    def local_world_size(self) -> int:
        """How many ranks this node has."""
        return self.info.local_world_size

    @property
    def node_rank(self) -> int:
        """This node among all, from 0."""
        return self.info.node_rank

    @property
    def num_nodes(self) -> int:
        """How many nodes there are."""
        return self.info.num_nodes

    @property
    def is_root(self) -> bool:
        """True on the one rank that writes files and speaks to the user."""
        return self.rank == 0

    @property
    def shares_memory(self) -> bool:
        """True where all ranks are on one node and MPI can give them common memory (`cpu.node_shared_tensor`)."""
        return self.transport == "mpi" and self.num_nodes == 1

    def all_reduce(self, tensor: torch.Tensor, operation: ReduceOperation = "sum") -> None:
        """Replace `tensor` (on `device`, contiguous) by its reduction over all ranks. Collective."""
        self.tensors.all_reduce(tensor, operation)

    def broadcast_object(self, value: Any) -> Any:
        """Return the root's picklable `value` on every rank. Collective."""
        return self.cpu.broadcast_object(value)

    def gather_object(self, value: Any) -> list[Any]:
        """Return all ranks' values in rank order, on every rank. Collective."""
        return self.cpu.all_gather_object(value)

    def on_all_ranks(self, action: Callable[[], Result]) -> Result:
        """Run `action` on every rank; an error of one rank is raised on all. Collective."""
        return on_all_ranks(self.cpu, action)

    def on_root(self, action: Callable[[], Result]) -> Result:
        """Run `action` on the root and return its result on every rank; its error is raised on all. Collective."""
        return on_root(self.cpu, action)

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""
        self.cpu.barrier()

    def note_step(self, step: int) -> None:
        """Note how far this rank's training is, for the report when a rank does not arrive. Not collective."""
        self.cpu.notes.step = step

    def say(self, line: str, *, error: bool = False) -> None:
        """Print a line on the root rank only. Not collective."""
        if self.is_root:
            print(line, file=sys.stderr if error else sys.stdout, flush=True)
            self.heard_by(line)

    def write_failures_to(self, folder: Path) -> None:
        """Keep a failure's details in `folder`, which all nodes see. Not collective."""
        self.failure_folder = folder
        self.watch.tell_folder(folder)

    def end_start(self) -> None:
        """Tell this node's supervisor that the start is over, once whatever follows has time limits of its own."""
        self.watch.run()

    def stop_watchdog(self) -> None:
        """Watch the collectives no longer. Not collective."""
        if self.watchdog is not None:
            self.watchdog.stop()
