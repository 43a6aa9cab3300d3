"""Prediction's own arithmetic in numpy, whose operations on arrays are single IEEE operations: the definition to read.

N  samples      F  input features      O  outputs      I, J  inputs and outputs of a layer      M  members

Where a compiler is at hand `kernel.py` computes the same bits faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpitrain.inference.portable.functions import ACTIVATIONS, NumpyArithmetic
from mpitrain.inference.portable.network import Array, PortableNetwork, without_tiny


@dataclass(frozen=True)
class Trajectory:
    """A forward pass: outputs (N, O), and each layer's slopes (N, J), None where the activation is y = z."""

    outputs: Array
    slopes: tuple[Array | None, ...]


def forward(network: PortableNetwork, inputs: Array) -> Trajectory:
    """Return the outputs for `inputs` (N, F) in physical units, and what derivatives need."""
    a, limits = NumpyArithmetic(network.dtype), network.limits
    with np.errstate(all="ignore"):
        shifted = without_tiny(inputs, limits.sum) - network.input_mean
        values = without_tiny(shifted / network.input_std, limits.value)
        slopes: list[Array | None] = []
        for number, layer in enumerate(network.layers, 1):
            limit = limits.value if number < len(network.layers) else limits.result
            z = _sums(layer.bias, layer.weight, values)
            function = ACTIVATIONS.get(layer.activation)
            values = without_tiny(z if function is None else function.value(a, z), limit)
            slopes.append(None if function is None else function.slope(a, z, values))
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
            values = without_tiny(sums if slope is None else sums * slope, limits.value)
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


def _backward(network: PortableNetwork, slopes: Sequence[Array | None], sensitivities: Array) -> Array:
    limits = network.limits
    with np.errstate(all="ignore"):
        values = without_tiny(sensitivities, limits.result)
        if network.output_std is not None:
            values = values * network.output_std
        values = without_tiny(values, limits.value)
        for layer, slope in zip(reversed(network.layers), reversed(slopes), strict=True):
            # The sums of the layer after this one, or the sensitivities themselves, times this one's slope.
            values = without_tiny(values if slope is None else values * slope, limits.value)
            values = _sums(np.zeros_like(layer.weight[:, 0]), layer.weight.T, values)
        return without_tiny(values / network.input_std, limits.result)


def _sums(start: Array, weight: Array, values: Array) -> Array:
    """Return start (J,) + the sum over i of values (N, I) weight (I, J), added one after the other: (N, J)."""
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
