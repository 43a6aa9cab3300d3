"""The protocol of a training step, which all engines implement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from mpitrain.comm import Array
from mpitrain.comm.agreement import is_agreed
from mpitrain.errors import MpitrainError
from mpitrain.train.engines.weight_average import WeightAverage
from mpitrain.train.engines.weights_digest import WeightsDigest


@dataclass(frozen=True)
class StepResult:
    """The mean losses of one or more batches, each before its step, and whether any rank requested a stop.

    The same on all ranks. A stop takes effect after the last of these steps.
    """

    losses: Sequence[float]
    stop_requested: bool


@dataclass(frozen=True)
class Spent:
    """Seconds of this rank since its engine was made, not counting the collectives of its communicators."""

    reading: float = 0.0
    """Waiting for, or gathering, the samples of a step."""
    waiting: float = 0.0
    """Waiting for other ranks in the engine's own reductions."""
    adding: float = 0.0
    """Computing the sums of these reductions."""
    messages: float = 0.0
    """Exchanging sums between nodes in these reductions, waiting included."""


class StepEngine(Protocol):
    """Forward, backward, reduction over all ranks and optimiser step, on this rank's part of each batch."""

    steps_per_epoch: int
    global_batch_size: int
    optimizer: Any
    """The optimiser: one of torch's, or the engine's own with the same state."""
    weights_digest: WeightsDigest
    """The digest of the weights at the start of each step and at the end of each epoch."""
    has_drifted: bool
    """True once a reduction has shown that the digests of the ranks differ; the same on all ranks."""
    average: WeightAverage | None
    """The moving average of the weights; None if none is requested."""
    shares_running_statistics: bool
    """False if each rank keeps its own running statistics, as with DistributedDataParallel."""

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """Prepare the batches of `epoch` (from 0) from step `first_step` on, and reset the sums of the epoch's loss."""
        return

    def take_steps(self, first_step: int, num_steps: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """Train on the next batches: at least one, at most `num_steps`, as many as the engine computes in one call.

        Returns early after a loss that is not finite, and after a stop request of any rank. Collective; all arguments
        but `stop_requested` must be the same on all ranks.
        """

    def spent(self) -> Spent:
        """Return the seconds that this rank's steps have spent on other things than computing."""

    def close(self) -> None:
        """Release the engine's shared resources; no step may follow. Collective."""
        return

    def epoch_loss(self) -> float:
        """Return the mean loss of the epoch's samples, each before its step, and set `has_drifted`. Collective."""

    def validation_loss(self) -> float | None:
        """Return the mean loss of the held-out samples; None without any. Collective."""

    def describe_failure(self) -> str:
        """Return a description of the ranks and virtual ranks with a last loss that is not finite. Collective."""

    def gather_state(self) -> dict[str, Array]:
        """Return the state for a checkpoint besides model and optimiser, e.g. the epoch's losses. Collective."""

    def restore_state(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `gather_state` returned; the number of ranks may differ if the engine allows it."""


@contextmanager
def closing(engine: StepEngine) -> Iterator[None]:
    """Close the engine after the block, or after an error that all ranks have raised.

    After any other error it is not closed: `close` is collective, and some ranks might never call it.
    """
    try:
        yield
    except MpitrainError as error:
        if is_agreed(error):
            engine.close()
        raise
    engine.close()
