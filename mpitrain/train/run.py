"""One training run from its settings to its run folder, on all ranks."""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mpitrain.comm.agreement import is_agreed
from mpitrain.comm.session import Session, open_session
from mpitrain.comm.world import World
from mpitrain.config import LoadedConfig, RunConfig, load_run_config, render_yaml
from mpitrain.data.statistics import write_record
from mpitrain.data.synthetic_history import write_synthetic_history
from mpitrain.durable_files import write_durably
from mpitrain.errors import ConfigError, MpitrainError, OutputError
from mpitrain.observe.logs import close_rank_log, open_rank_log
from mpitrain.observe.metrics_file import MetricsFile
from mpitrain.observe.progress import open_progress
from mpitrain.train.checkpoint_store import Checkpoint, CheckpointStore
from mpitrain.train.final_prediction import check_final_prediction, predict_finally
from mpitrain.train.finish import finish_run
from mpitrain.train.jacobian_watch import build_jacobian_watch
from mpitrain.train.profile import profiled_steps
from mpitrain.train.run_folder import RunFolder, next_free
from mpitrain.train.settings import check_same_data
from mpitrain.train.setup import TrainingParts, load_and_build
from mpitrain.train.step_engine import StepEngine
from mpitrain.train.stop_request import StopRequest, listen_for_stop
from mpitrain.train.trainer import SaveCheckpoint, Trainer, Watcher
from mpitrain.train.watchers import RootWatcher, SilentWatcher

# The synthetic history has somewhat more at each of its poles and times.
SAMPLES_A_TIME = 6000


@dataclass(frozen=True)
class TrainRequest:
    """What the command line asks for."""

    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    resume: bool = False
    overwrite: bool = False
    log_level: str = "info"


def train(world: World, request: TrainRequest) -> int:
    """Train as requested and leave a run folder; return exit code 0. Collective.

    Raises the errors of `mpitrain.errors`, on all ranks together.
    """
    started_s = time.monotonic()
    loaded = world.together(lambda: _load_config(request))
    with open_session(world, loaded.config) as session, listen_for_stop() as stop_request:
        for line in (*loaded.notices, *world.notices):
            world.say(f"note: {line}", error=True)
        _train(world, session, loaded.config, request, stop_request, started_s)
    return 0


def _load_config(request: TrainRequest) -> LoadedConfig:
    if not request.resume or request.config_path is not None:
        return load_run_config(request.config_path, request.overrides)
    # A resumed run is what its own folder says, and what the command line changes.
    folder = RunFolder(Path(load_run_config(None, request.overrides).config.output.model_dir))
    if not folder.config.exists():
        raise ConfigError(
            f"--resume: {folder.path} holds no run; name its folder with output.model_dir=FOLDER (or --output)"
        )
    return load_run_config(folder.config, request.overrides)


def _train(
    world: World,
    session: Session,
    config: RunConfig,
    request: TrainRequest,
    stop_request: StopRequest,
    started_s: float,
) -> None:
    folder = session.on_root(lambda: _choose_folder(config, request))
    config = _naming_its_folder(config, folder)
    checkpoint = session.on_root(lambda: _load_checkpoint(world, folder)) if request.resume else None
    with _as_before_if_refused(session, folder):
        session.on_root(folder.check_model_file)
        files = session.on_root(lambda: _find_data(config, folder, request))
        parts = load_and_build(config, files, session, checkpoint)
        if checkpoint is not None:
            session.together(lambda: check_same_data(files, checkpoint, parts.model))
        num_virtual_ranks = parts.counts["virtual_ranks"]
        jacobian_watch = build_jacobian_watch(config, parts.model, parts.preview, session, num_virtual_ranks)
        session.on_root(lambda: check_final_prediction(config, folder))
    session.on_root(lambda: _prepare_folder(config, folder, request, parts.statistics))
    world.failure_folder = folder.logs
    for line in parts.notices:
        world.say(f"note: {line}", error=True)
    _announce(world, session, parts, files, folder)
    with _watching(config, session, folder, parts, checkpoint, request.log_level) as watcher:
        trainer = Trainer(
            config,
            session,
            parts.model,
            parts.optimizer,
            parts.engine,
            _saver(session, folder, parts.settings),
            watcher,
            stop_request,
            jacobian_watch,
            one_by_one=config.training.profile_training,
        )
        if checkpoint is not None:
            trainer.resume(checkpoint)
        with _closing(parts.engine):
            trainer.fit()
    finish_run(world, session, config, folder, parts, trainer, files, time.monotonic() - started_s)
    predict_finally(world, session, config, folder, parts, files)


@contextmanager
def _closing(engine: StepEngine) -> Iterator[None]:
    """Close the engine behind the block, and after an error if all ranks have it: else some may never come."""
    try:
        yield
    except MpitrainError as error:
        if is_agreed(error):
            engine.close()
        raise
    engine.close()


