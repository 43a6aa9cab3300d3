"""A trained chain of dense layers as numpy arrays, for the portable arithmetic and for exported sources.

F  input features      I, J  inputs and outputs of a layer      O  outputs

    h = (x - input_mean) / input_std
    z[j] = bias[j] + h[0] weight[0, j] + h[1] weight[1, j] + ...     for each layer, added in this order
    layer norm:  z[j] = scale[j] (z[j] - mean of z) / sqrt(variance of z + 1e-5) + offset[j]
    h[j] = activation(z[j])     residual layer: new h[j] = activation(z[j]) + old h[j]
    y = h output_std + output_mean
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.models import DenseModel

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Limits:
    """Limits below which numbers count as 0, so that no result depends on whether the CPU flushes subnormal numbers.

    A product of a weight and a value is then 0, or at least `sum` and a multiple of the smallest normal number; sums of
    these products are multiples of it too. (`sum` is the smallest normal number times 2^mantissa_bits, and
    weight * value = sum.)
    """

    sum: float  # inputs, means and biases
    value: float  # activations, perturbations and derivatives, in normalised units
    weight: float
    result: float  # outputs: twice the smallest normal number, because CPUs round differently at that
    deviation: float  # from a mean, of members or units: its square must not be subnormal
    smallest_std: float  # of an input; `sum` is negligible beside it


LIMITS = {
    "float32": Limits(2.0**-103, 2.0**-63, 2.0**-40, 2.0**-125, 2.0**-55, 2.0**-80),
    "float64": Limits(2.0**-970, 2.0**-670, 2.0**-300, 2.0**-1021, 2.0**-400, 2.0**-900),
}


NORM_EPSILON = 1e-5  # torch's default


@dataclass(frozen=True)
class UnitNorm:
    """Layer norm: scale (J,) and offset (J,)."""

    scale: Array
    offset: Array


@dataclass(frozen=True)
class DenseLayer:
    """A dense layer: weight (I, J), bias (J,), the activation's name in the settings, and a layer norm before it.

    `is_residual`: the layer's inputs are added to its outputs.
    """

    weight: Array
    bias: Array
    activation: str
    norm: UnitNorm | None = None
    is_residual: bool = False

    @property
    def is_linear(self) -> bool:
        """Whether derivatives do not depend on the inputs of this layer."""
        return self.activation == "none" and self.norm is None


@dataclass(frozen=True)
class PortableNetwork:
    """Layers, and statistics of inputs (F,) and outputs (O,); the latter None if outputs are not scaled."""

    layers: tuple[DenseLayer, ...]
    input_mean: Array
    input_std: Array
    output_mean: Array | None
    output_std: Array | None

    @property
    def dtype(self) -> str:
        """float32 or float64."""
        return str(self.input_mean.dtype)

    @property
    def limits(self) -> Limits:
        """The limits below which numbers count as 0."""
        return LIMITS[self.dtype]

    @property
    def sizes(self) -> tuple[int, ...]:
        """F, the widths of the layers, O."""
        return (len(self.input_mean), *(len(layer.bias) for layer in self.layers))

    @property
    def has_norms(self) -> bool:
        """Whether a layer has a norm."""
        return any(layer.norm is not None for layer in self.layers)

    @property
    def is_linear(self) -> bool:
        """Whether derivatives do not depend on the inputs."""
        return all(layer.is_linear for layer in self.layers)

    @property
    def architecture(self) -> tuple[object, ...]:
        """A key that is equal for networks computed by the same functions."""
        layers = tuple((one.activation, one.norm is not None, one.is_residual) for one in self.layers)
        return (self.dtype, self.sizes, layers, self.output_mean is not None)


def portable_network_of(model: Any) -> PortableNetwork | None:
    """Return an icenet or mlp, a `DenseModel` or a module, in evaluation mode; None for other models.

    The caller applies the inverse of `model.output_transforms`. Dropout has no effect in evaluation mode, and batch
    norm is merged into the layer before it (computed in float64, rounded once).
    """
    if isinstance(model, DenseModel):
        return _portable(model)
    from mpitrain.models import dense_of

    dense = dense_of(model)
    return None if dense is None else _portable(dense)


def _portable(model: DenseModel) -> PortableNetwork:
    state, chain = model.state_dict(), model.chain
    prefixes = ["fc1", "fc2"] if model.is_icenet else [f"network.layers.{i}" for i in range(chain.num_layers)]
    layers = []
    for number, prefix in enumerate(prefixes):
        is_last = number == len(prefixes) - 1
        linear = prefix if model.is_icenet else f"{prefix}.linear"
        weight, bias, norm = state[f"{linear}.weight"], state[f"{linear}.bias"], None
        if chain.has_batch_norm and not is_last:
            weight, bias = _with_norm(state, f"{prefix}.norm", weight, bias)
        if chain.has_layer_norm and not is_last:
            norm = _unit_norm(state[f"{prefix}.norm.weight"], state[f"{prefix}.norm.bias"])
        limits = LIMITS[str(weight.dtype)]
        columns = np.ascontiguousarray(without_tiny(weight, limits.weight).T)
        activation = chain.output_activation if is_last else chain.hidden_activation
        is_residual = chain.is_residual and 0 < number < len(prefixes) - 1
        layers.append(DenseLayer(columns, without_tiny(bias, limits.sum), activation, norm, is_residual))
    limit = layers[0].bias.dtype.type(LIMITS[str(layers[0].bias.dtype)].sum)
    mean, output_mean = without_tiny(state["input_mean"], limit), state.get("output_mean")
    output_mean = None if output_mean is None else without_tiny(output_mean, limit)
    output_std = None if output_mean is None else state["output_std"].copy()
    return PortableNetwork(tuple(layers), mean, state["input_std"].copy(), output_mean, output_std)


def find_tiny_input(network: PortableNetwork) -> int | None:
    """Return the index of the first input with a standard deviation too small for this arithmetic, or None."""
    tiny = np.flatnonzero(~(np.abs(network.input_std) >= network.limits.smallest_std))
    return int(tiny[0]) if len(tiny) else None


def without_tiny(values: Array, limit: float) -> Array:
    """Return the values, with 0 where |value| < `limit`; NaN stays."""
    return np.where(np.abs(values) < limit, values.dtype.type(0), values)


def _unit_norm(scale: Array, offset: Array) -> UnitNorm:
    limits = LIMITS[str(scale.dtype)]
    return UnitNorm(without_tiny(scale, limits.weight), without_tiny(offset, limits.sum))


def _with_norm(state: Mapping[str, Array], norm: str, weight: Array, bias: Array) -> tuple[Array, Array]:
    scale = 1.0 / np.sqrt(state[f"{norm}.running_var"].astype(np.float64) + NORM_EPSILON) * state[f"{norm}.weight"]
    shift = state[f"{norm}.bias"].astype(np.float64)
    moved = (bias.astype(np.float64) - state[f"{norm}.running_mean"]) * scale + shift
    return (weight * scale[:, None]).astype(weight.dtype), moved.astype(bias.dtype)
