"""The ranks of a run: who this process is among them, and the collective verbs between them."""

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
    """All ranks of this run, seen from one of them; a value that is passed in, never global.

    `cpu` carries objects and small agreements, `tensors` the tensors of `device`. Before the settings are read
    (`open_tensors`) both are one, on the CPU. `transport` is "mpi" or "torch"; `node_cores` is how many cores the ranks
    of this node may use together; `notices` are for the user; a failure's details go into `failure_folder`; `starting`
    is told what is done before the training; `heard_by` is given what the root prints, and its level of
    `logging`.
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
    heard_by: Callable[[str, int], None] = lambda text, level: None

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
        """True on the one rank that writes files and prints."""
        return self.rank == 0

    @property
    def shares_memory(self) -> bool:
        """True where all ranks are on one node and MPI can give them common memory (`cpu.node_shared_array`)."""
        return self.transport == "mpi" and self.num_nodes == 1

    def all_reduce(self, tensor: Array, operation: ReduceOperation = "sum") -> None:
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

    def on_root_and_neighbour(
        self, on_root: Callable[[], Result], on_neighbour: Callable[[], Other]
    ) -> tuple[Result, Other]:
        """Run one action on the root and, at the same time, one on the next rank of the first node. Collective.

        The root runs both where it is alone on its node. Returns both results on every rank; an error of either is
        raised on all.
        """
        is_neighbour = not self.is_root and self.node_rank == 0 and self.local_rank == 1
        return on_two_ranks(self.cpu, is_neighbour, on_root, on_neighbour)

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""
        self.cpu.barrier()

    def set_torch_threads(self) -> None:
        """Give torch this rank's number of threads, if torch is loaded. Not collective."""
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(self.num_threads)

    def note_step(self, step: int) -> None:
        """Note how far this rank's training is, for the report when a rank does not arrive. Not collective."""
        self.cpu.notes.step = step

    def say(self, *lines: str, error: bool = False) -> None:
        """Print lines on the root rank only. Not collective."""
        for line in lines:
            self._print("", line, sys.stderr if error else sys.stdout, logging.INFO)

    def note(self, *notices: str) -> None:
        """Print notices on the root rank's standard error, a line each. Not collective."""
        for notice in notices:
            self._print("note: ", notice, sys.stderr, logging.WARNING)

    def _print(self, kind: str, text: str, stream: TextIO, level: int) -> None:
        if self.is_root:
            text = one_line(text)
            print(shown_on(stream, f"{kind}{text}"), file=stream, flush=True)
            self.heard_by(text, level)

    def write_failures_to(self, folder: Path) -> None:
        """Keep a failure's details in `folder`, which all nodes see. Not collective."""
        self.failure_folder = folder
        self.watch.tell(failures=str(folder / "failure.txt"))

    def end_start(self) -> None:
        """Tell this node's agent that the start is over, once whatever follows has time limits of its own."""
        self.watch.run()
