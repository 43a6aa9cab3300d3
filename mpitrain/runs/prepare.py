"""Steps 5 to 7 of a run: from its data to the arguments of a `Trainer`. Nothing is trained here."""

from __future__ import annotations

from collections.abc import Mapping

from mpitrain.comm import Ranks
from mpitrain.config import FIRST_RULES, DataSection, RunConfig, TrainingSection
from mpitrain.data import Dataset, DataSummary, Samples, SampleSource
from mpitrain.data.open_dataset import hold_samples, open_dataset
from mpitrain.runs.build import data_request, engine_request, model_request
from mpitrain.runs.engine import build_engine, plan_run_batches, rounding_notice, unused_notices
from mpitrain.runs.layout import RunLayout, grid_for_defaults, plan_layout
from mpitrain.runs.model import check_bounds, check_kind, check_scales, first_weights_notices
from mpitrain.runs.parts import Caches, PartsToChoose
from mpitrain.runs.prepared_run import PreparedRun as PreparedRun  # what prepare returns, for its callers
from mpitrain.train import Checkpoint
from mpitrain.train.checkpoint.compatibility import check_fits, check_same_data, checkpoint_settings
from mpitrain.train.choose_engine import cpu_notices, slow_step_notices, strategy_notices

_MOST_NAMED = 4


def prepare(config: RunConfig, source: SampleSource, ranks: Ranks, checkpoint: Checkpoint | None) -> PreparedRun:
    """Return a run that is ready to train on the samples of `source`, from `checkpoint` if it is given. Collective.

    Raises the errors of `mpitrain.errors` on all ranks together.
    """
    ranks.on_all_ranks(lambda: check_kind(config.network, config.training.loss_weights, source))
    grid = grid_for_defaults(source)
    rule = plan_layout(config, ranks, checkpoint, source.kind, decides=True, grid=grid)  # 5 layout
    ranks.starting.now("reading the samples")
    dataset = open_dataset(data_request(config), source, rule.virtual_ranks, ranks)  # 5-6 shares and statistics
    summary = dataset.summary
    layout = rule.layout(summary.num_usable_samples, summary.num_training_samples)
    decided = rule.decided(summary.num_usable_samples)
    recorded = decided.config.with_split(summary.split.settled if summary.split else {})
    prepared = prepare_on(recorded, dataset, layout, ranks, checkpoint, source.units)
    prepared = prepared.of_source(source, decided.notices, ranks)
    if checkpoint is not None:
        ranks.on_all_ranks(lambda: check_same_data(source.selection.files, checkpoint, prepared.model))
    return prepared


def prepare_on_samples(config: RunConfig, samples: Samples, ranks: Ranks) -> PreparedRun:
    """Return a run that is ready to train on samples in memory; `samples` are this rank's part. Collective."""
    rule = plan_layout(config, ranks, None, "fields" if samples.inputs.ndim > 2 else "points")
    dataset = hold_samples(data_request(config), samples, rule.virtual_ranks, ranks)
    layout = rule.layout(dataset.summary.num_usable_samples, dataset.summary.num_training_samples)
    return prepare_on(config, dataset, layout, ranks, None, {})


