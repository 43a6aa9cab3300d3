"""The network of a run, built and checked before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mpitrain.comm.ranks import Ranks
from mpitrain.config import RunConfig
from mpitrain.config.model import needs_fields, output_bounds
from mpitrain.data.dataset.batches import Slice, SliceSource
from mpitrain.data.dataset.dataset import DataSummary, Normalization
from mpitrain.data.files.first_opening import FIRST_OPENING
from mpitrain.data.open_dataset import torch_dtype
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import ConfigError
from mpitrain.models.build import build_learner
from mpitrain.models.files.initial_weights import load_initial_weights
from mpitrain.models.first_weights import can_be_drawn_anew, draw_first_weights, has_own_first_weights
from mpitrain.models.user_model import check_answers
from mpitrain.train.checkpoint.format import weights_sha256
from mpitrain.train.state import named_weights

Models = dict[str, nn.Module]
"""Networks of runs that have ended, by their architecture."""


def build_model(config: RunConfig, summary: DataSummary, ranks: Ranks, ended: Models | None = None) -> nn.Module:
    """Return the network for the data of `summary`, with the same weights on all ranks, on their devices. Collective.

    One of `ended` is taken again where nothing of its run can be left in it, and the network is left there. Raises
    ConfigError, on all ranks, for sizes that the data does not have, and where the ranks' weights differ.
    """
    num_inputs = len(summary.input_names)
    if config.model.initial_weights is not None:
        weights = Path(config.model.initial_weights)
        ranks.on_root(lambda: FIRST_OPENING.check(weights))
    model = ranks.on_all_ranks(lambda: _build(config, num_inputs, summary.target_names, {} if ended is None else ended))
    hashes = ranks.gather_object(weights_sha256(named_weights(model)))
    different = [rank for rank, other in enumerate(hashes) if other != hashes[0]]
    if different:
        ranks.on_all_ranks(lambda: _refuse_different_weights(config, different))
    model = model.to(ranks.device)
    set_normalization(model, summary.normalization, config.normalizes_outputs)
    return model


@torch.no_grad()
def set_normalization(model: Any, normalization: Normalization, normalizes_outputs: bool) -> None:
    """Give the model the statistics of its inputs, and of its outputs where they are normalised."""
    outputs = (normalization.output_mean, normalization.output_std) if normalizes_outputs else ()
    model.set_normalization(normalization.mean, normalization.std, *outputs)


def _build(config: RunConfig, num_inputs: int, target_names: Sequence[str], ended: Models) -> nn.Module:
    num_outputs = len(target_names)
    for key, size, what, count in (
        ("input_size", config.model.input_size, "input features", num_inputs),
        ("output_size", config.model.output_size, "targets", num_outputs),
    ):
        if size not in (None, count):
            raise ConfigError(f"model.{key}={size}: the data has {count} {what}; remove the key or give {count}")
    key = repr((config.network, num_inputs, target_names, torch_dtype(config), config.normalizes_outputs))
    model = ended.get(key)
    if model is None or not can_be_drawn_anew(model):
        model = build_learner(config.network, num_inputs, target_names, config.seed, torch_dtype(config))
    ended[key] = model.train()
    if config.semantics == "standard" and has_own_first_weights(model):
        draw_first_weights(model, config.seed)
    if config.model.initial_weights is not None:
        load_initial_weights(model, Path(config.model.initial_weights))
    return model


def first_weights_notices(config: RunConfig, model: nn.Module) -> list[str]:
    """Say where torch draws the first weights, of a user's own network: its numbers may follow the kind of CPU."""
    if config.semantics == "reference" or has_own_first_weights(model):
        return []
    return [
        f"model.name={config.model.name}: torch draws its first weights and computes its steps; their bits may follow "
        "the kind of CPU"
    ]


def _refuse_different_weights(config: RunConfig, ranks: list[int]) -> None:
    raise ConfigError(
        f"model.name={config.model.name}: its parameters differ between ranks (rank {ranks[0]} from rank 0); draw them "
        "from torch's random state alone, which is seeded before the model is made, and give all ranks the same code"
    )


def first_microbatch(source: SliceSource) -> Slice:
    """Return the first microbatch of the first epoch."""
    source.start_epoch(0)
    return source.slice(0)


def check_output_shape(name: str, model: nn.Module, piece: Slice) -> None:
    """Try the model `name` on a microbatch.

    Raises ConfigError where its outputs have another shape than the targets: a loss would broadcast.
    """
    if ":" in name:
        check_answers(name, model, piece.inputs, piece.targets.shape[1])
    is_training = model.training
    try:
        with torch.no_grad():
            outputs = model.eval()(piece.inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ConfigError(
            f"the network cannot take inputs of shape {tuple(piece.inputs.shape)}: {str(error).splitlines()[0]}; check "
            "model.name and data.samples"
        ) from error
    finally:
        model.train(is_training)
    if outputs.shape != piece.targets.shape:
        raise ConfigError(
            f"the network gives outputs of shape {tuple(outputs.shape)} for targets of shape "
            f"{tuple(piece.targets.shape)}; make it return one column or channel a target"
        )


# How far beyond its bounds a target may lie: packing and rounding put a concentration of 1 slightly above.
_BEYOND_BOUNDS = 0.001


def check_bounds(config: RunConfig, summary: DataSummary) -> None:
    """Raise ConfigError where a target has values that the network's last function can never answer.

    In `reference` semantics nothing is checked: there are no such statistics, and the C++ program checks nothing.
    """
    bounds, moments = output_bounds(config.network), summary.moments
    if bounds is None or moments is None:
        return
    low, high = bounds
    first, name = len(summary.input_names), config.network.name
    ranges = zip(summary.target_names, moments.minimum[first:], moments.maximum[first:], strict=True)
    for target, lowest, highest in ranges:
        if lowest < low - _BEYOND_BOUNDS or highest > high + _BEYOND_BOUNDS:
            advice = "model.name=mlp" if name == "icenet" else "model.output_activation=none"
            raise ConfigError(
                f"model.name={name}: answers from {low:g} to {high:g}, the target '{target}' lies from {lowest:.6g} to "
                f"{highest:.6g}; set {advice}, or choose the samples by domain.mask"
            )


def _check_targets(config: RunConfig, target_names: Sequence[str]) -> None:
    """Raise ConfigError where a setting names a target that there is not."""
    for key, given in (
        ("model.output_transforms", config.model.output_transforms),
        ("training.loss_weights", config.training.loss_weights),
    ):
        unknown = [name for name in given or () if name not in target_names]
        if unknown:
            raise ConfigError(f"{key}: '{unknown[0]}' is no target; the targets are {', '.join(target_names)}")
    weights = config.training.loss_weights or {}
    if weights and not any(weights.get(name, 1.0) for name in target_names):
        raise ConfigError(
            "training.loss_weights: all are 0, nothing is left to learn; give one target a number above 0"
        )


def check_kind(config: RunConfig, source: SampleSource) -> None:
    """Raise ConfigError where the network takes fields and the samples are points, or the other way round.

    And where a setting names a target that the samples do not have.
    """
    _check_targets(config, source.target_names)
    wants_fields = needs_fields(config.network)
    if wants_fields is not None and wants_fields != (source.kind == "fields"):
        kind = "fields" if wants_fields else "points"
        raise ConfigError(
            f"model.name={config.network.name}: takes {kind}, the samples are {source.kind}; set "
            f"data.samples={kind} or another model.name"
        )
