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
    """The result of one or more training steps, the same on all ranks.

    Attributes
    ----------
    losses : sequence of float, length of the number of steps
        The mean loss of each batch before its step: the sum of weight * loss divided by the sum of the weights, over
        all ranks. In `reference` semantics it is rank 0's mean loss, or NaN if that of any rank is not finite. Only the
        last loss may be NaN or infinite.
    stop_requested : bool
        Whether any rank requested a stop; it takes effect after the last of these steps.
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
    """Forward, backward, reduction over all ranks and optimiser step, on this rank's part of each batch.

    The protocol that all engines implement. The trainer calls its methods at the same points on all ranks.

    Attributes
    ----------
    steps_per_epoch : int
        Number of optimiser steps of an epoch, the same on all ranks.
    global_batch_size : int
        Number of samples of a step over all ranks.
    optimizer : torch.optim.Optimizer or object
        One of torch's optimisers, or the engine's own with the same state.
    weights_digest : WeightsDigest
        The digest of the weights at the start of each step and at the end of each epoch.
    has_drifted : bool
        Whether a reduction has shown that the digests of the ranks differ; the same on all ranks.
    average : WeightAverage or None
        The moving average of the weights; None if none is requested.
    shares_running_statistics : bool
        False if each rank keeps its own running statistics, as with DistributedDataParallel.

    Notes
    -----
    A step in `standard` semantics: each rank sums weight * loss and its gradient over each of its microbatches; the
    sums are added over microbatches and ranks, with reduction "fixed" in one tree for any number of ranks, with "any"
    in the library's order and with a rank's microbatches computed as one; the sum of the gradients is divided by the
    sum of the weights, clipped to `training.gradient_clip_norm`, and passed to the optimiser, so that all ranks take
    the same step. DistributedDataParallel divides before it adds. In `reference` semantics one Allreduce per parameter
    is followed by a division by F * P (F inputs, P ranks), as in the C++ program.
    """

    steps_per_epoch: int
    global_batch_size: int
    optimizer: Any
    weights_digest: WeightsDigest
    has_drifted: bool
    average: WeightAverage | None
    shares_running_statistics: bool

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """Prepare the batches of an epoch, and reset the sums of the epoch's loss.

        Parameters
        ----------
        epoch : int
            From 0; it determines the order of the samples.
        first_step : int, default 0
            The first step that will be taken in the epoch; above 0 in a resumed run.
        """
        return

    def take_steps(self, first_step: int, num_steps: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """Train on the next batches: at least one, at most `num_steps`, as many as the engine computes in one call.

        Parameters
        ----------
        first_step : int
            Number of the first step in the epoch, from 0. Steps are taken in order.
        num_steps : int
            Largest number of steps, at least 1.
        learning_rate : float
            The learning rate of these steps.
        stop_requested : bool
            Whether this rank requests a stop; may differ between ranks.

        Returns
        -------
        StepResult
            Ends early with a loss that is not finite, and with a step in which any rank requested a stop.

        Raises
        ------
        TrainingError
            A loss or optimiser of the user fails. Raised on the ranks where it fails.
        DataError
            A data file has changed or cannot be read. Raised on the ranks that read it.
        LaunchError
            The shared memory of this node is damaged (compiled engine).

        Notes
        -----
        Collective. All arguments but `stop_requested` must be the same on all ranks.
        """

    def spent(self) -> Spent:
        """Return the time that this rank's steps have spent on other things than computing. Not collective.

        Returns
        -------
        Spent
            Seconds since the engine was made.
        """

    def close(self) -> None:
        """Release the engine's shared resources; no step may follow. Collective."""
        return

    def epoch_loss(self) -> float:
        """Return the mean loss of the epoch's samples, each before its step, and set `has_drifted`. Collective.

        Returns
        -------
        float
            The same on all ranks: the sum of weight * loss divided by the sum of the weights, over the epoch's steps so
            far. With reduction "fixed" its bits do not depend on the number of ranks. In `reference` semantics rank 0's
            mean loss.
        """

    def validation_loss(self) -> float | None:
        """Return the mean loss of the held-out samples with the present weights. Collective.

        Returns
        -------
        float or None
            The same on all ranks, by weights as `epoch_loss`; None if no samples are held out.
        """

    def describe_failure(self) -> str:
        """Return a description of the ranks and virtual ranks with a loss that is not finite. Collective.

        Returns
        -------
        str
            The same on all ranks, for the error message after the last step.
        """

    def gather_state(self) -> dict[str, Array]:
        """Return the state for a checkpoint besides model and optimiser. Collective.

        Returns
        -------
        dict of str to ndarray or Tensor
            The same on all ranks, such as `epoch_loss_sums` (V, 2) float64: sums of weight * loss and of weights in
            this epoch for each of V virtual ranks.
        """

    def restore_state(self, state: Mapping[str, Array]) -> None:
        """Restore the state that `gather_state` returned. Call it after `start_epoch`, which resets the sums.

        Parameters
        ----------
        state : mapping of str to ndarray or Tensor
            The number of ranks may differ from that of the run that was saved if the engine allows it.
        """


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
