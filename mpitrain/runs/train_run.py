"""One training run, in the order in which it happens. The steps carry the numbers of `cpp_reference/main.cpp`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from mpitrain.comm.agreement import is_agreed
from mpitrain.comm.session import Session, open_session
from mpitrain.comm.world import World
from mpitrain.config import RunConfig
from mpitrain.data.dataset.exchange import open_source_on_root
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import MpitrainError
from mpitrain.runs.beginning import (
    TrainRequest,
    as_before_if_refused,
    find_files,
    load_newest_checkpoint,
    load_settings,
    prepare_folder,
)
from mpitrain.runs.final_prediction import check_final_prediction, predict_finally
from mpitrain.runs.finish import finish_run
from mpitrain.runs.prepare import PreparedRun, prepare
from mpitrain.runs.watching import checkpoint_saver, watching
from mpitrain.train.checkpoint.compatibility import check_same_data
from mpitrain.train.engines.contract import StepEngine
from mpitrain.train.jacobian import build_jacobian_watch
from mpitrain.train.run_folder import RunFolder
from mpitrain.train.stop_request import StopRequest, listen_for_stop
from mpitrain.train.trainer import Trainer


def train(world: World, request: TrainRequest) -> int:
    """Train as requested and leave a run folder; return exit code 0. Collective.

    Raises the errors of `mpitrain.errors`, on all ranks together.
    """
    started_s = time.monotonic()
    loaded = load_settings(request, world)  # 2
    with open_session(world, loaded.config) as session, listen_for_stop() as stop_request:  # 1
        for line in (*loaded.notices, *world.notices):
            world.say(f"note: {line}", error=True)
        _train(world, session, loaded.config, request, stop_request, started_s)
    return 0


def _train(
    world: World, session: Session, config: RunConfig, request: TrainRequest, stop_request: StopRequest,
    started_s: float,
) -> None:  # fmt: skip
    folder = RunFolder.of(config)
    checkpoint = session.on_root(lambda: load_newest_checkpoint(folder, world)) if request.resume else None
    with as_before_if_refused(session, folder):
        session.on_root(folder.check_model_file)
        files = session.on_root(lambda: find_files(config, folder, request))
        source = open_source_on_root(selection_of(config, files), session)  # 3 files, 4 selection
        prepared = prepare(config, source, session, checkpoint)  # 5 layout, 6 dataset, 7 model and engine
        if checkpoint is not None:
            session.together(lambda: check_same_data(files, checkpoint, prepared.model))
        jacobian_watch = build_jacobian_watch(
            prepared.config, prepared.model, prepared.preview, session, prepared.layout.virtual_ranks
        )
        session.on_root(lambda: check_final_prediction(config, folder))
    session.on_root(lambda: prepare_folder(prepared, source, folder, request))
    world.failure_folder = folder.logs
    _announce(world, session, prepared, source.notices, files, folder)
    with watching(prepared, session, folder, checkpoint, request.log_level) as watcher, _closing(prepared.engine):
        save = checkpoint_saver(session, folder, prepared.settings)
        trainer = Trainer(config, session, prepared.model, prepared.engine, save, watcher, stop_request, jacobian_watch)
        if checkpoint is not None:
            trainer.resume(checkpoint)
        trainer.fit()  # 8
    finish_run(world, session, prepared, trainer, files, folder, time.monotonic() - started_s)  # 9
    predict_finally(world, session, prepared, files, folder)


def _announce(
    world: World, session: Session, prepared: PreparedRun, of_source: Sequence[str], files: Sequence[str],
    folder: RunFolder,
) -> None:  # fmt: skip
    for line in (*of_source, *prepared.notices):
        world.say(f"note: {line}", error=True)
    ranks, summary = session.ranks, prepared.dataset.summary
    nodes = f" on {ranks.num_nodes} nodes" if ranks.num_nodes > 1 else ""
    world.say(
        f"mpitrain: {ranks.world_size} rank{'s' if ranks.world_size > 1 else ''}{nodes}, backend "
        f"{session.backend}, {session.device.type}, reduction {_reduction(prepared, session)}, "
        f"engine {prepared.choice.words}; {summary.num_training_samples} training samples of {' '.join(files)}; "
        f"run folder {folder.path}"
    )


def _reduction(prepared: PreparedRun, session: Session) -> str:
    # The setting is of `standard`; the C++ program leaves the order of addition to the MPI library.
    return "in MPI's order" if prepared.config.semantics == "reference" else session.reduction


@contextmanager
def _closing(engine: StepEngine) -> Iterator[None]:
    """Close the engine after the block, and after an error if all ranks have it: else some may never come."""
    try:
        yield
    except MpitrainError as error:
        if is_agreed(error):
            engine.close()
        raise
    engine.close()
