"""Callbacks of the training loop: one protocol, and the callbacks that follow every run."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mpitrain.comm import Array
from mpitrain.config import TrainingSection
from mpitrain.observe import BackgroundTracker, MetricsFile
from mpitrain.observe.metrics_file import Metric
from mpitrain.observe.progress import Progress
from mpitrain.observe.step_times import StepMeter, describe_now, describe_slowest, timing_record
from mpitrain.observe.trackers.tracker import numbers_of
from mpitrain.train.state import TrainingState


class Callback:
    """A callback of the training loop. Each method does nothing unless a subclass overrides it.

    Notes
    -----
    The trainer calls its callbacks in their order, at the same steps on all ranks: a callback may communicate if every
    rank has one of its kind at the same place. In an epoch the order is `on_epoch_begin`, `on_steps` after each call
    of the engine, `on_steps_end`, validation, `on_epoch`. `on_checkpoint` is called if a checkpoint is due: after an
    epoch, before a requested stop, and at the end. An exception ends the training; a collective callback must raise it
    on all ranks together.
    """

    def on_epoch_begin(self, state: TrainingState) -> None:
        """Act before the steps of an epoch, or before the rest of them in a resumed run.

        Parameters
        ----------
        state : TrainingState
            `state.epoch` is the number of finished epochs.
        """

    def on_steps(self, state: TrainingState, losses: Sequence[float], learning_rate: float) -> None:
        """Act after one or more optimiser steps.

        Parameters
        ----------
        state : TrainingState
            `state.global_step` already includes these steps.
        losses : sequence of float, length of the number of steps
            The mean loss of each batch before its step; all are finite, and the same on all ranks.
        learning_rate : float
            The learning rate of these steps.
        """

    def on_steps_end(self, state: TrainingState) -> None:
        """Act after the last step of an epoch, before validation.

        Parameters
        ----------
        state : TrainingState
            Its losses are still those of the epoch before.
        """

    def on_epoch(self, state: TrainingState, learning_rate: float, wall_time_s: float) -> None:
        """Act after an epoch and its validation. The model has its averaged weights, if `training.average` is set.

        Parameters
        ----------
        state : TrainingState
            Includes this epoch. `state.stopped_early` may be set to end the training, in the same way on all ranks.
        learning_rate : float
            The learning rate of the epoch.
        wall_time_s : float
            Seconds of this rank from the start of the epoch, or of its rest in a resumed run, to the end of its
            validation.
        """

    def on_checkpoint(self, tensors: Mapping[str, Array], state: TrainingState, kind: str) -> None:
        """Save a checkpoint that holds `tensors` and `state`.

        Parameters
        ----------
        tensors : mapping of str to ndarray or Tensor
            Of a "step": `model.*`, `optimizer.*`, `engine.*`, `average.*` and `best.*`. Those of the model are its own
            memory, not copies. Of a "best": `model.*` with the best weights only.
        state : TrainingState
            The state after `state.global_step` steps; the training changes it later.
        kind : {"step", "best"}
            "step" for the state of the run, "best" for the weights with the lowest validation loss.
        """


class MeterCallback(Callback):
    """Measures what the time of the steps is spent on. Some calls are collective: the same calls on all ranks."""

    def __init__(self, meter: StepMeter, num_epochs: int) -> None:
        self._meter, self._num_epochs = meter, num_epochs

    def on_epoch_begin(self, state: TrainingState) -> None:
        """See `Callback.on_epoch_begin`."""
        self._meter.begin()

    def on_steps(self, state: TrainingState, losses: Sequence[float], learning_rate: float) -> None:
        """See `Callback.on_steps`."""
        self._meter.count(len(losses))

    def on_steps_end(self, state: TrainingState) -> None:
        """See `Callback.on_steps_end`."""
        self._meter.end(is_last=state.epoch + 1 == self._num_epochs)


class JacobianCallback(Callback):
    """Records the mean Jacobian every few epochs, and ends the training once it is steady. Collective."""

    def __init__(self, mean: Callable[[], list[float]], training: TrainingSection) -> None:
        """`mean` returns the mean Jacobian, the same on all ranks."""
        self._mean, self._training = mean, training

    def on_epoch(self, state: TrainingState, learning_rate: float, wall_time_s: float) -> None:
        """See `Callback.on_epoch`."""
        training = self._training
        if state.epoch % training.jacobian_freq != 0:
            return
        state.record_jacobian(self._mean(), training.jacobian_freq, training.jacobian_tolerance)
        # The Jacobian is the same on all ranks, and so is this decision.
        if state.epoch >= training.min_epochs:
            state.stopped_early |= state.epochs_of_steady_jacobian >= (training.early_stopping_patience or 1)


class RankWatcher(Callback):
    """The callback of ranks other than the root: writes one line per epoch to the rank's log."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def on_steps(self, state: TrainingState, losses: Sequence[float], learning_rate: float) -> None:
        """See `Callback.on_steps`."""
        self._logger.debug("step %d: %d steps in a call, last loss %.6e", state.global_step, len(losses), losses[-1])

    def on_epoch(self, state: TrainingState, learning_rate: float, wall_time_s: float) -> None:
        """See `Callback.on_epoch`."""
        self._logger.info("epoch %d, step %d: %.3f s", state.epoch, state.global_step, wall_time_s)


