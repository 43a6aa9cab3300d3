"""From settings and data to a trainer's parts: model, optimiser, engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mpitrain.comm.session import Session
from mpitrain.comm.virtual_ranks import VirtualRanks, plan_virtual_ranks
from mpitrain.config import RunConfig
from mpitrain.config.model import model_name, needs_fields, normalizes_outputs
from mpitrain.data.dataset.batches import BatchPlan, EvaluationSource, plan_batches
from mpitrain.data.dataset.in_memory import DataSummary, Normalization, TrainingData, share_out
from mpitrain.data.dataset.loading import open_source_together, read_run
from mpitrain.data.dataset.node_samples import read_once_a_node
from mpitrain.data.dataset.reference import ReferenceData, share_out_as_reference
from mpitrain.data.samples import Samples, read_samples
from mpitrain.data.selection.source import SampleSource
from mpitrain.data.streaming.dataset import StreamedData, open_streamed_files
from mpitrain.datatools.statistics import record_of_run
from mpitrain.errors import CheckpointError, ConfigError
from mpitrain.models.files.torchscript import ModelDescription
from mpitrain.runs.baseline import mean_predictor_mse
from mpitrain.runs.model import build_checked_model, check_output_shape
from mpitrain.train.checkpoint.compatibility import (
    DTYPES,
    check_batches,
    check_fits,
    checkpoint_settings,
    global_batch_size,
)
from mpitrain.train.checkpoint.store import Checkpoint
from mpitrain.train.engines.choose import EngineChoice, check_strategy, choose_engine, set_switches, strategy_notices
from mpitrain.train.engines.contract import StepEngine
from mpitrain.train.engines.reference import ReferenceEngine
from mpitrain.train.engines.standard import EngineInputs, StandardEngine
from mpitrain.train.optimizers import OptimizerState, build_optimizer

StandardData = TrainingData | StreamedData
LoadData = Callable[[VirtualRanks], StandardData]


@dataclass(frozen=True)
class TrainingParts:
    """What a `Trainer` is made of, and what the end of the run tells about it."""

    model: nn.Module
    optimizer: OptimizerState
    engine: StepEngine
    data: StandardData | ReferenceData
    plan: BatchPlan | None
    settings: dict[str, Any]
    counts: dict[str, int | None]
    mean_predictor_mse: float | None
    notices: list[str]
    description: ModelDescription
    preview: Sequence[EvaluationSource]
    engine_choice: str
    statistics: Mapping[str, Any] | None = None


def build_parts(config: RunConfig, session: Session, samples: Samples, checkpoint: Checkpoint | None) -> TrainingParts:
    """Build everything for `config` on samples in memory. Collective.

    `samples` is the whole selection in `reference`, and this rank's run of it in `standard`. Raises the user's errors
    on all ranks together.
    """
    if config.semantics == "reference":
        return _build_reference(config, session, samples, checkpoint)
    dtype = DTYPES[config.training.dtype]

    def load(virtual_ranks: VirtualRanks) -> TrainingData:
        return share_out(samples, session, virtual_ranks, config.validation_split, config.seed, dtype)

    return build_standard(config, session, load, checkpoint)


def load_and_build(
    config: RunConfig, files: Sequence[str], session: Session, checkpoint: Checkpoint | None
) -> TrainingParts:
    """Read `files` (paths and patterns) and build everything for `config` on them. Collective.

    Raises the user's errors on all ranks together.
    """
    if config.semantics == "reference":
        domain = config.domain
        read: Callable[[], Samples] = lambda: read_samples(_only_file(files), domain.pole, domain.clean_data)  # noqa: E731
        if not config.data.shared_memory:
            return _build_reference(config, session, session.together(read), checkpoint)
        with read_once_a_node(read, session) as samples:
            return _build_reference(config, session, samples, checkpoint)
    data_section = config.data.model_copy(update={"data_path": list(files), "max_patterns": _most_samples(config)})
    on_files = config.model_copy(update={"data": data_section})
    if config.data.streaming:
        return _build_streamed(on_files, session, checkpoint)
    source = open_source_together(on_files, session)
    session.together(lambda: _check_kind(config, source))
    return _about_source(on_files, build_parts(config, session, read_run(source, session), checkpoint), source)


def _build_streamed(config: RunConfig, session: Session, checkpoint: Checkpoint | None) -> TrainingParts:
    opened: list[StreamedData] = []

    def load(virtual_ranks: VirtualRanks) -> StreamedData:
        data = open_streamed_files(config, session, virtual_ranks, DTYPES[config.training.dtype])
        _check_kind(config, data.source)
        opened.append(data)
        return data

    parts = build_standard(config, session, load, checkpoint)
    (data,) = opened
    parts.notices[:0] = data.notices
    return _about_source(config, parts, data.source)


def _about_source(config: RunConfig, parts: TrainingParts, source: SampleSource) -> TrainingParts:
    """Return the parts with what the files tell: notices, the variables' units, the record of their statistics."""
    if not isinstance(parts.data, ReferenceData):
        parts = replace(parts, statistics=record_of_run(config, source, parts.data.summary))
    return replace(
        parts, notices=[*source.notices, *parts.notices], description=_with_units(parts.description, source.units)
    )


