"""One member's training: the corridor of a run of its own, on the samples that all members share."""

from __future__ import annotations

import time

from mpitrain.comm.tensors import settle_order_and_threads
from mpitrain.config import RunConfig
from mpitrain.ensemble.outcome import Outcome
from mpitrain.ensemble.plan.members import Member
from mpitrain.ensemble.training.member_files import (
    WORTH_WAITING_S,
    ModelFiles,
    begin_folder,
    write_settings,
)
from mpitrain.ensemble.training.member_fit import MemberTools, fit_member
from mpitrain.inference.skill import check_predictions
from mpitrain.runs.layout import plan_layout
from mpitrain.runs.prepare import PreparedRun, prepare_on
from mpitrain.train.checkpoint.compatibility import check_same_data
from mpitrain.train.checkpoint.format import weights_sha256
from mpitrain.train.run_folder import RunFolder
from mpitrain.train.state import TrainingState, load_named_weights, named_weights


def train_member(member: Member, config: RunConfig, epochs: int, rung: int, tools: MemberTools) -> Outcome:
    """Train `member` for `epochs` in all, from its newest checkpoint on, and leave its run folder. Collective.

    The weights are those of `mpitrain train` with its config.yaml. Raises the errors of `mpitrain.errors`, on all ranks
    of the group together.
    """
    group = tools.group
    settle_order_and_threads(group, config)
    folder = RunFolder.of(config)
    checkpoint = group.on_root(lambda: begin_folder(folder))
    source = tools.data.source(config, group)
    layout = plan_layout(config, group, checkpoint)
    dataset = tools.data.dataset(config, layout.virtual_ranks, group)
    prepared = prepare_on(config, dataset, layout, group, checkpoint, source.units, tools.known)
    if checkpoint is not None:
        group.on_all_ranks(lambda: check_same_data(source.selection.files, checkpoint, prepared.model))
    limited = _until(prepared, epochs)
    group.on_root(lambda: write_settings(folder, limited))
    started_s = time.monotonic()
    trainer, is_finished = fit_member(prepared, limited, checkpoint, folder, tools)
    training_s = time.monotonic() - started_s
    if config.exported_weights == "best" and trainer.best_weights is not None:
        load_named_weights(prepared.model, trainer.best_weights)
    if is_finished:
        group.on_root(lambda: _finish(prepared, trainer.state, folder, tools.files, training_s > WORTH_WAITING_S))
    outcome = _outcome(member, rung, prepared, trainer.state, is_finished, training_s)
    # Not after a failure: what a loss that is not finite has left in the engine's memory is nobody's to begin with.
    tools.known.ended = prepared
    return outcome


def _until(prepared: PreparedRun, epochs: int) -> RunConfig:
    """Return the settings of a run that stops after `epochs`; its schedules are those of the whole training."""
    config = prepared.config
    if epochs >= config.training.epochs:
        return config
    max_steps = epochs * prepared.engine.steps_per_epoch
    return config.model_copy(update={"training": config.training.model_copy(update={"max_steps": max_steps})})


def _finish(
    prepared: PreparedRun, state: TrainingState, folder: RunFolder, files: ModelFiles, waits_for_disk: bool
) -> None:
    # Of what is learnt as it is, a finite validation loss has seen it all.
    if state.validation_loss is None or prepared.config.model.output_transforms:
        check_predictions(prepared.model, prepared.preview)
    files.write(prepared.model, folder.model, prepared.description, waits_for_disk)


def _outcome(
    member: Member, rung: int, prepared: PreparedRun, state: TrainingState, is_finished: bool, training_s: float
) -> Outcome:
    is_best = prepared.config.exported_weights == "best" and state.best_loss is not None
    validation_loss = state.best_loss if is_best else state.validation_loss
    return Outcome(
        member.number,
        rung,
        "done" if is_finished else "given up",
        state.epoch,
        state.train_loss if validation_loss is None else validation_loss,
        state.train_loss,
        validation_loss,
        state.best_epoch if is_best else None,
        weights_sha256(named_weights(prepared.model)) if is_finished else None,
        training_s,
    )
