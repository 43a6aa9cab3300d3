"""From settings and data to a trainer's parts: model, optimiser, engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mpitrain.comm.reduction import FixedTreeReducer
from mpitrain.comm.session import Session
from mpitrain.comm.virtual_ranks import VirtualRanks, plan_virtual_ranks
from mpitrain.config import RunConfig
from mpitrain.data.batches import BatchPlan, plan_batches
from mpitrain.data.samples import Samples
from mpitrain.data.training_data import Normalization, ReferenceData, TrainingData, share_out, share_out_as_reference
from mpitrain.errors import CheckpointError, ConfigError
from mpitrain.models.icenet import IceNet, build_icenet
from mpitrain.models.initial_weights import load_initial_weights
from mpitrain.train.checkpoint_store import Checkpoint
from mpitrain.train.compiled_engine import CompiledEngine
from mpitrain.train.eager_engine import EagerEngine
from mpitrain.train.engine_choice import choose_engine
from mpitrain.train.optimizers import build_optimizer
from mpitrain.train.reference_engine import ReferenceEngine
from mpitrain.train.settings import DTYPES, check_batches, check_fits, checkpoint_settings, global_batch_size
from mpitrain.train.step_engine import StepEngine


@dataclass(frozen=True)
class TrainingParts:
    """What a `Trainer` is made of, and what the end of the run tells about it."""

    model: IceNet
    optimizer: torch.optim.Optimizer
    engine: StepEngine
    data: TrainingData | ReferenceData
    plan: BatchPlan | None
    settings: dict[str, Any]
    counts: dict[str, int | None]
    mean_predictor_mse: float | None
    notices: list[str]


def build_parts(config: RunConfig, session: Session, samples: Samples, checkpoint: Checkpoint | None) -> TrainingParts:
    """Build everything for `config` on `samples` (the whole selection, the same on all ranks). Collective.

    Raises the user's errors on all ranks together.
    """
    model = session.together(lambda: _build_model(config, samples)).to(session.device)
    optimizer = build_optimizer(model.parameters(), config.training.optimizer, config.semantics)
    build = _build_reference if config.semantics == "reference" else _build_standard
    return build(config, session, samples, checkpoint, model, optimizer)


def _build_model(config: RunConfig, samples: Samples) -> IceNet:
    num_features = samples.inputs.shape[1]
    if num_features != config.model.input_size and config.model.input_size != len(
        config.variables.input_variables or ()
    ):
        raise ConfigError(
            f"model.input_size={config.model.input_size}: the data has {num_features} input features; "
            f"set model.input_size={num_features}"
        )
    model = build_icenet(
        num_features,
        config.model.hidden_size,
        config.model.hidden_activation,
        config.seed,
        DTYPES[config.training.dtype],
    )
    if config.model.initial_weights is not None:
        load_initial_weights(model, Path(config.model.initial_weights))
    return model


def _build_reference(
    config: RunConfig,
    session: Session,
    samples: Samples,
    checkpoint: Checkpoint | None,
    model: IceNet,
    optimizer: torch.optim.Optimizer,
) -> TrainingParts:
    data = session.together(lambda: share_out_as_reference(samples, session, DTYPES[config.training.dtype]))
    _set_normalization(model, data.normalization)
    settings = checkpoint_settings(config, session, 0, "full", "reference")
    notices = session.together(_fit_check(checkpoint, settings))
    counts = {
        "training": data.num_samples,
        "validation": None,
        "dropped": len(samples) - data.num_samples,
        "virtual_ranks": None,
    }
    return TrainingParts(
        model, optimizer, ReferenceEngine(model, optimizer, data, session), data, None, settings, counts, None, notices
    )


def _build_standard(
    config: RunConfig,
    session: Session,
    samples: Samples,
    checkpoint: Checkpoint | None,
    model: IceNet,
    optimizer: torch.optim.Optimizer,
) -> TrainingParts:
    virtual_ranks, notices = session.together(lambda: _layout(config, session, checkpoint))
    batch_size = (
        checkpoint.settings["training.global_batch_size"]
        if checkpoint
        else global_batch_size(config, session.ranks.world_size)
    )
    data = session.together(
        lambda: share_out(
            samples, session, virtual_ranks, config.validation_split, config.seed, DTYPES[config.training.dtype]
        )
    )
    _set_normalization(model, data.normalization)
    choice = choose_engine(config, session, model, _engine_of(checkpoint))
    notices += [choice.notice] if choice.notice else []
    settings = checkpoint_settings(config, session, virtual_ranks.num_virtual_ranks, batch_size, choice.name)
    notices += session.together(_fit_check(checkpoint, settings)) + _data_notices(config, data, batch_size)
    plan = plan_batches(data.num_training_samples, batch_size, virtual_ranks.num_virtual_ranks)
    session.together(lambda: check_batches(config, plan, batch_size))
    common = (model, optimizer, data, plan, virtual_ranks, session, config)
    engine = EagerEngine(*common)
    if choice.network is not None and choice.kernel is not None:
        engine = CompiledEngine(*common, choice.network, choice.kernel)
    counts: dict[str, int | None] = {
        "training": data.num_training_samples,
        "validation": data.num_validation_samples,
        "dropped": data.num_dropped_samples,
        "virtual_ranks": virtual_ranks.num_virtual_ranks,
    }
    return TrainingParts(
        model,
        optimizer,
        engine,
        data,
        plan,
        settings,
        counts,
        _mean_predictor_mse(data, session, virtual_ranks) if config.training.loss_function == "mse" else None,
        notices,
    )


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


def _set_normalization(model: IceNet, normalization: Normalization) -> None:
    with torch.no_grad():
        model.set_normalization(normalization.mean, normalization.std)


def _data_notices(config: RunConfig, data: TrainingData, batch_size: int | str) -> list[str]:
    notices = []
    if data.num_dropped_samples:
        notices.append(f"{data.num_dropped_samples} selected samples hold a NaN or a fill value and are left out")
    if data.constant_features:
        notices.append(
            f"constant over the training samples, centred and not scaled: {', '.join(data.constant_features)}"
        )
    if config.training.batch_size not in (None, "full"):
        notices.append(
            f"training.batch_size={config.training.batch_size} is per rank (global batch {batch_size}): "
            "results depend on the number of ranks; training.global_batch_size does not"
        )
        if int(batch_size) > data.num_training_samples:
            notices.append(f"global batch {batch_size}: there are only {data.num_training_samples} training samples")
    return notices


def _mean_predictor_mse(data: TrainingData, session: Session, virtual_ranks: VirtualRanks) -> float:
    """Return the error of answering the training mean, over the samples that the losses are over. Collective."""
    shares, count = (
        (data.validation, data.num_validation_samples)
        if data.num_validation_samples
        else (data.training, data.num_training_samples)
    )
    sums = torch.stack([((own.targets.double() - data.target_mean) ** 2).sum() for own in shares])
    return float(FixedTreeReducer(session.data, virtual_ranks).reduce(sums[:, None])) / count
