"""What follows a run while it trains: the ranks' logs, metrics, progress, checkpoints."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from mpitrain.comm.agreement import is_agreed
from mpitrain.comm.ranks import Ranks
from mpitrain.errors import MpitrainError
from mpitrain.observe.logs import close_rank_log, open_rank_log
from mpitrain.observe.metrics_file import MetricsFile
from mpitrain.observe.open_progress import open_progress
from mpitrain.runs.prepare import PreparedRun
from mpitrain.train.checkpoint.store import Checkpoint, CheckpointStore
from mpitrain.train.engines.contract import StepEngine
from mpitrain.train.run_folder import RunFolder
from mpitrain.train.trainer import SaveCheckpoint, Watcher
from mpitrain.train.watchers import RootWatcher, SilentWatcher, profiled_steps


@contextmanager
def watching(
    prepared: PreparedRun, ranks: Ranks, folder: RunFolder, checkpoint: Checkpoint | None, log_level: str
) -> Iterator[Watcher]:
    """Open this rank's log, and on the root metrics and progress; close them after the block. Not collective."""
    config = prepared.config
    level: int = getattr(logging, log_level.upper())
    logger = open_rank_log(folder.path, ranks.rank, ranks.host, level)
    logger.info(
        "rank %d of %d, device %s, torch %s, %d threads",
        ranks.rank,
        ranks.world_size,
        ranks.device,
        torch.__version__,
        ranks.num_threads,
    )
    try:
        if not ranks.is_root:
            yield SilentWatcher()
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
                yield RootWatcher(progress, metrics, logger, config.training, note_step)
    finally:
        close_rank_log(logger)


def checkpoint_saver(ranks: Ranks, folder: RunFolder, settings: Mapping[str, Any]) -> SaveCheckpoint:
    """Return what writes a checkpoint of the whole run; a call is collective. Raises OutputError, on all ranks."""
    store = CheckpointStore(folder.checkpoints)

    def save(tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any], step: int, kind: str) -> None:
        ranks.on_root(lambda: store.save(tensors, state, settings, step, kind))

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
