"""Portable arithmetic in numpy: the reference implementation, in which each operation is a single IEEE operation.

N  samples      F  input features      O  outputs      I, J  inputs and outputs of a layer      M  members

If there is a compiler, `kernel.py` computes the same bits faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpitrain.inference.portable.functions import ACTIVATIONS, NumpyArithmetic
from mpitrain.inference.portable.network import (
    NORM_EPSILON,
    Array,
    DenseLayer,
    Limits,
    PortableNetwork,
    UnitNorm,
    without_tiny,
)


@dataclass(frozen=True)
class Normalised:
    """Values kept for derivatives of a layer norm: normalised values (N, J), one over the standard deviation (N,)."""

    values: Array
    factor: Array


@dataclass(frozen=True)
class Slopes:
    """Values kept for derivatives of a layer: slopes (N, J), None if the activation is y = z; and those of a norm."""

    of_activation: Array | None
    of_norm: Normalised | None


@dataclass(frozen=True)
class Trajectory:
    """A forward pass: outputs (N, O), and each layer's slopes."""

    outputs: Array
    slopes: tuple[Slopes, ...]


def forward(network: PortableNetwork, inputs: Array) -> Trajectory:
    """Return the outputs for `inputs` (N, F) in physical units, and the slopes for derivatives."""
    a, limits = NumpyArithmetic(network.dtype), network.limits
    with np.errstate(all="ignore"):
        shifted = without_tiny(inputs, limits.sum) - network.input_mean
        values = without_tiny(shifted / network.input_std, limits.value)
        slopes: list[Slopes] = []
        for number, layer in enumerate(network.layers, 1):
            limit = limits.value if number < len(network.layers) else limits.result
            z, of_norm = _sums(layer.bias, layer.weight, values), None
            if layer.norm is not None:
                z, of_norm = _normalised(layer.norm, z, limits)
            function, inputs_of_layer = ACTIVATIONS.get(layer.activation), values
            values = without_tiny(z if function is None else function.value(a, z), limit)
            slopes.append(Slopes(None if function is None else function.slope(a, z, values), of_norm))
            values = without_tiny(values + inputs_of_layer, limits.value) if layer.is_residual else values
        if network.output_mean is not None:
            values = without_tiny(values * network.output_std, limits.sum) + network.output_mean
        return Trajectory(values, tuple(slopes))


def tangent_linear(network: PortableNetwork, inputs: Array, perturbations: Array) -> Array:
    """Return K dx (N, O) at `inputs` (N, F) for `perturbations` dx (N, F), all in physical units."""
    limits, slopes = network.limits, forward(network, inputs).slopes
    with np.errstate(all="ignore"):
        values = without_tiny(without_tiny(perturbations, limits.result) / network.input_std, limits.value)
        for layer, slope in zip(network.layers, slopes, strict=True):
            sums = _sums(np.zeros_like(layer.bias), layer.weight, values)
            if slope.of_norm is not None:
                sums = _times_scale(layer, _through_norm(slope.of_norm, sums, limits), limits)
            outputs = without_tiny(_times(sums, slope), limits.value)
            values = without_tiny(outputs + values, limits.value) if layer.is_residual else outputs
        if network.output_std is not None:
            values = values * network.output_std
        return without_tiny(values, limits.result)


def adjoint(network: PortableNetwork, inputs: Array, sensitivities: Array) -> Array:
    """Return K^T dy (N, F) at `inputs` (N, F) for `sensitivities` dy (N, O), all in physical units."""
    return _backward(network, forward(network, inputs).slopes, sensitivities)


def jacobian(network: PortableNetwork, inputs: Array) -> tuple[Array, Array]:
    """Return outputs (N, O) and their derivatives (N, O, F): row o is the adjoint of the unit vector o."""
    done = forward(network, inputs)
    rows = []
    for number in range(done.outputs.shape[1]):
        unit = np.zeros_like(done.outputs)
        unit[:, number] = 1
        rows.append(_backward(network, done.slopes, unit))
    return done.outputs, np.stack(rows, axis=1)


