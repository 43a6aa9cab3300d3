"""The end of a run: export the model, write the report, print the summary and the next commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mpitrain.comm import Ranks, host_array
from mpitrain.config import DataSection, DomainSection, TrainingSection, VariablesSection
from mpitrain.data import CICE_INPUTS, CICE_TARGET, DataSummary
from mpitrain.inference.quality.evaluation import Evaluation, evaluator_of, together
from mpitrain.inference.quality.skill import check_finite
from mpitrain.observe import Findings, RunSummary, TargetSkill, TestSkill
from mpitrain.observe.step_times import StepTiming
from mpitrain.observe.summary import are_in_memory, render_summary
from mpitrain.runs.prepared_run import PreparedRun
from mpitrain.runs.saved_model import save_trained, write_page_and_model
from mpitrain.synthetic.history import read_noise_mse
from mpitrain.train import RunFolder, Trainer, named_weights, target_weights_of, trusts_code_of, weights_sha256
from mpitrain.train.profile import PROFILED_AFTER
from mpitrain.train.torchs_own import is_torch_class

_PAIRS_PLOTTED, _SAMPLES_DERIVED = 5000, 512
# The RMSE of N = 30 independent errors is uncertain by about 13 %: 1 / sqrt(2 N).
_FEWEST_TO_JUDGE = 30
_HOW_TO_JUDGE = "; too few for a reliable RMSE: mpitrain ensemble with ensemble.folds=5 holds out each sample once"


def finish_run(
    ranks: Ranks, prepared: PreparedRun, trainer: Trainer, files: Sequence[str], folder: RunFolder,
    timing: StepTiming | None, wall_time_s: float, test: Callable[[], TestSkill | None] = lambda: None,
) -> RunSummary:  # fmt: skip
    """Write `model.pt`, its normalisation file and `report.html`; print the summary and return it. Collective.

    `test` returns the skill of the exported weights on samples used neither to train nor to choose the epoch.
    """
    trainer.export_weights(prepared.config.exported_weights)
    phases = ranks.starting.phases(wall_time_s)
    finishing_s = time.monotonic()
    evaluation = evaluate_run(ranks, prepared)
    found = findings_of_run(prepared, evaluation)
    summary = _summarise(ranks, prepared, trainer, files, folder, wall_time_s, evaluation)
    ranks.on_root(lambda: save_trained(folder, prepared))  # before the test, which reads data files and may fail
    names_code = not all(map(is_torch_class, prepared.config.code_names.values()))
    needs_trust = names_code and not ranks.on_root(lambda: trusts_code_of(folder.path, False))
    summary = skill_of(found, replace(summary, timing=timing, test=test(), needs_trust=needs_trust or None))
    ranks.note(*write_page_and_model(ranks, prepared, files, folder, summary, found))
    summary = replace(summary, phases=(*phases, ("model and report", time.monotonic() - finishing_s)))
    if prepared.config.training.profile_training and ranks.is_root and summary.profile_file is None:
        ranks.note(f"{folder.profile}: not written: it needs at least {PROFILED_AFTER} steps")
    ranks.say(*render_summary(summary).rstrip("\n").split("\n"))
    return summary


def _noise_mse(files: Sequence[str], prepared: PreparedRun) -> float | None:
    """Return the MSE of the noise in synthetic targets, in the units of the loss; None if it is not known.

    No network can have a lower expected loss.
    """
    path, pole = Path(files[0]), prepared.config.domain.pole or "north"
    is_single = len(files) == 1 and path.suffix == ".nc" and path.is_file()
    if not is_single or pole == "both" or not asks_for_cice(prepared.config.variables, prepared.config.domain):
        return None
    noise_mse, output_std = read_noise_mse(path, pole), dict(prepared.model.named_buffers()).get("output_std")
    if noise_mse is None or output_std is None:
        return noise_mse
    return noise_mse / float(output_std[0]) ** 2


def asks_for_cice(names: VariablesSection, domain: DomainSection) -> bool:
    """Return whether the variables and, but for the pole, the domain are the defaults for a CICE history file."""
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
        split=_split_description(prepared),
        no_better_targets=(evaluation.no_better(data.target_names) or None) if is_judged and evaluation else None,
        profile_file=folder.profile if config.training.profile_training and folder.profile.exists() else None,
    )


def _mean_predictor_loss(prepared: PreparedRun, evaluation: Evaluation | None) -> float | None:
    """Return the loss of predicting the training means, computed as other losses are; None if it is not known."""
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


def _split_description(prepared: PreparedRun) -> str | None:
    """Return a description of the held-out samples, or None if there are none."""
    config, data = prepared.config, prepared.dataset.summary
    if not data.holds_out or data.held_out is not None:
        return data.held_out
    fold = f", fold {config.data.fold or 0} of {config.data.folds}" if config.data.folds else ""
    return f"single samples at random, {100 * config.validation_split:.3g} % by seed {config.split_seed}{fold}"


def evaluate_run(ranks: Ranks, prepared: PreparedRun) -> Evaluation | None:
    """Return the evaluation of the network on the root; None on other ranks and if there are no samples. Collective.

    It is over all held-out samples. If there are none, it is over some training samples, or over all of them if the
    loss of predicting their mean is not otherwise known. Its numbers do not depend on the number of ranks. Raises
    TrainingError on all ranks if predictions are not finite.
    """
    gathered = ranks.gather_object(ranks.on_all_ranks(lambda: _parts(prepared)))
    parts = sorted((part for of_rank in gathered or () for part in of_rank), key=lambda part: part.virtual_rank)
    return together(parts) if ranks.is_root and parts else None


def _parts(prepared: PreparedRun) -> list[Evaluation]:
    """Return the evaluation of each virtual rank's samples, which does not depend on the rank that owns them."""
    evaluator = evaluator_of(prepared.config.training, prepared.model, prepared.dataset.summary)
    num_parts = prepared.layout.virtual_ranks.num_virtual_ranks
    sizes = -(-_PAIRS_PLOTTED // num_parts), -(-_SAMPLES_DERIVED // num_parts)
    holds_out, is_streamed = prepared.dataset.summary.holds_out, prepared.config.data.streaming
    is_whole = holds_out or not (is_streamed or mean_loss_is_variance(prepared.config.training, prepared.config.data))
    with_places = holds_out and not is_streamed
    found = (evaluator.evaluate(source, is_whole, *sizes, with_places) for source in prepared.preview)
    parts = [part for part in found if part is not None]
    check_finite(all(part.is_finite for part in parts))
    return parts


def mean_loss_is_variance(training: TrainingSection, data: DataSection) -> bool:
    """Return whether predicting the mean of the training targets has their variance as its loss on training samples.

    With `data.area_weighted` the variance is weighted by area, even if the loss is not.
    """
    return training.loss_function.is_squared_error and (training.area_weighted_loss or not data.area_weighted)


def findings_of_run(prepared: PreparedRun, found: Evaluation | None) -> Findings:
    """Return the part of an evaluation of the network that `report.html` shows."""
    if found is None:
        return Findings()
    summary = prepared.dataset.summary
    names = summary.target_names, summary.input_names
    of_targets, of_inputs = ([prepared.units.get(name, "") for name in some] for some in names)
    of_samples = describe_samples(summary, found.targets[0].errors.count, prepared.config.exported_weights == "best")
    return found.findings(names, (of_targets, of_inputs), of_samples)


def skill_of(found: Findings, summary: RunSummary) -> RunSummary:
    """Return the summary with the errors of each target added, if there are any."""
    skills = [TargetSkill.of(one.name, one.units, one.sums) for one in found.skills if one.sums.count]
    samples = found.of_samples[:1].lower() + found.of_samples[1:].rstrip(".")
    return replace(summary, skills=tuple(skills), skill_samples=samples) if skills else summary


def describe_samples(summary: DataSummary, count: int, choose_epoch: bool) -> str:
    """Return a sentence on the samples of a skill over `count` values, with a warning if they are few.

    `choose_epoch`: whether these samples also chose the epoch of the exported weights.
    """
    if not summary.holds_out:
        return f"Over training samples, since none are held out: {count:,} values of each target."
    number = summary.num_validation_samples or 0
    values = f"{count:,} value{'' if count == 1 else 's'} of each target"
    fields = f"{number:,} field{'' if number == 1 else 's'}, " if count > number else ""
    few = _HOW_TO_JUDGE if number < _FEWEST_TO_JUDGE else ""
    return f"Over all held-out samples, {fields}{values}{', which also chose the epoch' if choose_epoch else ''}{few}."