def _choose_folder(config: RunConfig, request: TrainRequest) -> RunFolder:
    folder = RunFolder(Path(config.output.model_dir), config.output.model_file)
    if request.resume or request.overwrite:
        return folder
    if (
        not any(override.startswith("output.model_dir=") for override in request.overrides)
        and config.data.data_path is None
    ):
        return RunFolder(next_free(folder.path), folder.model_file)
    folder.check_free()
    return folder


def _naming_its_folder(config: RunConfig, folder: RunFolder) -> RunConfig:
    # The next free folder is not the one that was asked for; its config.yaml must lead back to it.
    return config.model_copy(update={"output": config.output.model_copy(update={"model_dir": str(folder.path)})})


def _load_checkpoint(world: World, folder: RunFolder) -> Checkpoint:
    checkpoint, notices = CheckpointStore(folder.checkpoints).load_latest()
    for line in notices:
        world.say(f"note: {line}", error=True)
    world.say(f"resuming from {checkpoint.path}")
    return checkpoint


@contextmanager
def _as_before_if_refused(session: Session, folder: RunFolder) -> Iterator[None]:
    """Take back the synthetic history file, and the folder made for it, when the run is refused. Not collective."""
    if not session.is_root:
        yield
        return
    existed = folder.path.exists()
    history = folder.synthetic_history.read_bytes() if folder.synthetic_history.is_file() else None
    try:
        yield
    except MpitrainError:
        if not existed:
            shutil.rmtree(folder.path, ignore_errors=True)
        elif history is None:
            folder.synthetic_history.unlink(missing_ok=True)
        else:
            write_durably(folder.synthetic_history, history)
        raise


def _find_data(config: RunConfig, folder: RunFolder, request: TrainRequest) -> list[str]:
    """Return the files and patterns of the run; the root writes a synthetic history where there are none."""
    if config.data.entries:
        return config.data.entries
    if not (request.resume and folder.synthetic_history.exists()):
        folder.create()
        num_times = -(-(config.data.num_samples or 1) // SAMPLES_A_TIME)
        write_synthetic_history(folder.synthetic_history, seed=config.seed, num_times=num_times)
    return [str(folder.synthetic_history)]


def _prepare_folder(
    config: RunConfig, folder: RunFolder, request: TrainRequest, statistics: Mapping[str, Any] | None
) -> None:
    if request.overwrite and not request.resume:
        folder.remove_run()
    folder.create()
    try:
        write_durably(folder.config, render_yaml(config).encode())
    except OSError as error:
        raise OutputError(f"{folder.config}: cannot be written ({error.strerror})") from error
    if statistics is not None:
        write_record(statistics, folder.statistics)


def _announce(world: World, session: Session, parts: TrainingParts, files: list[str], folder: RunFolder) -> None:
    ranks, counts = session.ranks, parts.counts
    nodes = f" on {ranks.num_nodes} nodes" if ranks.num_nodes > 1 else ""
    world.say(
        f"mpitrain: {ranks.world_size} rank{'s' if ranks.world_size > 1 else ''}{nodes}, backend "
        f"{session.backend}, {session.device.type}, "
        f"reduction {_reduction(session, parts)}, engine {parts.engine_choice}; "
        f"{counts['training']} training samples of {' '.join(files)}; run folder {folder.path}"
    )


def _reduction(session: Session, parts: TrainingParts) -> str:
    # The setting is of `standard`; the C++ program leaves the order of addition to the MPI library.
    return "in MPI's order" if parts.settings["semantics"] == "reference" else session.reduction


@contextmanager
def _watching(
    config: RunConfig,
    session: Session,
    folder: RunFolder,
    parts: TrainingParts,
    checkpoint: Checkpoint | None,
    log_level: str,
) -> Iterator[Watcher]:
    level: int = getattr(logging, log_level.upper())
    logger = open_rank_log(folder.path, session.ranks.rank, session.host, level)
    logger.info(
        "rank %d of %d, device %s, torch %s, %d threads",
        session.ranks.rank,
        session.ranks.world_size,
        session.device,
        torch.__version__,
        session.num_threads,
    )
    try:
        if not session.is_root:
            yield SilentWatcher()
            return
        first_step = int(checkpoint.state["global_step"]) if checkpoint else 0
        total_steps = config.training.epochs * parts.engine.steps_per_epoch
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


def _saver(session: Session, folder: RunFolder, settings: Mapping[str, Any]) -> SaveCheckpoint:
    store = CheckpointStore(folder.checkpoints)

    def save(tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any], step: int, kind: str) -> None:
        session.on_root(lambda: store.save(tensors, state, settings, step, kind))

    return save