def _backward(network: PortableNetwork, slopes: Sequence[Slopes], sensitivities: Array) -> Array:
    limits = network.limits
    with np.errstate(all="ignore"):
        values = without_tiny(sensitivities, limits.result)
        if network.output_std is not None:
            values = values * network.output_std
        values = without_tiny(values, limits.value)
        for layer, slope in zip(reversed(network.layers), reversed(slopes), strict=True):
            # Derivatives with respect to this layer's outputs, times the slope of its activation.
            by_outputs, values = values, without_tiny(_times(values, slope), limits.value)
            if slope.of_norm is not None:
                values = _through_norm(slope.of_norm, _times_scale(layer, values, limits), limits)
            values = _sums(np.zeros_like(layer.weight[:, 0]), layer.weight.T, values)
            values = without_tiny(values + by_outputs, limits.value) if layer.is_residual else values
        return without_tiny(values / network.input_std, limits.result)


def _times(values: Array, slopes: Slopes) -> Array:
    return values if slopes.of_activation is None else values * slopes.of_activation


def _normalised(norm: UnitNorm, z: Array, limits: Limits) -> tuple[Array, Normalised]:
    """Return scale (z - mean) / sqrt(variance + 1e-5) + offset (N, J), over the units of each sample."""
    kind = z.dtype.type
    mean = without_tiny(_along_units(z) / kind(z.shape[1]), limits.sum)
    deviations = without_tiny(z - mean[:, None], limits.deviation)
    variance = _along_units(deviations * deviations) / kind(z.shape[1])
    factor = kind(1) / np.sqrt(variance + kind(NORM_EPSILON))
    values = without_tiny(deviations * factor[:, None], limits.value)
    return without_tiny(values * norm.scale, limits.sum) + norm.offset, Normalised(values, factor)


def _through_norm(norm: Normalised, values: Array, limits: Limits) -> Array:
    """Return derivatives (N, J) with respect to z from those with respect to the normalised values.

    The map is symmetric, so the tangent linear uses it too.
    """
    values, count = without_tiny(values, limits.value), values.dtype.type(values.shape[1])
    mean = without_tiny(_along_units(values) / count, limits.value)
    along = _along_units(without_tiny(values * norm.values, limits.sum)) / count
    product = without_tiny(norm.values * without_tiny(along, limits.value)[:, None], limits.sum)
    rest = without_tiny(values - mean[:, None] - product, limits.value)
    return without_tiny(rest * norm.factor[:, None], limits.value)


def _times_scale(layer: DenseLayer, values: Array, limits: Limits) -> Array:
    return values if layer.norm is None else without_tiny(values * layer.norm.scale, limits.value)


def _along_units(values: Array) -> Array:
    """Return the sums (N,) over the units of `values` (N, J), added one after the other."""
    total = np.zeros_like(values[:, 0])
    for column in values.T:
        total = total + column
    return total


def _sums(start: Array, weight: Array, values: Array) -> Array:
    """Return start (J,) + the sum over i of values (N, I) * weight (I, J), added in the order of i: (N, J)."""
    sums = np.broadcast_to(start, (len(values), len(start)))
    for row, column in zip(weight, values.T, strict=True):
        sums = sums + column[:, None] * row
    return sums


def mean_of_members(values: Array, network: PortableNetwork) -> Array:
    """Return the mean over the members of `values` (M, ...), added in their order."""
    kept = without_tiny(values, network.limits.sum)
    total = kept[0]
    for one in kept[1:]:
        total = total + one
    return without_tiny(total / values.dtype.type(len(values)), network.limits.result)


def spread_of_members(values: Array, network: PortableNetwork) -> Array:
    """Return the standard deviation over the M > 1 members of `values` (M, ...), with M - 1 in the denominator."""
    kept, limits = without_tiny(values, network.limits.sum), network.limits
    mean = without_tiny(mean_of_members(values, network), limits.sum)
    total = np.zeros_like(mean)
    for one in kept:
        deviation = without_tiny(one - mean, limits.deviation)
        total = total + deviation * deviation
    spread: Array = np.sqrt(total / values.dtype.type(len(values) - 1))
    return spread
