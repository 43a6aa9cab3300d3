"""What a run's page tells of the trained network: skill, points to plot, derivatives, where the errors are."""

from __future__ import annotations

from dataclasses import replace

from mpitrain.comm import Ranks
from mpitrain.config import DataSection, TrainingSection
from mpitrain.data import DataSummary
from mpitrain.inference.quality.evaluation import Evaluation, evaluator_of, together
from mpitrain.inference.quality.skill import check_finite
from mpitrain.observe import Findings, RunSummary, TargetSkill
from mpitrain.runs.prepared_run import PreparedRun

_PAIRS_PLOTTED, _SAMPLES_DERIVED = 5000, 512
# The RMSE of so many independent errors is known to about 13 %: 1 / sqrt(2 N).
_FEWEST_TO_JUDGE = 30
_HOW_TO_JUDGE = "; too few to judge by: mpitrain ensemble with ensemble.folds=5 holds out each sample once"


def evaluate_run(ranks: Ranks, prepared: PreparedRun) -> Evaluation | None:
    """Return what the ranks' samples tell, on the root; elsewhere, and where there are none, None. Collective.

    Of all held-out samples where there are any; else of some that it was trained on, or all, if the loss of predicting
    their mean is not known otherwise. The numbers are the same on any number of ranks. Raises TrainingError, on all
    ranks, for predictions that are not finite.
    """
    gathered = ranks.gather_object(ranks.on_all_ranks(lambda: _parts(prepared)))
    parts = sorted((part for of_rank in gathered or () for part in of_rank), key=lambda part: part.virtual_rank)
    return together(parts) if ranks.is_root and parts else None


def _parts(prepared: PreparedRun) -> list[Evaluation]:
    """Return what each virtual rank's samples give; the same on whatever rank they are."""
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
    """Tell whether the loss of predicting the training means of the training samples is the variance of the targets.

    The variance counts areas where `data.area_weighted` does, also where losses do not.
    """
    return training.loss_function.is_squared_error and (training.area_weighted_loss or not data.area_weighted)


def findings_of_run(prepared: PreparedRun, found: Evaluation | None) -> Findings:
    """Return what the page of a run shows of the evaluation of its network."""
    if found is None:
        return Findings()
    summary = prepared.dataset.summary
    names = summary.target_names, summary.input_names
    of_targets, of_inputs = ([prepared.units.get(name, "") for name in some] for some in names)
    words = words_of_samples(summary, found.targets[0].errors.count, prepared.config.exported_weights == "best")
    return found.findings(names, (of_targets, of_inputs), words)


def skill_of(found: Findings, summary: RunSummary) -> RunSummary:
    """Return the summary with the errors of each target, where there are any."""
    skills = [TargetSkill.of(one.name, one.units, one.sums) for one in found.skills if one.sums.count]
    samples = found.of_samples[:1].lower() + found.of_samples[1:].rstrip(".")
    return replace(summary, skills=tuple(skills), skill_samples=samples) if skills else summary


def words_of_samples(summary: DataSummary, count: int, choose_epoch: bool) -> str:
    """Return which samples a skill over `count` values is of; of few it says that they are no measure.

    `choose_epoch`: whether they chose the weights that it is of.
    """
    if not summary.holds_out:
        return f"Over samples that it was trained on, for none is held out: {count:,} values of each target."
    number = summary.num_validation_samples or 0
    values = f"{count:,} value{'' if count == 1 else 's'} of each target"
    fields = f"{number:,} field{'' if number == 1 else 's'}, " if count > number else ""
    few = _HOW_TO_JUDGE if number < _FEWEST_TO_JUDGE else ""
    return f"Over all held-out samples, {fields}{values}{', which also chose the epoch' if choose_epoch else ''}{few}."
