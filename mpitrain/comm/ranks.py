"""The ranks of a run: this process's rank numbers, and the collective operations."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from mpitrain.cluster import Starting
from mpitrain.cluster.rank_info import RankInfo
from mpitrain.comm.agent.rank_side import NodeWatch
from mpitrain.comm.agreement import Other, Result, on_all_ranks, on_root, on_two_ranks
from mpitrain.comm.arrays import Array
from mpitrain.comm.communicator import Communicator, ReduceOperation
from mpitrain.comm.device import CPU, Device
from mpitrain.errors import one_line, shown_on


@dataclass
class Ranks:
    """All ranks of this run, seen from one of them. It is passed as an argument and never a global variable.

    `cpu` is the communicator for objects and small messages, `tensors` the one for tensors on `device`. Until
    `open_tensors` both are the same CPU communicator. `transport` is "mpi" or "torch". `node_cores` is the number of
    cores that the ranks of this node may use together. `notices` are messages for the user. The details of a failure
    are written to `failure_folder`. `starting` shows the progress of the start-up. `on_output` is called with each line
    that the root prints and its `logging` level.
    """

    info: RankInfo
    cpu: Communicator
    tensors: Communicator
    transport: str
    host: str
    node_cores: int = 1
    notices: list[str] = field(default_factory=list)
    device: Device = CPU
    backend: str = ""
    reduction: str = "fixed"
    num_threads: int = 1
    failure_folder: Path | None = None
    starting: Starting = field(default_factory=Starting)
    watch: NodeWatch = field(default_factory=NodeWatch)
    on_output: Callable[[str, int], None] = lambda text, level: None

    @property
    def rank(self) -> int:
        """Rank of this process in the world, from 0."""
        return self.info.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.info.world_size

    @property
    def local_rank(self) -> int:
        """Rank of this process on its node, from 0."""
        return self.info.local_rank

    @property
    def local_world_size(self) -> int:
        """Number of ranks on this node."""
        return self.info.local_world_size

    @property
    def node_rank(self) -> int:
        """Number of this node, from 0."""
        return self.info.node_rank

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return self.info.num_nodes

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0, which writes files and prints."""
        return self.rank == 0

    @property
    def shares_memory(self) -> bool:
        """Whether all ranks are on one node and can share memory through MPI (`cpu.node_shared_array`)."""
        return self.transport == "mpi" and self.num_nodes == 1

    def all_reduce(self, tensor: Array, operation: ReduceOperation = "sum") -> None:
        """Replace `tensor` (on `device`, contiguous) by its reduction over all ranks. Collective."""
        self.tensors.all_reduce(tensor, operation)

    def broadcast_object(self, value: Any) -> Any:
        """Return the root's picklable `value` on every rank. Collective."""
        return self.cpu.broadcast_object(value)

    def gather_object(self, value: Any) -> list[Any]:
        """Return the picklable values of all ranks in rank order, on every rank. Collective."""
        return self.cpu.all_gather_object(value)

    def on_all_ranks(self, action: Callable[[], Result]) -> Result:
        """Run `action` on every rank; an error of one rank is raised on all. Collective."""
        return on_all_ranks(self.cpu, action)

    def on_root(self, action: Callable[[], Result]) -> Result:
        """Run `action` on the root and return its result on every rank; its error is raised on all. Collective."""
        return on_root(self.cpu, action)

    def on_root_and_neighbour(
        self, on_root: Callable[[], Result], on_neighbour: Callable[[], Other]
    ) -> tuple[Result, Other]:
        """Run one action on the root and, at the same time, another on local rank 1 of the root's node. Collective.

        If the root is the only rank of its node, it runs both. Returns both results on every rank; an error of either
        is raised on all ranks.
        """
        is_neighbour = not self.is_root and self.node_rank == 0 and self.local_rank == 1
        return on_two_ranks(self.cpu, is_neighbour, on_root, on_neighbour)

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""
        self.cpu.barrier()

    def set_torch_threads(self) -> None:
        """Set torch's number of threads to `num_threads`, if torch is loaded. Not collective."""
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(self.num_threads)

    def note_step(self, step: int) -> None:
        """Record this rank's training step, for the report if a rank is missing from a collective. Not collective."""
        self.cpu.notes.step = step

    def say(self, *lines: str, error: bool = False) -> None:
        """Print lines on the root rank only. Not collective."""
        for line in lines:
            self._print("", line, sys.stderr if error else sys.stdout, logging.INFO)

    def note(self, *notices: str) -> None:
        """Print notices on the root's standard error, one line each. Not collective."""
        for notice in notices:
            self._print("note: ", notice, sys.stderr, logging.WARNING)

    def _print(self, kind: str, text: str, stream: TextIO, level: int) -> None:
        if self.is_root:
            text = one_line(text)
            print(shown_on(stream, f"{kind}{text}"), file=stream, flush=True)
            self.on_output(text, level)

    def write_failures_to(self, folder: Path) -> None:
        """Write the details of a failure to `folder`, which all nodes must see. Not collective."""
        self.failure_folder = folder
        self.watch.tell(failures=str(folder / "failure.txt"))

    def end_start(self) -> None:
        """End the start-up for this node's agent; the collectives that follow have their own time limits."""
        self.watch.run()
