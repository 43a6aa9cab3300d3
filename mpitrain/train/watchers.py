"""What the root rank shows and writes while the training goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from mpitrain.config import TrainingSection
from mpitrain.observe.metrics_file import Metric, MetricsFile
from mpitrain.observe.progress import Progress
from mpitrain.observe.step_times import StepMeter, describe_now, describe_slowest, timing_record
from mpitrain.observe.trackers.tracker import BackgroundTracker, numbers_of
from mpitrain.train.state import TrainingState


class SilentWatcher:
    """The watcher of every rank but the root."""

    def on_steps(self, state: TrainingState, losses: Sequence[float], learning_rate: float) -> None:
        """See `Watcher.on_steps`."""

    def on_epoch(self, state: TrainingState, learning_rate: float, wall_time_s: float) -> None:
        """See `Watcher.on_epoch`."""


class RankWatcher:
    """The watcher of the other ranks: a line in their log."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def on_steps(self, state: TrainingState, losses: Sequence[float], learning_rate: float) -> None:
        """See `Watcher.on_steps`."""
        self._logger.debug("step %d: %d steps in a call, last loss %.6e", state.global_step, len(losses), losses[-1])

    def on_epoch(self, state: TrainingState, learning_rate: float, wall_time_s: float) -> None:
        """See `Watcher.on_epoch`."""
        self._logger.info("epoch %d, step %d: %.3f s", state.epoch, state.global_step, wall_time_s)


class RootWatcher:
    """The root's watcher: progress for the user, one record of `metrics.jsonl` an epoch, and a line in the log."""

    def __init__(
        self, progress: Progress, metrics: MetricsFile, logger: logging.Logger, training: TrainingSection,
        note_profiled_step: Callable[[], None], meter: StepMeter | None = None,
        trackers: Sequence[BackgroundTracker] = (),
    ) -> None:  # fmt: skip
        self._progress, self._metrics, self._logger, self._training = progress, metrics, logger, training
        self._note_profiled_step, self._last_loss, self._meter = note_profiled_step, 0.0, meter
        self._trackers = trackers

    def on_steps(self, state: TrainingState, losses: Sequence[float], learning_rate: float) -> None:
        """See `Watcher.on_steps`; `losses` are the batches'."""
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
        """See `Watcher.on_epoch`."""
        if state.train_loss is not None:  # the last line of a run tells of its last validation
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
        if self._training.log_gpu_memory and torch.cuda.is_available():
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


_WAIT_STEPS, _WARM_UP_STEPS, _PROFILED_STEPS = 5, 2, 10
PROFILED_AFTER = _WAIT_STEPS + _WARM_UP_STEPS + _PROFILED_STEPS


@contextmanager
def profiled_steps(target: Path | None) -> Iterator[Callable[[], None]]:
    """Yield what to call after each step; `target` then receives the trace of ten early steps. None: no profile."""
    if target is None:
        yield lambda: None
        return
    target.unlink(missing_ok=True)  # of the run that goes on
    plan = schedule(wait=_WAIT_STEPS, warmup=_WARM_UP_STEPS, active=_PROFILED_STEPS, repeat=1)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]

    def export(recorded: profile) -> None:
        if recorded.step_num >= PROFILED_AFTER:  # else the run ended before
            recorded.export_chrome_trace(str(target))

    with profile(activities=activities, schedule=plan, on_trace_ready=export) as it:
        yield it.step
