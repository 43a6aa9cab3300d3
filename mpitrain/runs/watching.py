"""The callbacks of a run: logs of the ranks, metrics, progress, trackers, checkpoints."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpitrain.comm import Ranks
from mpitrain.observe import BackgroundTracker, MetricsFile
from mpitrain.observe.open_progress import open_progress
from mpitrain.observe.step_times import StepMeter
from mpitrain.runs.prepared_run import PreparedRun
from mpitrain.train import RUN, Callback, Checkpoint, CheckpointStore, ClaimedFolder, RunFolder, TrainingState
from mpitrain.train.callbacks import JacobianCallback, MeterCallback, RankWatcher, RootWatcher
from mpitrain.train.engines.contract import closing
from mpitrain.train.profile import profiled_steps


@contextmanager
def watching(
    prepared: PreparedRun, ranks: Ranks, folder: RunFolder, checkpoint: Checkpoint | None, logger: logging.Logger,
    trackers: Sequence[BackgroundTracker],
) -> Iterator[tuple[list[Callback], StepMeter]]:  # fmt: skip
    """Open the callbacks of a run and its step meter.

    Callbacks of the root write the log, metrics and progress, and report to the trackers; those of other ranks write
    the log only. Opening is not collective. The engine is closed after the block, see `closing`.
    """
    training, meter = (
        prepared.config.training,
        StepMeter(ranks, prepared.engine.spent, prepared.engine.global_batch_size),
    )
    of_meter = MeterCallback(meter, training.epochs)
    if not ranks.is_root:
        with closing(prepared.engine):
            yield [RankWatcher(logger), of_meter], meter
        return
    first_step = int(checkpoint.state["global_step"]) if checkpoint else 0
    total_steps = training.epochs * prepared.engine.steps_per_epoch
    with MetricsFile(folder.metrics) as metrics:
        metrics.cut_back(first_step)
        with (
            open_progress(
                prepared.config.output.progress, total_steps=total_steps, first_step=first_step, stream=sys.stderr
            ) as progress,
            profiled_steps(folder.profile if training.profile_training else None) as note_step,
        ):
            root = RootWatcher(progress, metrics, logger, training, note_step, meter, trackers)
            with closing(prepared.engine):
                yield [root, of_meter], meter


def jacobian_callbacks(prepared: PreparedRun, ranks: Ranks) -> list[Callback]:
    """Return the callback that records the Jacobian; none if the settings do not ask for it. Collective.

    Uses torch. Raises ConfigError on all ranks if the samples are fields.
    """
    training = prepared.config.training
    if not training.follows_jacobian:
        return []
    from mpitrain.train.jacobian import build_jacobian_watch

    watch = build_jacobian_watch(prepared.model, prepared.preview, ranks, prepared.layout.virtual_ranks)
    return [JacobianCallback(watch.mean, training)]


class CheckpointCallback(Callback):
    """Writer of checkpoints of the whole run. A call is collective, and raises OutputError on all ranks."""

    def __init__(
        self, ranks: Ranks, folder: ClaimedFolder, settings: Mapping[str, Any], logger: logging.Logger
    ) -> None:
        self._ranks, self._folder, self._settings, self._logger = ranks, folder, settings, logger
        self._store = CheckpointStore(folder.checkpoints)

    def on_checkpoint(self, tensors: Mapping[str, Any], state: TrainingState, kind: str) -> None:
        """See `Callback.on_checkpoint`. Collective."""
        started_s = time.monotonic()
        of_run = self._store, self._folder, tensors, state, self._settings, kind
        path = self._ranks.on_root(lambda: save_claimed(*of_run))
        if self._ranks.is_root:
            self._logger.info("checkpoint %s: saved in %.3f s", path, time.monotonic() - started_s)


def save_claimed(
    store: CheckpointStore, claim: ClaimedFolder, tensors: Mapping[str, Any], state: TrainingState,
    settings: Mapping[str, Any], kind: str = "step",
) -> Path:  # fmt: skip
    """Save a checkpoint with the identity of `claim`. Raises OutputError, also if the claim is lost."""
    claim.check_claim()
    return store.save(tensors, {**state.to_manifest(), RUN: claim.run}, settings, state.global_step, kind)
