"""Steps 5 to 7 of a run: from its data to what a `Trainer` is made of. Nothing is trained here."""

from __future__ import annotations

from collections.abc import Mapping

from mpitrain.comm.ranks import Ranks
from mpitrain.config import RunConfig
from mpitrain.data.dataset.dataset import Dataset
from mpitrain.data.open_dataset import hold_samples, open_dataset
from mpitrain.data.samples import Samples
from mpitrain.data.selection.source import SampleSource
from mpitrain.runs.engine import (
    build_engine,
    cpu_notices,
    open_microbatches,
    plan_run_batches,
    unused_notices,
)
from mpitrain.runs.layout import RunLayout, plan_layout
from mpitrain.runs.model import build_model, check_bounds, check_kind
from mpitrain.runs.prepared_run import KnownParts, restarted
from mpitrain.runs.prepared_run import PreparedRun as PreparedRun  # what prepare returns, for its callers
from mpitrain.train.checkpoint.compatibility import check_fits, check_same_data, checkpoint_settings
from mpitrain.train.checkpoint.store import Checkpoint
from mpitrain.train.choose_engine import choose_engine, set_switches, strategy_notices
from mpitrain.train.losses import target_weights_of


def prepare(config: RunConfig, source: SampleSource, ranks: Ranks, checkpoint: Checkpoint | None) -> PreparedRun:
    """Return what trains on the samples of `source`, as far as `checkpoint` allows. Collective.

    Raises the user's errors on all ranks together.
    """
    ranks.on_all_ranks(lambda: check_kind(config, source))
    layout = plan_layout(config, ranks, checkpoint)  # 5 who computes what
    ranks.starting.now("reading the samples")
    dataset = open_dataset(config, source, layout.virtual_ranks, ranks)  # 5-6 shares and statistics
    prepared = prepare_on(config, dataset, layout, ranks, checkpoint, source.units)
    if checkpoint is not None:
        ranks.on_all_ranks(lambda: check_same_data(source.selection.files, checkpoint, prepared.model))
    return prepared


def prepare_on_samples(config: RunConfig, samples: Samples, ranks: Ranks) -> PreparedRun:
    """Return what trains on samples in memory: this rank's part of what all ranks hold together. Collective."""
    layout = plan_layout(config, ranks, None)
    dataset = hold_samples(config, samples, layout.virtual_ranks, ranks)
    return prepare_on(config, dataset, layout, ranks, None, {})


def prepare_on(
    config: RunConfig, dataset: Dataset, layout: RunLayout, ranks: Ranks, checkpoint: Checkpoint | None,
    units: Mapping[str, str], known: KnownParts | None = None,
) -> PreparedRun:  # fmt: skip
    """Build model and engine for `dataset`. Collective. Raises the user's errors on all ranks together."""
    known = known or KnownParts()
    again = restarted(known.take_ended(), config, dataset, layout, ranks) if checkpoint is None else None
    if again is not None:
        return again
    ranks.starting.now("building the network")
    set_switches(config.training)
    ranks.on_all_ranks(lambda: check_bounds(config, dataset.summary))
    model = build_model(config, dataset.summary, ranks, known.models)  # 7 first weights and normalisation
    resumed_engine = str(checkpoint.settings["training.engine"]) if checkpoint else None
    plan = plan_run_batches(config, dataset, layout, ranks)
    sources, example = open_microbatches(config, dataset, model, plan, ranks, known.answers)
    weights = target_weights_of(config.training, dataset.summary.target_names)
    choice = ranks.on_all_ranks(
        lambda: choose_engine(config, ranks, model, example, resumed_engine, len(sources), weights, known.kernels)
    )
    settings = checkpoint_settings(
        config, ranks, dataset.summary, _num_virtual_ranks(config, layout), layout.global_batch_size, choice.name
    )
    differences = ranks.on_all_ranks(lambda: check_fits(checkpoint, settings) if checkpoint else [])
    engine = build_engine(config, choice, dataset, model, sources, plan, layout, ranks)
    of_engine = (*choice.notices, *strategy_notices(config, choice.name), *cpu_notices(config, choice, model, ranks))
    of_data = _data_notices(config, dataset, layout)
    notices = (
        *dataset.notices,
        *layout.notices,
        *of_engine,
        *differences,
        *of_data,
        *unused_notices(config, choice.name, model, ranks),
    )
    return PreparedRun(config, dataset, layout, model, plan, engine, choice, settings, notices, units)


def _num_virtual_ranks(config: RunConfig, layout: RunLayout) -> int:
    return 0 if config.semantics == "reference" else layout.virtual_ranks.num_virtual_ranks


def _data_notices(config: RunConfig, dataset: Dataset, layout: RunLayout) -> list[str]:
    summary, notices = dataset.summary, []
    if config.data.shared_memory:
        notices.append("data.shared_memory: each sample is held on one rank, there is nothing to share")
    if config.semantics == "reference":
        return notices
    if summary.num_dropped_samples:
        notices.append(f"{summary.num_dropped_samples} selected samples hold a NaN or a fill value and are left out")
    if summary.constant_features:
        notices.append(
            f"constant over the training samples, centred and not scaled: {', '.join(summary.constant_features)}"
        )
    return [*notices, *_batch_notices(config, summary.num_training_samples, layout.global_batch_size)]


def _batch_notices(config: RunConfig, num_training_samples: int, batch_size: int | str) -> list[str]:
    if config.training.batch_size in (None, "full"):
        return []
    notices = [
        f"training.batch_size={config.training.batch_size} is per rank (global batch {batch_size}): "
        "results depend on the number of ranks; training.global_batch_size does not"
    ]
    if int(batch_size) > num_training_samples:
        notices.append(f"global batch {batch_size}: there are only {num_training_samples} training samples")
    return notices
