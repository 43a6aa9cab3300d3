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
    """The mean losses of one or more batches, each before its step, and whether any rank asks to stop after the last.

    The same on all ranks.
    """

    losses: Sequence[float]
    stop_requested: bool


@dataclass(frozen=True)
class Spent:
    """Seconds of this rank since its engine was made, besides those in the collectives of its communicators."""

    reading: float = 0.0
    """Waiting for, or gathering, the samples of a step."""
    waiting: float = 0.0
    """For later ranks, inside the engine's own sums."""
    adding: float = 0.0
    """Working for those sums."""
    messages: float = 0.0
    """Among the nodes, inside the engine's own sums: work and waiting together."""


class StepEngine(Protocol):
    """Forward, backward, reduction over all ranks and optimiser step, on this rank's part of each batch."""

    steps_per_epoch: int
    global_batch_size: int
    optimizer: Any
    """What updates the parameters: one of torch's optimisers, or an engine's own with the same state."""
    weights_digest: WeightsDigest
    """Of the weights that each step has found, and of those at the end of each epoch."""
    has_drifted: bool
    """True when a message has shown that the digests of the ranks differ; the same on all ranks."""
    average: WeightAverage | None
    """The moving average of the weights; None where none is asked for."""
    shares_running_statistics: bool
    """False where each rank keeps running statistics of its own, as torch's wrapper does."""

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """Prepare the batches of `epoch` (from 0) from step `first_step` on, and forget the last epoch's losses."""
        return

    def take_steps(self, first_step: int, num_steps: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """Train on the next batches, at least one and at most `num_steps`, in as few calls as the engine can.

        Ends early after a loss that is not finite, and when a rank asks to stop. Collective; all but `stop_requested`
        must agree on all ranks.
        """

    def spent(self) -> Spent:
        """Return what this rank's steps have spent on other things than computing."""

    def close(self) -> None:
        """Release the engine's shared resources; no step may follow. Collective."""
        return

    def epoch_loss(self) -> float:
        """Return the mean loss of the epoch's samples, each before its step, and set `has_drifted`. Collective."""

    def validation_loss(self) -> float | None:
        """Return the mean loss of the held-out samples; None without any. Collective."""

    def describe_failure(self) -> str:
        """Return a description of the ranks and samples whose last loss is not finite. Collective."""

    def gather_state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold besides model and optimiser, such as the epoch's losses. Collective."""

    def restore_state(self, state: Mapping[str, Array]) -> None:
        """Set what `gather_state` gave, on any number of ranks that keeps the promise of this engine."""


@contextmanager
def closing(engine: StepEngine) -> Iterator[None]:
    """Close the engine after the block, and after an error if all ranks have it: else some may never come."""
    try:
        yield
    except MpitrainError as error:
        if is_agreed(error):
            engine.close()
        raise
    engine.close()
