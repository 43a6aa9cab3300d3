"""The training of one member: the steps of a single run, on samples that members share."""

from __future__ import annotations

import time

from mpitrain.comm.tensors import settle_order_and_threads
from mpitrain.config import RunConfig, render_yaml
from mpitrain.ensemble.outcome import Outcome
from mpitrain.ensemble.plan.members import Member
from mpitrain.ensemble.training.member_files import WORTH_WAITING_S, ModelFiles, begin_folder
from mpitrain.ensemble.training.member_fit import MemberTools, fit_member
from mpitrain.ensemble.training.restart import restarted
from mpitrain.inference.quality.skill import check_predictions
from mpitrain.runs.layout import plan_layout
from mpitrain.runs.prepare import PreparedRun, prepare_on
from mpitrain.train import RunFolder, TrainingState, named_weights, weights_sha256
from mpitrain.train.checkpoint.compatibility import check_same_data


def train_member(member: Member, config: RunConfig, tools: MemberTools) -> Outcome:
    """Train `member`, from its newest checkpoint if there is one, and write its run folder. Collective.

    The weights equal those of `mpitrain train` with its config.yaml. Raises the errors of `mpitrain.errors` on all
    ranks of the group together.
    """
    group = tools.group
    settle_order_and_threads(group, config.semantics, config.training)
    folder = RunFolder.of(config.output)
    checkpoint = group.on_root(lambda: begin_folder(folder, tools.claim))
    source = tools.data.source(config, group)
    config = config if checkpoint is None else config.with_split(checkpoint.held_out_by)
    rule = plan_layout(config, group, checkpoint, source.kind)
    dataset = tools.data.dataset(config, rule, group)
    layout = rule.layout(dataset.summary.num_usable_samples, dataset.summary.num_training_samples)
    config = config.with_split(dataset.summary.split.settled if dataset.summary.split else {})
    prepared = None
    if checkpoint is None:
        ended, tools.ended = tools.ended, None
        prepared = restarted(ended, config, dataset, layout, group)
    if prepared is None:
        prepared = prepare_on(config, dataset, layout, group, checkpoint, source.units, tools.caches)
    prepared.store_run(tools.claim.run)
    if checkpoint is not None:
        group.on_all_ranks(lambda: check_same_data(source.selection.files, checkpoint, prepared.model))
    as_trained = config.with_lag_step(source.layout.lag_step_days)
    as_trained = as_trained.model_copy(update={"training": prepared.config.training})
    group.on_root(lambda: folder.write_settings(render_yaml(as_trained), waits_for_disk=False))
    record = group.on_root(lambda: tools.records.begin(group, prepared, source, checkpoint))
    started_s = time.monotonic()
    trainer = fit_member(prepared, checkpoint, folder, tools)
    training_s = time.monotonic() - started_s
    trainer.export_weights(config.exported_weights)
    group.on_root(lambda: _finish(prepared, trainer.state, folder, tools.files, training_s > WORTH_WAITING_S))
    outcome = _outcome(member, prepared, trainer.state, training_s)
    group.on_root(lambda: tools.records.end(folder, record, prepared, source, trainer.state.global_step, outcome))
    # Not after a failure: values that are not finite may remain in the engine's memory.
    tools.ended = prepared
    return outcome


def _finish(
    prepared: PreparedRun, state: TrainingState, folder: RunFolder, files: ModelFiles, waits_for_disk: bool
) -> None:
    # Without output transforms a finite validation loss implies finite predictions.
    if state.validation_loss is None or prepared.config.model.transforms:
        check_predictions(prepared.model, prepared.preview)
    files.write(prepared.model, folder.model, prepared.description, waits_for_disk)


def _outcome(member: Member, prepared: PreparedRun, state: TrainingState, training_s: float) -> Outcome:
    is_best = prepared.config.exported_weights == "best" and state.best_loss is not None
    validation_loss = state.best_loss if is_best else state.validation_loss
    return Outcome(
        member.number,
        "done",
        state.epoch,
        state.train_loss if validation_loss is None else validation_loss,
        state.train_loss,
        validation_loss,
        state.best_epoch if is_best else None,
        weights_sha256(named_weights(prepared.model)),
        training_s,
    )
