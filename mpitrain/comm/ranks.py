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

    Attributes
    ----------
    info : RankInfo
        Rank of this process, its rank on its node, the number of its node, and the three counts.
    cpu : Communicator
        Communicator for objects and small messages.
    tensors : Communicator
        Communicator for tensors on `device`; until `open_tensors` the same object as `cpu`.
    transport : str
        Library that connects the ranks: "mpi" or "torch" (torch.distributed).
    host : str
        Host name of this node.
    node_cores : int
        Number of cores that the ranks of this node may use together.
    notices : list of str
        Messages for the user, which the root prints later.
    device : Device
        Device of this rank; this and the next three are set by `open_tensors`.
    backend : str
        Library of `tensors`: "mpi", "gloo" or "nccl"; before `open_tensors` empty.
    reduction : str
        Order of addition: "fixed", the same for any number of ranks, or "any".
    num_threads : int
        Number of torch's threads on this rank.
    failure_folder : Path or None
        Folder for the details of a failure (failure.txt); None: no file is written.
    starting : Starting
        Progress display of the start-up.
    watch : NodeWatch
        Registration of this rank with its node's agent.
    on_output : callable
        Called on the root with each line that it prints (str) and the line's `logging` level (int).

    Notes
    -----
    All ranks must call the collective methods in the same order. If one rank raises an error that the others do not
    raise, or does not call the method, the others wait in it, or lose the connection (gloo, nccl). They do not
    continue: `run_on_all_ranks` on the failing rank aborts the job within seconds; a missing rank is named, and the job
    aborted with the exit code of LaunchError, after the time limit of the start or, from `open_tensors` on, of its
    `timeout_s`. Without MPI, objects that are sent must be plain data: numbers, strings, paths, containers, arrays,
    tensors, and instances of this package's classes; otherwise ValueError is raised on the sending rank.
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
        """Replace `tensor` by its reduction over all ranks. Collective.

        Parameters
        ----------
        tensor : ndarray or Tensor
            Contiguous values on `device`, overwritten by the result. Shape and dtype must be the same on all ranks.
        operation : {"sum", "min", "max"}
            Must be the same on all ranks.

        Notes
        -----
        The library chooses the order of a sum: results for different numbers of ranks agree up to rounding.
        """
        self.tensors.all_reduce(tensor, operation)

    def broadcast_object(self, value: Any) -> Any:
        """Return the root's `value` on every rank. Collective.

        Parameters
        ----------
        value : object
            Picklable object (without MPI: plain data, see the Notes of the class); on the other ranks it is ignored.

        Returns
        -------
        object
            Equal on all ranks; a copy, except that the root may receive `value` itself.
        """
        return self.cpu.broadcast_object(value)

    def gather_object(self, value: Any) -> list[Any]:
        """Return the values of all ranks in rank order, on every rank. Collective.

        Parameters
        ----------
        value : object
            Picklable object (without MPI: plain data, see the Notes of the class); type and size may differ between
            ranks.

        Returns
        -------
        list of object, length world_size
            Equal on all ranks.
        """
        return self.cpu.all_gather_object(value)

    def on_all_ranks(self, action: Callable[[], Result]) -> Result:
        """Run `action` on every rank; an error of one rank is raised on all. Collective.

        Parameters
        ----------
        action : callable
            Function without arguments. It may be collective only if it fails on all ranks or on none.

        Returns
        -------
        object
            The result of this rank's `action`; only errors are exchanged.

        Raises
        ------
        MpitrainError
            Class and message of the lowest failing rank's error, on all ranks together, marked as agreed. If only some
            ranks failed, the message begins with the rank, its host and the number of failed ranks.

        Notes
        -----
        Returns after all ranks have run `action`. Any other exception is a bug: it is raised on its rank only, and the
        others wait until that rank aborts the job.
        """
        return on_all_ranks(self.cpu, action)

    def on_root(self, action: Callable[[], Result]) -> Result:
        """Run `action` on the root and return its result on every rank; its error is raised on all. Collective.

        Parameters
        ----------
        action : callable
            Function without arguments, not collective, called on the root only; its result must be picklable (without
            MPI: plain data).

        Returns
        -------
        object
            Equal on all ranks.

        Raises
        ------
        MpitrainError
            Class and message of the error of `action`, on all ranks together, marked as agreed.

        Notes
        -----
        Any other exception is a bug: it is raised on the root only, and the others wait until the root aborts the job.
        """
        return on_root(self.cpu, action)

    def on_root_and_neighbour(
        self, on_root: Callable[[], Result], on_neighbour: Callable[[], Other]
    ) -> tuple[Result, Other]:
        """Run one action on the root and, at the same time, another on local rank 1 of the root's node. Collective.

        If the root is the only rank of its node, it runs `on_neighbour` after `on_root`, unless `on_root` fails.

        Parameters
        ----------
        on_root, on_neighbour : callable
            Functions without arguments, not collective; their results must be picklable (without MPI: plain data).

        Returns
        -------
        tuple of (object, object)
            The results of `on_root` and `on_neighbour`, on all ranks.

        Raises
        ------
        MpitrainError
            Class and message of an action's error, on all ranks together, marked as agreed; if both fail, that of
            `on_root`.

        Notes
        -----
        Any other exception is a bug: it is raised on its rank only, and the others wait until that rank aborts the job.
        """
        is_neighbour = not self.is_root and self.node_rank == 0 and self.local_rank == 1
        return on_two_ranks(self.cpu, is_neighbour, on_root, on_neighbour)

    def barrier(self) -> None:
        """Wait until all ranks have called it. Collective."""
        self.cpu.barrier()

    def set_torch_threads(self) -> None:
        """Set torch's number of threads to `num_threads`, if torch is loaded. Not collective."""
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            torch.set_num_threads(self.num_threads)

    def note_step(self, step: int) -> None:
        """Record this rank's training step, for the report if a rank is missing from a collective. Not collective.

        Parameters
        ----------
        step : int
            Number of completed training steps.
        """
        self.cpu.notes.step = step

    def say(self, *lines: str, error: bool = False) -> None:
        """Print lines on the root only. Not collective.

        Parameters
        ----------
        *lines : str
            Texts of one line each; unprintable characters are printed as escapes.
        error : bool
            True: on standard error; False (default): on standard output.
        """
        for line in lines:
            self._print("", line, sys.stderr if error else sys.stdout, logging.INFO)

    def note(self, *notices: str) -> None:
        """Print notices on the root's standard error, one line each. Not collective.

        Parameters
        ----------
        *notices : str
            Texts, which are printed after "note: ".
        """
        for notice in notices:
            self._print("note: ", notice, sys.stderr, logging.WARNING)

    def _print(self, kind: str, text: str, stream: TextIO, level: int) -> None:
        if self.is_root:
            text = one_line(text)
            print(shown_on(stream, f"{kind}{text}"), file=stream, flush=True)
            self.on_output(text, level)

    def write_failures_to(self, folder: Path) -> None:
        """Write the details of a failure to `folder`. Not collective.

        Parameters
        ----------
        folder : Path
            Folder that all nodes see; the same on all ranks. The first failing rank writes failure.txt to it.
        """
        self.failure_folder = folder
        self.watch.tell(failures=str(folder / "failure.txt"))

    def end_start(self) -> None:
        """End the start-up for this node's agent; the collectives that follow have their own time limits."""
        self.watch.run()
