"""Checks of a run's network and data before the training, and its start at a regression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mpitrain.comm import FixedTreeReducer, Ranks, VirtualRanks, host_array
from mpitrain.data import Dataset, DataSummary, Microbatch, SampleSource
from mpitrain.data.dataset.batches import MicrobatchSource
from mpitrain.data.dataset.dataset import is_constant
from mpitrain.data.dataset.linear_fit import LinearRegression
from mpitrain.errors import ConfigError, DataError
from mpitrain.inference.portable.network import LIMITS
from mpitrain.models import DenseModel, Network
from mpitrain.runs.build import ModelRequest


def first_weights_notices(request: ModelRequest, model: Any) -> list[str]:
    """Return a notice if torch draws the initial weights, as of a user's own network: they may depend on the CPU."""
    if isinstance(model, DenseModel):
        return []
    from mpitrain.models.first_weights import has_own_initial_weights

    if request.semantics == "reference" or has_own_initial_weights(model):
        return []
    return [
        f"model.name={request.network.name}: torch draws its initial weights and computes its steps; their bits may "
        "depend on the kind of CPU"
    ]


def first_microbatch(source: MicrobatchSource) -> Microbatch:
    """Return the first microbatch of the first epoch."""
    source.start_epoch(0)
    return source.microbatch(0)


def check_output_shape(name: str, model: Any, microbatch: Microbatch) -> None:
    """Apply the model `name` to a microbatch and check the shape of its outputs.

    Raises ConfigError if they differ in shape from the targets: the loss would broadcast.
    """
    if isinstance(model, DenseModel):  # built for the numbers of inputs and targets of the data
        if microbatch.inputs.ndim != 2:
            raise ConfigError(
                f"the network cannot take inputs of shape {tuple(microbatch.inputs.shape)}: it takes points; check "
                "model.name and data.samples"
            )
        return
    import torch

    if ":" in name:
        from mpitrain.models.user_model import check_answers

        check_answers(name, model, microbatch.inputs, microbatch.targets.shape[1])
    is_training = model.training
    try:
        with torch.no_grad():
            outputs = model.eval()(microbatch.inputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ConfigError(
            f"the network cannot take inputs of shape {tuple(microbatch.inputs.shape)}: "
            f"{str(error).splitlines()[0]}; check model.name and data.samples"
        ) from error
    finally:
        model.train(is_training)
    if outputs.shape != microbatch.targets.shape:
        raise ConfigError(
            f"the network returns outputs of shape {tuple(outputs.shape)} for targets of shape "
            f"{tuple(microbatch.targets.shape)}; make it return one column or channel per target"
        )


# A target may exceed the bounds by this much: packing and rounding can put a concentration of 1 slightly above 1.
_BEYOND_BOUNDS = 0.001
# Predictions round numbers below a limit to 0: a standard deviation must be at least this many times the limit.
_LEAST_STEPS = 2.0**10


def check_bounds(network: Network, summary: DataSummary) -> None:
    """Raise ConfigError if a target has values outside the range of the network's output activation.

    With `semantics=reference` nothing is checked, as in the C++ program: there are no statistics of the targets.
    """
    bounds, moments = network.output_bounds, summary.moments
    if bounds is None or moments is None:
        return
    low, high = bounds
    first, name = len(summary.input_names), network.name
    ranges = zip(summary.target_names, moments.minimum[first:], moments.maximum[first:], strict=True)
    for target, lowest, highest in ranges:
        if lowest < low - _BEYOND_BOUNDS or highest > high + _BEYOND_BOUNDS:
            advice = "model.output_activation=none" if getattr(network, "output_activation", None) else "model.name=mlp"
            raise ConfigError(
                f"model.name={name}: outputs range from {low:g} to {high:g}, the target '{target}' from {lowest:.6g} "
                f"to {highest:.6g}; set {advice}, or exclude samples with domain.mask"
            )


def check_scales(dtype: str, summary: DataSummary) -> None:
    """Raise DataError if a target varies by so little that predictions in `dtype` would round it to 0."""
    moments, first = summary.moments, len(summary.input_names)
    if moments is None:
        return
    is_tiny = ~is_constant(moments) & ~(moments.std >= _LEAST_STEPS * LIMITS[dtype].sum)
    for name, low, high in zip(summary.target_names, moments.minimum[first:], moments.maximum[first:], strict=True):
        if is_tiny[first + summary.target_names.index(name)]:
            wider = " or use training.dtype=float64" if dtype == "float32" else ""
            raise DataError(
                f"{name}: its values, from {low:.3g} to {high:.3g}, are too small for {dtype}; convert them "
                f"to other units{wider}"
            )


def _check_targets(network: Network, loss_weights: Mapping[str, float] | None, target_names: Sequence[str]) -> None:
    """Raise ConfigError if a setting names a target that does not exist, or if all loss weights are 0."""
    for key, given in (
        ("model.output_transforms", network.transforms),
        ("training.loss_weights", loss_weights),
    ):
        unknown = [name for name in given or () if name not in target_names]
        if unknown:
            raise ConfigError(f"{key}: '{unknown[0]}' is not a target; the targets are {', '.join(target_names)}")
    weights = loss_weights or {}
    if weights and not any(weights.get(name, 1.0) for name in target_names):
        raise ConfigError("training.loss_weights: all weights are 0; give at least one target a weight above 0")


def check_kind(network: Network, loss_weights: Mapping[str, float] | None, source: SampleSource) -> None:
    """Raise ConfigError if the network takes fields and the samples are points, or the reverse.

    Also raises it if a setting names a target that the samples do not have.
    """
    _check_targets(network, loss_weights, source.target_names)
    kind = network.samples
    if kind not in (None, source.kind):
        raise ConfigError(
            f"model.name={network.name}: takes {kind}, the samples are {source.kind}; set "
            f"data.samples={kind} or another model.name"
        )


def begin_at_regression(
    network: Network, model: Any, dataset: Dataset, virtual_ranks: VirtualRanks, ranks: Ranks
) -> None:
    """Set the linear part of a network to the least-squares fit to the training samples. Collective."""
    import torch

    normalization, grid = dataset.summary.normalization, getattr(network, "grid", None)
    sources = dataset.evaluation(held_out=False)
    regression = LinearRegression(sources, normalization, FixedTreeReducer(ranks.cpu, virtual_ranks))
    fit = regression.fit_everywhere(ranks) if grid is None else regression.fit_places(ranks, tuple(grid))
    mean, std = (host_array(model.get_buffer(name)).astype(np.float64) for name in ("output_mean", "output_std"))
    everywhere = fit.everywhere.copy()
    everywhere[0] -= mean
    here = None if fit.here is None else torch.from_numpy(fit.here / std[:, None, None, None])
    model.network.begin(torch.from_numpy(everywhere / std), here)
