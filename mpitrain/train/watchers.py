"""What the root rank shows and writes while the training goes on."""

from __future__ import annotations

import logging

from mpitrain.observe.metrics_file import MetricsFile
from mpitrain.observe.progress import Progress
from mpitrain.train.training_state import TrainingState


class SilentWatcher:
    """The watcher of every rank but the root."""

    def on_step(self, state: TrainingState, loss: float, learning_rate: float) -> None:
        """See `Watcher.on_step`."""

    def on_epoch(self, state: TrainingState, learning_rate: float, wall_time_s: float) -> None:
        """See `Watcher.on_epoch`."""


class RootWatcher:
    """The root's watcher: progress for the user, one record of `metrics.jsonl` an epoch, and a line in the log."""

    def __init__(self, progress: Progress, metrics: MetricsFile, logger: logging.Logger, num_epochs: int) -> None:
        self._progress, self._metrics, self._logger, self._num_epochs = progress, metrics, logger, num_epochs

    def on_step(self, state: TrainingState, loss: float, learning_rate: float) -> None:
        """See `Watcher.on_step`; `loss` is the batch's."""
        self._progress.update(
            state.global_step, state.epoch + 1, self._num_epochs, loss, state.validation_loss, learning_rate
        )

    def on_epoch(self, state: TrainingState, learning_rate: float, wall_time_s: float) -> None:
        """See `Watcher.on_epoch`."""
        record = {
            "epoch": state.epoch,
            "step": state.global_step,
            "train_loss": state.train_loss,
            "validation_loss": state.validation_loss,
            "learning_rate": learning_rate,
            "wall_time_s": round(wall_time_s, 4),
        }
        self._metrics.append(record)
        self._logger.info("epoch %s", record)
