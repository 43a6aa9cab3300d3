"""One training run, in chronological order. The numbers of its steps are those of `cpp_reference/main.cpp`."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from mpitrain.comm import Ranks, open_tensors
from mpitrain.config import NEWEST_RULES, RunConfig
from mpitrain.data import expand_paths, name_files, open_source_on_root, selection_of
from mpitrain.observe.logs import log_into
from mpitrain.observe.trackers.open_trackers import check_trackers
from mpitrain.runs.beginning import (
    TrainRequest,
    claimed_folder,
    files_removed_on_error,
    load_newest_checkpoint,
    load_settings,
    open_folder,
)
from mpitrain.runs.final_prediction import (
    check_final_prediction,
    open_test_files,
    predict_finally,
    skill_of_test,
)
from mpitrain.runs.prepare import PreparedRun, prepare
from mpitrain.runs.run_log import log_start, report_end, run_log, tracking
from mpitrain.runs.watching import CheckpointCallback, jacobian_callbacks, watching
from mpitrain.synthetic.stand_in import find_or_write_data
from mpitrain.train import ClaimedFolder, EngineRequest, StopRequest, Trainer
from mpitrain.train.stop_request import listen_for_stop


def train(ranks: Ranks, request: TrainRequest) -> int:
    """Train as requested and write a run folder; return exit code 0. Collective.

    Raises the errors of `mpitrain.errors` on all ranks together.
    """
    started_s = time.monotonic()
    with run_log(ranks, request.log_level) as logger:
        ranks.starting.now("reading the settings")
        loaded = load_settings(request, ranks)  # 2
        config = loaded.config
        engine_request = EngineRequest(config.semantics, config.training, config.distributed)
        needs_torch = not engine_request.may_need_no_torch(config.network)
        of_tensors = config.semantics, config.compute, config.training, config.distributed.timeout_s
        with open_tensors(ranks, *of_tensors, needs_torch), listen_for_stop() as stop_request:  # 1
            ranks.note(*loaded.notices, *ranks.notices)
            ranks.on_all_ranks(config.check_code)
            with claimed_folder(ranks, loaded, request) as folder:
                _train(ranks, config, folder, request, stop_request, logger, started_s)
    return 0


def _train(
    ranks: Ranks, config: RunConfig, folder: ClaimedFolder, request: TrainRequest, stop_request: StopRequest,
    logger: logging.Logger, started_s: float,
) -> None:  # fmt: skip
    checkpoint = ranks.on_root(lambda: load_newest_checkpoint(folder, request, ranks)) if request.resume else None
    config = config.with_rules(NEWEST_RULES if checkpoint is None else checkpoint.rules)
    config = config if checkpoint is None else config.with_split(checkpoint.held_out_by)
    with files_removed_on_error() as made:
        ranks.starting.now("opening the data")
        may_replace = request.resume, request.overwrite
        files = find_or_write_data(ranks, config.data, config.seed, folder, made, *may_replace)
        selection = replace(selection_of(config, files, to_learn=True), is_resumed=checkpoint is not None)
        source = open_source_on_root(selection, ranks)  # 3 files, 4 selection
        config = config.with_lag_step(source.layout.lag_step_days)
        others = (request.config_path, config.network.initial_weights)
        tested = ranks.on_root(lambda: expand_paths(config.data.test_entries)) if config.data.test_entries else ()
        inputs = [*source.paths, *(Path(one) for one in others if one), *tested]
        # Before the training, check that all outputs can be written after it.
        ranks.on_root(lambda: folder.check_model_file(inputs, request.overwrite))
        ranks.on_root(lambda: check_trackers(config.tracking))
        prepared = prepare(config, source, ranks, checkpoint)  # 5 layout, 6 dataset, 7 model and engine
        config = prepared.config  # with the defaults that follow from the number of samples
        jacobian_watchers = jacobian_callbacks(prepared, ranks)
        ranks.on_root(lambda: check_final_prediction(config, folder, inputs, request.overwrite))
        test_files = open_test_files(config, source, ranks)
    recorder = open_folder(ranks, prepared, source, folder, request, checkpoint)
    log_into(logger, folder.path, ranks.rank, ranks.host)
    _announce(ranks, prepared, source.notices, files, folder)
    with tracking(ranks, config, folder, checkpoint) as trackers:
        with watching(prepared, ranks, folder, checkpoint, logger, trackers) as (watchers, meter):
            callbacks = [*jacobian_watchers, *watchers, CheckpointCallback(ranks, folder, prepared.settings, logger)]
            of_run = config.training, ranks, prepared.model, prepared.engine, callbacks, stop_request
            trainer = Trainer(*of_run, validates_first_weights=config.network.starts_from_regression)
            if checkpoint is not None:
                trainer.resume(checkpoint)
            ranks.starting.done()
            log_start(logger, ranks, prepared)
            trainer.fit()  # 8
            timing = meter.whole()
        ranks.on_root(folder.check_claim)
        from mpitrain.runs.finish import finish_run  # imported here because the start does not need it

        test = partial(skill_of_test, ranks, prepared, source, test_files, folder, trainer.state.global_step)
        summary = finish_run(ranks, prepared, trainer, files, folder, timing, time.monotonic() - started_s, test)  # 9
        report_end(trackers, summary)
        recorder.end(summary, time.monotonic() - started_s)
        predict_finally(ranks, prepared, files, folder)


def _announce(
    ranks: Ranks, prepared: PreparedRun, of_source: Sequence[str], files: Sequence[str], folder: ClaimedFolder
) -> None:  # fmt: skip
    ranks.note(*of_source, *prepared.notices)
    summary = prepared.dataset.summary
    nodes = f" on {ranks.num_nodes} nodes" if ranks.num_nodes > 1 else ""
    # `training.reduction` is an option of `standard`; the C++ program leaves the order of addition to the MPI library.
    reduction = "in MPI's order" if prepared.config.semantics == "reference" else ranks.reduction
    ranks.say(
        f"mpitrain: {ranks.world_size} rank{'s' if ranks.world_size > 1 else ''}{nodes}, backend "
        f"{ranks.backend}, {ranks.device.type}, reduction {reduction}, "
        f"engine {prepared.choice.description}; {summary.num_training_samples} training samples of "
        f"{name_files(files)}; run folder {folder.path}"
    )
