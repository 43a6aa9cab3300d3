"""What follows a run while it trains: the ranks' logs, metrics, progress, checkpoints."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from mpitrain.comm.agreement import is_agreed
from mpitrain.comm.ranks import Ranks
from mpitrain.errors import MpitrainError
from mpitrain.observe.metrics_file import MetricsFile
from mpitrain.observe.open_progress import open_progress
from mpitrain.observe.step_times import StepMeter
from mpitrain.observe.trackers.tracker import BackgroundTracker
from mpitrain.runs.prepared_run import PreparedRun
from mpitrain.train.checkpoint.store import Checkpoint, CheckpointStore
from mpitrain.train.engines.contract import StepEngine
from mpitrain.train.run_folder import RunFolder
from mpitrain.train.trainer import SaveCheckpoint, Watcher
from mpitrain.train.watchers import RankWatcher, RootWatcher, profiled_steps


@contextmanager
def watching(
    prepared: PreparedRun, ranks: Ranks, folder: RunFolder, checkpoint: Checkpoint | None, logger: logging.Logger,
    trackers: Sequence[BackgroundTracker],
) -> Iterator[tuple[Watcher, StepMeter]]:  # fmt: skip
    """Open what follows the training: on the root metrics, progress and trackers, else the log; and its meter.

    Not collective.
    """
    config, meter = prepared.config, StepMeter(ranks, prepared.engine.spent, prepared.engine.global_batch_size)
    if not ranks.is_root:
        yield RankWatcher(logger), meter
        return
    first_step = int(checkpoint.state["global_step"]) if checkpoint else 0
    total_steps = config.training.epochs * prepared.engine.steps_per_epoch
    with MetricsFile(folder.metrics) as metrics:
        metrics.cut_back(first_step)
        with (
            open_progress(
                config.output.progress, total_steps=total_steps, first_step=first_step, stream=sys.stderr
            ) as progress,
            profiled_steps(folder.profile if config.training.profile_training else None) as note_step,
        ):
            yield RootWatcher(progress, metrics, logger, config.training, note_step, meter, trackers), meter


def checkpoint_saver(
    ranks: Ranks, folder: RunFolder, settings: Mapping[str, Any], logger: logging.Logger
) -> SaveCheckpoint:
    """Return what writes a checkpoint of the whole run; a call is collective. Raises OutputError, on all ranks."""
    store = CheckpointStore(folder.checkpoints)

    def save(tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any], step: int, kind: str) -> None:
        started_s = time.monotonic()
        path = ranks.on_root(lambda: store.save(tensors, state, settings, step, kind))
        if ranks.is_root:
            logger.info("checkpoint %s: saved in %.3f s", path, time.monotonic() - started_s)

    return save


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
