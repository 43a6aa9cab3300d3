"""Ranks played by threads of one process: the real code between the ranks, without a launch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
import torch
from conftest import TIMEOUT_S

from mpitrain.cluster.rank_info import RankInfo
from mpitrain.comm.agent.position import CollectiveNotes
from mpitrain.comm.ranks import Ranks
from mpitrain.comm.tcp.plain_data import decode, encode

Result = TypeVar("Result")


def copied(array):
    return array.copy() if isinstance(array, np.ndarray) else array.clone()


def joined(parts):
    return np.concatenate(parts) if isinstance(parts[0], np.ndarray) else torch.cat(parts)


def split(array, counts):
    ends = np.cumsum(counts)
    return [array[end - count : end] for count, end in zip(counts, ends, strict=True)]


class PlayedCommunicator:
    """`Communicator` over a board that all threads write to and read from."""

    def __init__(self, rank: int, board: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.size = rank, len(board)
        self.notes = CollectiveNotes()
        self._board, self._barrier = board, barrier

    def _share(self, value: Any) -> list[Any]:
        self._board[self.rank] = value
        self._barrier.wait(TIMEOUT_S)
        values = list(self._board)
        self._barrier.wait(TIMEOUT_S)
        return values

    def all_reduce(self, tensor: torch.Tensor, operation: str = "sum") -> None:
        kind = np if isinstance(tensor, np.ndarray) else torch
        combine = {"sum": kind.add, "min": kind.minimum, "max": kind.maximum}[operation]
        total, *others = self._share(copied(tensor))
        for other in others:
            total = combine(total, other)
        tensor[...] = total

    def all_gather(self, tensor: torch.Tensor, row_counts: Sequence[int]) -> torch.Tensor:
        parts = self._share(copied(tensor))
        assert [len(part) for part in parts] == list(row_counts)
        return joined(parts)

    def all_to_all_rows(
        self, tensor: torch.Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> torch.Tensor:
        received = [parts[self.rank] for parts in self._share(split(copied(tensor), send_counts))]
        assert [len(part) for part in received] == list(receive_counts)
        return joined(received)

    def exchange(self, tensor: torch.Tensor, partner: int) -> torch.Tensor:
        return self._share(copied(tensor))[partner]

    def broadcast_object(self, value: Any, root: int = 0) -> Any:
        return decode(self._share(encode(value))[root])

    def all_gather_object(self, value: Any) -> list[Any]:
        # As plain data, as between ranks that no MPI connects: what could not travel there fails here.
        return [decode(message) for message in self._share(encode(value))]

    def barrier(self) -> None:
        self._share(None)

    def give_up(self) -> None:
        """Release the ranks that wait for this one."""
        self._barrier.abort()


def played_ranks_of(communicator: PlayedCommunicator, reduction: str = "fixed") -> Ranks:
    rank, size = communicator.rank, communicator.size
    info = RankInfo(rank, size, rank, size, 0, 1, "played")
    communicators: Any = (communicator, communicator)
    return Ranks(info, *communicators, "played", "here", backend="mpi", reduction=reduction)


def on_played_ranks(num_ranks: int, body: Callable[[PlayedCommunicator], Result]) -> list[Result]:
    """Run `body` on each rank and return the results in rank order; the first error is raised again."""
    board: list[Any] = [None] * num_ranks
    barrier = threading.Barrier(num_ranks)

    def run(rank: int) -> Result:
        communicator = PlayedCommunicator(rank, board, barrier)
        try:
            return body(communicator)
        except BaseException:
            communicator.give_up()
            raise

    with ThreadPoolExecutor(num_ranks) as pool:
        futures = [pool.submit(run, rank) for rank in range(num_ranks)]
    errors = [error for future in futures if (error := future.exception()) is not None]
    real = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (real or errors)[0]
    return [future.result() for future in futures]