def _with_units(description: ModelDescription, units: Mapping[str, str]) -> ModelDescription:
    inputs, targets = (
        tuple(units.get(name, "") for name in names) for names in (description.input_names, description.target_names)
    )
    return replace(description, input_units=inputs, target_units=targets)


def _most_samples(config: RunConfig) -> int | None:
    # Synthetic fields come in whole times: what is beyond the number asked for is left out.
    asked = [config.data.max_patterns, config.data.num_samples if config.data.data_path is None else None]
    return min((number for number in asked if number is not None), default=None)


def _only_file(files: Sequence[str]) -> Path:
    if len(files) > 1:
        raise ConfigError(
            f"data.data_path names {len(files)} files: semantics=reference reads one, as the C++ program does; "
            "give one, or semantics=standard"
        )
    return Path(files[0])


def _check_kind(config: RunConfig, source: SampleSource) -> None:
    """Raise ConfigError where the network takes fields and the samples are points, or the other way round."""
    wants_fields = needs_fields(config.model)
    if wants_fields is not None and wants_fields != (source.kind == "fields"):
        kind = "fields" if wants_fields else "points"
        raise ConfigError(
            f"model.name={model_name(config.model)}: takes {kind}, the samples are {source.kind}; set "
            f"data.samples={kind} or another model.name"
        )


def _build_reference(
    config: RunConfig, session: Session, samples: Samples, checkpoint: Checkpoint | None
) -> TrainingParts:
    model = _build_model(config, session, samples.input_names, samples.target_names)
    optimizer = build_optimizer(model.parameters(), config.training.optimizer, "reference")
    data = session.together(lambda: share_out_as_reference(samples, session, DTYPES[config.training.dtype]))
    _set_normalization(model, data.normalization, False)
    sizes = (len(samples.input_names), len(samples.target_names))
    settings = checkpoint_settings(config, session, sizes, 0, "full", "reference")
    notices = session.together(_fit_check(checkpoint, settings))
    counts = {
        "training": data.num_samples,
        "validation": None,
        "dropped": len(samples) - data.num_samples,
        "virtual_ranks": None,
    }
    engine = ReferenceEngine(model, optimizer, data, session)
    description = ModelDescription(samples.input_names, samples.target_names)
    return TrainingParts(
        model, optimizer, engine, data, None, settings, counts, None, notices, description, [data], "reference"
    )


def build_standard(config: RunConfig, session: Session, load: LoadData, checkpoint: Checkpoint | None) -> TrainingParts:
    """Build everything for `standard` semantics on what `load` returns. Collective."""
    session.together(lambda: check_strategy(config, session.ranks.world_size))
    set_switches(config.training)
    virtual_ranks, notices = session.together(lambda: _layout(config, session, checkpoint))
    batch_size = (
        checkpoint.settings["training.global_batch_size"]
        if checkpoint
        else global_batch_size(config, session.ranks.world_size)
    )
    data = session.together(lambda: load(virtual_ranks))
    summary = data.summary
    model = _build_model(config, session, summary.input_names, summary.target_names)
    _set_normalization(model, summary.normalization, normalizes_outputs(config.model))
    choice = session.together(lambda: choose_engine(config, session, model, _engine_of(checkpoint)))
    sizes = (len(summary.input_names), len(summary.target_names))
    settings = checkpoint_settings(config, session, sizes, virtual_ranks.num_virtual_ranks, batch_size, choice.name)
    notices += (
        _engine_notices(choice)
        + strategy_notices(config, choice.name)
        + session.together(_fit_check(checkpoint, settings))
    )
    notices += _data_notices(config, summary, batch_size)
    plan = plan_batches(
        summary.num_training_samples, batch_size, virtual_ranks.num_virtual_ranks, summary.largest_share
    )
    session.together(lambda: check_batches(config, plan, batch_size))
    engine = _build_engine(config, session, choice, model, data, plan, virtual_ranks)
    baseline = (
        mean_predictor_mse(data, session, virtual_ranks, model) if config.training.loss_function == "mse" else None
    )
    counts: dict[str, int | None] = {
        "training": summary.num_training_samples,
        "validation": summary.num_validation_samples,
        "dropped": summary.num_dropped_samples,
        "virtual_ranks": virtual_ranks.num_virtual_ranks,
    }
    description = ModelDescription(summary.input_names, summary.target_names)
    preview = data.evaluation_sources(held_out=summary.num_validation_samples > 0)
    return TrainingParts(
        model, engine.optimizer, engine, data, plan, settings, counts, baseline, notices, description, preview,
        f"{choice.name} ({choice.reason})",
    )  # fmt: skip