def prepare_on(
    config: RunConfig, dataset: Dataset, layout: RunLayout, ranks: Ranks, checkpoint: Checkpoint | None,
    units: Mapping[str, str], caches: Caches | None = None,
) -> PreparedRun:  # fmt: skip
    """Build the network and the engine for `dataset`. Collective. Raises the errors of `mpitrain.errors` on all ranks.

    `caches`: objects from earlier runs of this process on these ranks.
    """
    ranks.starting.now("building the network")
    ranks.on_all_ranks(lambda: check_bounds(config.network, dataset.summary))
    if checkpoint is None:
        ranks.on_all_ranks(lambda: check_scales(config.training.dtype, dataset.summary))
    # A resumed run keeps its engine, also if a faster one exists by now: other engines give other bits.
    resumed_engine = str(checkpoint.settings["training.engine"]) if checkpoint else None
    plan = plan_run_batches(config.training, dataset, layout, ranks)
    request = engine_request(config).resuming(resumed_engine)
    of_choice = config, request, dataset, plan, layout.virtual_ranks, ranks, caches or Caches()
    model, dataset, sources, choice = PartsToChoose(*of_choice).choose()
    settings = checkpoint_settings(
        config,
        ranks,
        dataset.summary,
        0 if config.semantics == "reference" else layout.virtual_ranks.num_virtual_ranks,
        layout.global_batch_size,
        choice.name,
        layout.virtual_ranks.num_streams,
        has_exact_batches=layout.exact_batches,
    )
    # Before the engine is built, which allocates and compiles: a checkpoint that does not fit ends the run at once.
    differences = ranks.on_all_ranks(lambda: check_fits(checkpoint, settings) if checkpoint else [])
    engine = build_engine(request, config.seed, choice, dataset, model, sources, plan, layout, ranks)
    of_engine = (
        *choice.notices,
        *slow_step_notices(request, choice, model, ranks.device),
        *strategy_notices(config.distributed, choice.name),
        *first_weights_notices(model_request(config), model),
        *cpu_notices(request.instruction_set, choice, ranks),
    )
    of_data = [
        *_data_notices(config.semantics, config.data, config.training, dataset, layout),
        *rounding_notice(plan, layout),
    ]
    notices = (
        *dataset.notices,
        *layout.notices,
        *of_engine,
        *differences,
        *of_data,
        *unused_notices(config, choice.name, model, ranks),
    )
    return PreparedRun(config, dataset, layout, model, plan, engine, choice, settings, notices, units)


def _data_notices(
    semantics: str, data: DataSection, training: TrainingSection, dataset: Dataset, layout: RunLayout
) -> list[str]:
    summary, notices = dataset.summary, []
    if data.shared_memory:
        notices.append("data.shared_memory: each sample is held on one rank, there is nothing to share")
    if semantics == "reference":
        return notices
    if summary.num_dropped_samples:
        held = "sample holds" if summary.num_dropped_samples == 1 else "samples hold"
        left = "is" if summary.num_dropped_samples == 1 else "are"
        what = f"{summary.num_dropped_samples} selected {held} a NaN or a fill value and {left} left out"
        notices.append(f"{what}{_missing_by_variable(summary)}")
    if summary.constant_features:
        notices.append(
            f"constant over the training samples, centred and not scaled: {', '.join(summary.constant_features)}"
        )
    if training.dtype == "float32" and summary.coarse_features:
        notices.append(_coarse_notice(summary.coarse_features, data.rules))
    notices += [
        f"{name}: some of its values are {value:.7g}, far from the mean; if that marks missing data, exclude it with "
        "domain.mask"
        for name, value in summary.probable_fill_values.items()
    ]
    return [*notices, *_batch_notices(training, summary.num_training_samples, layout.global_batch_size)]


def _missing_by_variable(summary: DataSummary) -> str:
    """Return the number of samples without a value of each variable, the largest number first."""
    names = (*summary.input_names, *summary.target_names)
    counts = sorted(zip(summary.num_missing, names, strict=False), key=lambda one: -one[0])
    found = [f"{count} of {name}" for count, name in counts if count]
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f": {', '.join(found[:_MOST_NAMED])}{more}" if found else ""


def _coarse_notice(coarse: Mapping[str, tuple[float, float]], rules: int | None) -> str:
    name, (mean, std) = next(iter(coarse.items()))
    derived = f", or a derived variable, which is computed in float64, such as '{name} - {mean:.6g}'"
    can_derive = rules != FIRST_RULES and (name.isidentifier() or "[" in name)
    return (
        f"float32 resolves {', '.join(coarse)} coarsely ({name}: standard deviation {std:.3g}, mean {mean:.7g}); if "
        f"the file has more digits, use training.dtype=float64{derived if can_derive else ''}"
    )


def _batch_notices(training: TrainingSection, num_training_samples: int, batch_size: int | str) -> list[str]:
    if training.batch_size in (None, "full"):
        return []
    notices = [
        f"training.batch_size={training.batch_size} is per rank (global batch {batch_size}): "
        "results depend on the number of ranks; with training.global_batch_size they do not"
    ]
    if int(batch_size) > num_training_samples:
        notices.append(f"global batch {batch_size}: there are only {num_training_samples} training samples")
    return notices
