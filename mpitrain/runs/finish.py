"""The end of a run: export the model, write the report, say what was reached and what to do next."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mpitrain.comm import Ranks, host_array
from mpitrain.config import DomainSection, VariablesSection
from mpitrain.data import CICE_INPUTS, CICE_TARGET
from mpitrain.inference.quality.evaluation import Evaluation
from mpitrain.observe import RunSummary, TestSkill
from mpitrain.observe.step_times import StepTiming
from mpitrain.observe.summary import are_in_memory, render_summary
from mpitrain.runs.page.findings import evaluate_run, findings_of_run, mean_loss_is_variance, skill_of
from mpitrain.runs.prepared_run import PreparedRun
from mpitrain.runs.saved_model import save_trained, write_page_and_model
from mpitrain.synthetic.history import read_noise_mse
from mpitrain.train import RunFolder, Trainer, named_weights, target_weights_of, weights_sha256
from mpitrain.train.profile import PROFILED_AFTER


def finish_run(
    ranks: Ranks, prepared: PreparedRun, trainer: Trainer, files: Sequence[str], folder: RunFolder,
    timing: StepTiming | None, wall_time_s: float, test: Callable[[], TestSkill | None] = lambda: None,
) -> RunSummary:  # fmt: skip
    """Write `model.pt`, its normalisation file and `report.html`; print the summary and return it. Collective.

    `test` returns the skill of the exported weights on samples that neither trained nor chose the epoch.
    """
    trainer.export_weights(prepared.config.exported_weights)
    phases = ranks.starting.phases(wall_time_s)
    finishing_s = time.monotonic()
    evaluation = evaluate_run(ranks, prepared)
    found = findings_of_run(prepared, evaluation)
    summary = _summarise(ranks, prepared, trainer, files, folder, wall_time_s, evaluation)
    ranks.on_root(lambda: save_trained(folder, prepared))  # first, for the test reads files again
    summary = skill_of(found, replace(summary, timing=timing, test=test()))
    ranks.note(*write_page_and_model(ranks, prepared, files, folder, summary, found))
    summary = replace(summary, phases=(*phases, ("model and report", time.monotonic() - finishing_s)))
    if prepared.config.training.profile_training and ranks.is_root and summary.profile_file is None:
        ranks.note(f"{folder.profile}: not written: it needs at least {PROFILED_AFTER} steps")
    ranks.say(*render_summary(summary).rstrip("\n").split("\n"))
    return summary


def _noise_mse(files: Sequence[str], prepared: PreparedRun) -> float | None:
    """Return what no network can beat, measured as the losses are; None where it is not known."""
    path, pole = Path(files[0]), prepared.config.domain.pole or "north"
    is_single = len(files) == 1 and path.suffix == ".nc" and path.is_file()
    if not is_single or pole == "both" or not asks_for_cice(prepared.config.variables, prepared.config.domain):
        return None
    noise_mse, output_std = read_noise_mse(path, pole), dict(prepared.model.named_buffers()).get("output_std")
    if noise_mse is None or output_std is None:
        return noise_mse
    return noise_mse / float(output_std[0]) ** 2


def asks_for_cice(names: VariablesSection, domain: DomainSection) -> bool:
    """Tell whether a run is for the ice concentration by a CICE history's own inputs, at the points of its rule."""
    own = names.input_variables in (None, list(CICE_INPUTS)) and names.output_variables in (None, [CICE_TARGET])
    return own and domain == type(domain)(pole=domain.pole)


def _summarise(
    ranks: Ranks, prepared: PreparedRun, trainer: Trainer, files: Sequence[str], folder: RunFolder,
    wall_time_s: float, evaluation: Evaluation | None,
) -> RunSummary:  # fmt: skip
    config, state, data = prepared.config, trainer.state, prepared.dataset.summary
    is_judged = evaluation is not None and data.holds_out and config.semantics == "standard"
    exports_best = config.exported_weights == "best" and state.best_loss is not None
    return RunSummary(
        run_folder=folder.path,
        model_file=folder.model,
        semantics=config.semantics,
        world_size=ranks.world_size,
        num_virtual_ranks=None if config.semantics == "reference" else prepared.layout.virtual_ranks.num_virtual_ranks,
        num_training_samples=data.num_training_samples,
        num_validation_samples=data.num_validation_samples,
        num_test_samples=data.num_test_samples or None,
        num_dropped_samples=data.num_dropped_samples,
        num_unselected_points=sum(prepared.left_out) or None,
        epochs=state.epoch,
        steps=state.global_step,
        steps_before=trainer.steps_before or None,
        wall_time_s=wall_time_s,
        train_loss=state.train_loss,
        validation_loss=state.best_loss if exports_best else state.validation_loss,
        mean_predictor_mse=_mean_predictor_loss(prepared, evaluation),
        baselines=prepared.baseline_losses(ranks) or None,
        noise_mse=ranks.on_root(lambda: _noise_mse(files, prepared)),
        weights_sha256=weights_sha256(named_weights(prepared.model)),
        best_epoch=state.best_epoch if exports_best else None,
        stopped_early=state.stopped_early or None,
        is_synthetic_data=config.data.data_path is None,
        is_handed_over=are_in_memory(files),
        names_code=prepared.names_code or None,
        split=_split_words(prepared),
        no_better_targets=(evaluation.no_better(data.target_names) or None) if is_judged and evaluation else None,
        profile_file=folder.profile if config.training.profile_training and folder.profile.exists() else None,
    )


def _mean_predictor_loss(prepared: PreparedRun, evaluation: Evaluation | None) -> float | None:
    """Return the loss of predicting the training means, measured as the losses are; None where it is not known."""
    config, summary = prepared.config, prepared.dataset.summary
    if evaluation is None or summary.moments is None:
        return None
    if evaluation.is_whole:
        return evaluation.mean_of("loss_of_mean")
    if not mean_loss_is_variance(config.training, config.data):
        return None
    std = host_array(dict(prepared.model.named_buffers()).get("output_std", np.ones(()))).astype(np.float64)
    of_targets, moments = slice(len(summary.input_names), None), summary.moments
    weights = moments.count[of_targets] * np.asarray(target_weights_of(config.training, summary.target_names) or 1.0)
    total = float(weights.sum())
    return float((weights * (moments.std[of_targets] / std) ** 2).sum()) / total if total else None


def _split_words(prepared: PreparedRun) -> str | None:
    """Return a description of what is held out, None where nothing is."""
    config, data = prepared.config, prepared.dataset.summary
    if not data.holds_out or data.held_out is not None:
        return data.held_out
    fold = f", fold {config.data.fold or 0} of {config.data.folds}" if config.data.folds else ""
    return f"each sample by itself, {100 * config.validation_split:.3g} % by seed {config.split_seed}{fold}"