def _build_model(
    config: RunConfig, session: Session, input_names: Sequence[str], target_names: Sequence[str]
) -> nn.Module:
    return build_checked_model(config, session, len(input_names), len(target_names)).to(session.device)


def _build_engine(
    config: RunConfig, session: Session, choice: EngineChoice, model: nn.Module, data: StandardData,
    plan: BatchPlan, virtual_ranks: VirtualRanks,
) -> StandardEngine:  # fmt: skip
    batches = data.slice_sources(plan, config.seed, config.shuffle)
    session.together(lambda: check_output_shape(model_name(config.model), model, batches[0]))
    parts = EngineInputs(model, batches, data.evaluation_sources(), plan, virtual_ranks, session, config)
    return session.together(lambda: choice.build(parts))


def _engine_notices(choice: EngineChoice) -> list[str]:
    return [f"training.engine={choice.name}, {choice.reason}"] if choice.is_second_best else []


def _engine_of(checkpoint: Checkpoint | None) -> str | None:
    return str(checkpoint.settings["training.engine"]) if checkpoint else None


def _fit_check(checkpoint: Checkpoint | None, settings: dict[str, Any]) -> Callable[[], list[str]]:
    return lambda: check_fits(checkpoint, settings) if checkpoint else []


def _layout(config: RunConfig, session: Session, checkpoint: Checkpoint | None) -> tuple[VirtualRanks, list[str]]:
    world_size, rank = session.ranks.world_size, session.ranks.rank
    if checkpoint is None:
        return plan_virtual_ranks(config.training.virtual_ranks, world_size, rank)
    if checkpoint.settings["semantics"] == "reference":
        raise CheckpointError(
            f"{checkpoint.path}: written with semantics=reference, this run has standard; resume with "
            f"semantics=reference"
        )
    requested = int(checkpoint.settings["training.virtual_ranks"])
    if world_size > requested:
        raise CheckpointError(
            f"{checkpoint.path}: has {requested} virtual ranks, too few for {world_size} ranks; resume "
            f"on at most {requested}"
        )
    return plan_virtual_ranks(requested, world_size, rank)


def _set_normalization(model: Any, normalization: Normalization, normalizes_outputs: bool) -> None:
    outputs = (normalization.output_mean, normalization.output_std) if normalizes_outputs else ()
    with torch.no_grad():
        model.set_normalization(normalization.mean, normalization.std, *outputs)


def _data_notices(config: RunConfig, summary: DataSummary, batch_size: int | str) -> list[str]:
    notices = []
    if config.data.shared_memory:
        notices.append("data.shared_memory: standard semantics hold each sample on one rank, there is nothing to share")
    if summary.num_dropped_samples:
        notices.append(f"{summary.num_dropped_samples} selected samples hold a NaN or a fill value and are left out")
    if summary.constant_features:
        notices.append(
            f"constant over the training samples, centred and not scaled: {', '.join(summary.constant_features)}"
        )
    if config.training.batch_size not in (None, "full"):
        notices.append(
            f"training.batch_size={config.training.batch_size} is per rank (global batch {batch_size}): "
            "results depend on the number of ranks; training.global_batch_size does not"
        )
        if int(batch_size) > summary.num_training_samples:
            notices.append(f"global batch {batch_size}: there are only {summary.num_training_samples} training samples")
    return notices