class RootWatcher(Callback):
    """The root's callback: shows progress; writes one record to `metrics.jsonl` and one line to the log per epoch."""

    def __init__(
        self, progress: Progress, metrics: MetricsFile, logger: logging.Logger, training: TrainingSection,
        note_profiled_step: Callable[[], None], meter: StepMeter | None = None,
        trackers: Sequence[BackgroundTracker] = (),
    ) -> None:  # fmt: skip
        self._progress, self._metrics, self._logger, self._training = progress, metrics, logger, training
        self._note_profiled_step, self._last_loss, self._meter = note_profiled_step, 0.0, meter
        self._trackers = trackers

    def on_steps(self, state: TrainingState, losses: Sequence[float], learning_rate: float) -> None:
        """See `Callback.on_steps`; `losses` holds one loss per batch."""
        self._note_profiled_step()
        if self._meter is not None and self._meter.latest is not None:
            self._progress.remark = describe_slowest(self._meter.latest)
            self._progress.details = describe_now(self._meter.latest)
        self._last_loss = losses[-1]
        self._progress.update(
            state.global_step, state.epoch + 1, self._training.epochs, losses[-1], state.validation_loss, learning_rate
        )
        self._logger.debug("step %d: %d steps in a call, last loss %.6e", state.global_step, len(losses), losses[-1])
        steps_before, interval = state.global_step - len(losses), self._training.log_interval
        for step in range(steps_before // interval * interval + interval, state.global_step + 1, interval):
            self._logger.info(
                "step %d: loss %.6e, learning rate %g", step, losses[step - steps_before - 1], learning_rate
            )

    def on_epoch(self, state: TrainingState, learning_rate: float, wall_time_s: float) -> None:
        """See `Callback.on_epoch`."""
        if state.train_loss is not None:  # so that the last progress line shows the last validation loss
            self._progress.update(
                state.global_step, state.epoch, self._training.epochs, self._last_loss, state.validation_loss,
                learning_rate,
            )  # fmt: skip
        record = epoch_record(state, learning_rate, wall_time_s, self._training)
        timing = self._meter.take_record() if self._meter is not None else None
        if timing is not None:
            record["timing"] = timing_record(timing)
        self._metrics.append(record)
        for tracker in self._trackers:
            tracker.log(state.global_step, numbers_of(record))
        self._logger.info("epoch %s", record)
        torch: Any = sys.modules.get("torch")  # if torch is not imported, no GPU is in use
        if self._training.log_gpu_memory and torch is not None and torch.cuda.is_available():
            used, most = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
            self._logger.info("GPU memory: %.1f MiB in use, at most %.1f MiB", used / 2**20, most / 2**20)


def epoch_record(
    state: TrainingState, learning_rate: float, wall_time_s: float, training: TrainingSection
) -> dict[str, Metric]:
    """Return the record of a finished epoch in `metrics.jsonl`."""
    record: dict[str, Metric] = {
        "epoch": state.epoch,
        "step": state.global_step,
        "train_loss": state.train_loss,
        "validation_loss": state.validation_loss,
        "learning_rate": learning_rate,
        "wall_time_s": round(wall_time_s, 4),
    }
    if training.follows_jacobian and state.epoch % training.jacobian_freq == 0:
        record |= {"jacobian_change": state.jacobian_change, "jacobian": state.jacobian}
    return record
