"""The training loop: steps, validation and a record for each epoch, and checkpoints to resume with the same bits."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from mpitrain.comm import Array, Ranks, mark_agreed
from mpitrain.config import TrainingSection
from mpitrain.errors import StoppedError, TrainingError
from mpitrain.train.callbacks import Callback
from mpitrain.train.checkpoint.store import Checkpoint
from mpitrain.train.drift import DriftWatch
from mpitrain.train.engines.contract import StepEngine
from mpitrain.train.optimizers.state import optimizer_tensors, restore_optimizer, trained_names
from mpitrain.train.schedules.schedule import REFERENCE_BATCH_SIZE, Rates, learning_rates, scaled_learning_rate
from mpitrain.train.state import TrainingState, load_named_weights, named_weights, without_prefix
from mpitrain.train.stop_request import StopRequest

SAVE_INTERVAL_S = 60.0
"""If epochs take long, checkpoints are saved about this often, after whole epochs."""
_TIMED_EPOCHS = 2  # the first one may include work that is done once, e.g. compiling


class Trainer:
    """Training loop: trains a model until all epochs are done, early stopping ends it, or a stop is requested.

    Parameters
    ----------
    training : TrainingSection
        The section `training` of the settings, the same on all ranks.
    ranks : Ranks
        All ranks of the run.
    model : DenseModel or torch.nn.Module
        The model that `engine` trains, with the same weights on all ranks.
    engine : StepEngine
        Computes the steps and the losses.
    callbacks : sequence of Callback
        Called in this order.
    stop_request : StopRequest
        The stop flag of this rank.
    one_step_per_call : bool, default False
        The engine takes one step per call, so that callbacks can read the weights after every step. It also does if
        `training.profile_training` is set. By default an engine may take many steps in one call.
    validates_first_weights : bool, default False
        In a new run the initial weights are validated as epoch 0, and are exported if no epoch improves on them.

    Attributes
    ----------
    state : TrainingState
        Position, losses and counters so far.
    steps_before : int
        Number of optimiser steps of the run that is resumed; 0 in a new run.
    best_weights : dict of str to ndarray or Tensor, or None
        Copies on the CPU of the weights, or of their averages, with the lowest validation loss; None before the first.

    Raises
    ------
    ConfigError
        The schedule of the learning rate cannot be built. Raised on all ranks together.

    Notes
    -----
    Collective, as are all methods but `export_weights` and `resume`. The learning rate is constant within an epoch:
    the schedule's value for the epoch and the number of plateaus. The order within an epoch is: steps, validation,
    training loss, early stopping and plateau, `on_epoch` of the callbacks, checkpoint.
    """

    def __init__(
        self, training: TrainingSection, ranks: Ranks, model: Any, engine: StepEngine, callbacks: Sequence[Callback],
        stop_request: StopRequest, one_step_per_call: bool = False, validates_first_weights: bool = False,
    ) -> None:  # fmt: skip
        self.state = TrainingState()
        self.steps_before = 0  # of the run that is resumed
        self.best_weights: dict[str, Array] | None = None
        self._training, self._ranks, self._model, self._engine = training, ranks, model, engine
        self._callbacks, self._stop_request, self._best_is_saved = tuple(callbacks), stop_request, True
        self._judges_first = validates_first_weights
        self._one_by_one, self._stop_was_asked = one_step_per_call or training.profile_training, False
        self._epochs_between_saves, self._untimed_epochs = training.save_interval, _TIMED_EPOCHS
        self._drift = DriftWatch(ranks, model, engine)
        self._names = trained_names(model)
        schedule = training.scheduler
        self._plateau_patience = schedule.plateau_patience if schedule is not None else None
        self._rates = ranks.on_all_ranks(self._learning_rates)

    def fit(self) -> None:
        """Train to the end, and save a checkpoint there. Collective.

        Raises
        ------
        TrainingError
            A loss is not finite, or the weights or the optimiser state differ between ranks. This state is not saved.
        StoppedError
            A rank has received a stop signal, or `training.max_steps` steps are taken. A checkpoint has been saved.

        Notes
        -----
        These errors are raised on all ranks together. Exceptions of the engine and of callbacks are passed on.
        """
        if self.state.global_step > 0:
            self._stop_if_asked(False)  # a resumed run may already have taken max_steps
        elif self._judges_first:
            self._judge_first_weights()
        while self.state.epoch < self._training.epochs and not self.state.stopped_early:
            started_s = time.monotonic()
            learning_rate = self._rates(self.state.epoch, self.state.num_plateaus)
            self._run_steps(learning_rate)
            self._finish_epoch(learning_rate, started_s)
        self.save_checkpoint()

    def _judge_first_weights(self) -> None:
        loss = self._engine.validation_loss()
        if loss is not None and math.isfinite(loss):
            self.state.best_loss, self.state.best_epoch = loss, 0
            self.best_weights, self._best_is_saved = named_weights(self._model), False

    def _run_steps(self, learning_rate: float) -> None:
        state = self.state
        for callback in self._callbacks:
            callback.on_epoch_begin(state)
        if state.step_in_epoch == 0:  # otherwise `resume` has set the order and the losses so far
            self._engine.start_epoch(state.epoch)
        while state.step_in_epoch < self._engine.steps_per_epoch:
            taken = self._engine.take_steps(
                state.step_in_epoch, self._steps_at_once(), learning_rate, self._stop_request.is_set
            )
            self._count_steps(taken.losses, learning_rate)
            self._stop_was_asked = taken.stop_requested
            # After the last step the epoch is finished first: no checkpoint is saved between that step and validation.
            if state.step_in_epoch < self._engine.steps_per_epoch:
                self._stop_if_asked(taken.stop_requested)
        for callback in self._callbacks:
            callback.on_steps_end(state)

    def _steps_at_once(self) -> int:
        if self._one_by_one:
            return 1
        left, max_steps = self._engine.steps_per_epoch - self.state.step_in_epoch, self._training.max_steps
        return left if max_steps is None else min(left, max_steps - self.state.global_step)

    def _count_steps(self, losses: Sequence[float], learning_rate: float) -> None:
        # Only the last loss can be non-finite: the engine stops at the first one that is.
        is_finite = math.isfinite(losses[-1])
        num_steps = len(losses) if is_finite else len(losses) - 1
        self.state.step_in_epoch += num_steps
        self.state.global_step += num_steps
        if not is_finite:
            self._drift.on_failed_loss(self.state.global_step + 1)
            problem = (
                f"the loss became {losses[-1]} at step {self.state.global_step + 1}, epoch {self.state.epoch + 1} "
            )
            origin = f"({self._engine.describe_failure()}); {_advice(learning_rate)}"
            raise mark_agreed(TrainingError(problem + origin))
        self._ranks.note_step(self.state.global_step)
        self._drift.after_steps(self.state.global_step)
        for callback in self._callbacks:
            callback.on_steps(self.state, losses, learning_rate)

    def _finish_epoch(self, learning_rate: float, started_s: float) -> None:
        training = self._training
        with self._averaged():
            validation_loss = self._engine.validation_loss()
        if validation_loss is not None and not math.isfinite(validation_loss):
            self._drift.on_failed_loss(self.state.global_step)
            # A batch's loss is computed before its step: the effect of the epoch's last step shows here first.
            position = f"step {self.state.global_step}, epoch {self.state.epoch + 1}"
            message = f"the validation loss became {validation_loss} after {position}; {_advice(learning_rate)}"
            raise mark_agreed(TrainingError(message))
        epoch_loss = self._engine.epoch_loss()
        self._drift.after_epoch(self.state.global_step)
        wall_time_s = time.monotonic() - started_s  # includes validation
        is_best = self.state.record_epoch(epoch_loss, validation_loss)
        if is_best:
            with self._averaged():
                self.best_weights, self._best_is_saved = named_weights(self._model), False
        patience = training.early_stopping_patience
        if patience is not None and self.state.epoch >= training.min_epochs:
            self.state.stopped_early = self.state.epochs_without_improvement >= patience
        if self._plateau_patience is not None:
            self.state.watch_plateau(self._plateau_patience)
        with self._averaged():
            for callback in self._callbacks:
                callback.on_epoch(self.state, learning_rate, wall_time_s)
        is_last = self.state.epoch == training.epochs or self.state.stopped_early
        if not is_last:
            self._stop_if_asked(self._stop_was_asked)
            self._time_epoch(wall_time_s)
            if self.state.epoch % self._epochs_between_saves == 0:
                self.save_checkpoint()

    def _averaged(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the average of its weights, if an average is kept."""
        average = self._engine.average
        return nullcontext() if average is None else average.in_place()

    def export_weights(self, which: Literal["best", "final"]) -> None:
        """Load the weights to export into the model. No step may follow.

        Parameters
        ----------
        which : {"best", "final"}
            "best": those with the lowest validation loss, if there are any. Otherwise the last ones, or their average
            if one is kept.

        Notes
        -----
        Not collective; the weights are the same on all ranks.
        """
        average = self._engine.average
        if which == "best" and self.best_weights is not None:
            load_named_weights(self._model, self.best_weights)
        elif average is not None:
            load_named_weights(self._model, named_weights(self._model) | average.values)

    def _time_epoch(self, wall_time_s: float) -> None:
        """Save more often than every `save_interval` epochs if epochs are long. Collective: the root's time decides."""
        if self._untimed_epochs > 0:
            self._untimed_epochs -= 1
            in_time = max(1, math.ceil(SAVE_INTERVAL_S / max(wall_time_s, 1e-9)))
            self._epochs_between_saves = self._ranks.broadcast_object(min(self._training.save_interval, in_time))

    def _stop_if_asked(self, stop_requested: bool) -> None:
        max_steps = self._training.max_steps
        if max_steps is not None and self.state.global_step >= max_steps:
            reason = f"training.max_steps={max_steps}"
        elif stop_requested:
            reason = next(filter(None, self._ranks.gather_object(self._stop_request.signal_name)), "a request")
        else:
            return
        self.save_checkpoint()
        position = f"step {self.state.global_step}, epoch {self.state.epoch + 1}"
        raise mark_agreed(
            StoppedError(f"stopped by {reason} at {position}; a checkpoint is saved: continue with --resume")
        )

    def save_checkpoint(self) -> None:
        """Save everything that `resume` needs, and the best weights if they are not saved yet. Collective.

        Raises
        ------
        TrainingError
            The tensors differ between ranks. Raised on all ranks together, before anything is saved.

        Notes
        -----
        Calls `Callback.on_checkpoint` of all callbacks; their exceptions are passed on.
        """
        tensors = {f"model.{name}": value for name, value in self._model.state_dict().items()}
        tensors |= optimizer_tensors(self._engine.optimizer, self._names)
        tensors |= {f"engine.{name}": value for name, value in self._engine.gather_state().items()}
        tensors |= {} if self._engine.average is None else self._engine.average.tensors()
        tensors |= {f"best.{name}": value for name, value in (self.best_weights or {}).items()}
        self._drift.before_saving(tensors, self.state.global_step)
        for callback in self._callbacks:
            callback.on_checkpoint(tensors, self.state, "step")
        if self.best_weights is not None and not self._best_is_saved:
            best = {f"model.{name}": value for name, value in self.best_weights.items()}
            for callback in self._callbacks:
                callback.on_checkpoint(best, self.state, "best")
            self._best_is_saved = True

    def resume(self, checkpoint: Checkpoint) -> None:
        """Restore the state of a checkpoint. Call it before `fit`.

        Parameters
        ----------
        checkpoint : Checkpoint
            The same on all ranks; its settings must have been checked before.

        Raises
        ------
        CheckpointError
            The run keeps an average of the weights and the checkpoint lacks it.

        Notes
        -----
        Not collective.
        """
        self.state = TrainingState.from_manifest(checkpoint.state)
        self._drift.begin(self.state.global_step)
        self.steps_before = self.state.global_step
        load_named_weights(self._model, without_prefix(checkpoint.tensors, "model."))
        restore_optimizer(self._engine.optimizer, self._names, checkpoint.tensors)
        if self._engine.average is not None:
            self._engine.average.restore(without_prefix(checkpoint.tensors, "average."))
        self.best_weights = without_prefix(checkpoint.tensors, "best.") or None
        self._engine.start_epoch(self.state.epoch, self.state.step_in_epoch)
        self._engine.restore_state(without_prefix(checkpoint.tensors, "engine."))

    def _learning_rates(self) -> Rates:
        training = self._training
        is_by_batch = training.learning_rate_scaling_by == "batch_size"
        ratio = self._engine.global_batch_size / REFERENCE_BATCH_SIZE if is_by_batch else self._ranks.world_size
        base = scaled_learning_rate(training.optimizer.learning_rate, training.learning_rate_scaling, ratio)
        return learning_rates(training.scheduler, base, training.epochs)


def _advice(learning_rate: float) -> str:
    return f"lower training.optimizer.learning_rate (now {learning_rate:g}) or look for extreme inputs"
