"""A trained chain of dense layers as plain numbers: what prediction's own arithmetic and every exported source compute.

F  input features      I, J  inputs and outputs of a layer      O  outputs

    h = (x - input_mean) / input_std
    h[j] = activation(bias[j] + h[0] weight[0, j] + h[1] weight[1, j] + ...)     layer after layer, added in this order
           with a norm: of scale[j] (z[j] - mean of z) / sqrt(variance of z + 1e-5) + offset[j], z[j] being that sum
           residual: and h[j] added to what comes out
    y = h output_std + output_mean
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from mpitrain.models.activations import ACTIVATIONS, activation_name
from mpitrain.models.batch_norm import to_exportable
from mpitrain.models.icenet import IceNet
from mpitrain.models.mlp import MlpNetwork, ResidualLayer
from mpitrain.models.normalized import PhysicalModel

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Limits:
    """Numbers smaller than these count as 0, so that no result depends on whether the CPU flushes subnormal numbers.

    A product of a weight and a value is then 0 or at least `sum`, and a multiple of the smallest normal number; so are
    all sums of such products. (`sum` is the smallest normal number times 2^mantissa_bits, and weight * value = sum.)
    """

    sum: float  # inputs, means and biases
    value: float  # activations, perturbations and derivatives, in normalised units
    weight: float
    result: float  # what is given back: twice the smallest normal number, at which CPUs round differently
    deviation: float  # of a member of an ensemble from the mean: its square must not be subnormal
    smallest_std: float  # of an input, beside which `sum` is nothing


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
    """weight (I, J), bias (J,), the activation's name in the configuration, and the layer norm before it, if any.

    Residual: the inputs are added to the outputs.
    """

    weight: Array
    bias: Array
    activation: str
    norm: UnitNorm | None = None
    is_residual: bool = False

    @property
    def is_linear(self) -> bool:
        """Whether derivatives need nothing of a forward pass through this layer."""
        return self.activation == "none" and self.norm is None


@dataclass(frozen=True)
class PortableNetwork:
    """The layers, and the statistics of inputs (F,) and outputs (O,), these None where the outputs are as they come."""

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
        """What counts as 0."""
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
        """Whether derivatives need nothing of a forward pass."""
        return all(layer.is_linear for layer in self.layers)

    @property
    def architecture(self) -> tuple[object, ...]:
        """What networks that are computed by the same functions have in common."""
        layers = tuple((one.activation, one.norm is not None, one.is_residual) for one in self.layers)
        return (self.dtype, self.sizes, layers, self.output_mean is not None)


def portable_network_of(model: nn.Module) -> PortableNetwork | None:
    """Return IceNet or an mlp in evaluation mode as numbers; None for every other network.

    The inverse of `model.output_transforms` is left to the caller. Dropout does nothing there, and batch norm is part
    of the layer before it (computed in float64, rounded once).
    """
    if not isinstance(model, PhysicalModel) or _array(model.input_mean).dtype not in (
        np.float32,
        np.float64,
    ):
        return None
    plain: Any = to_exportable(model)
    if isinstance(plain, IceNet):
        layers = [_layer([plain.fc1, plain.activation]), _layer([plain.fc2, plain.output_activation])]
        return _network(plain, layers, None, None)
    if isinstance(plain.network, MlpNetwork):
        layers = [
            _layer(list(layer.children()), isinstance(layer, ResidualLayer))
            for layer in plain.network.layers.children()
        ]
        return _network(plain, layers, _array(plain.output_mean), _array(plain.output_std))
    return None


def find_tiny_input(network: PortableNetwork) -> int | None:
    """Return the number of an input whose standard deviation is too small a number for this arithmetic, if any."""
    tiny = np.flatnonzero(~(np.abs(network.input_std) >= network.limits.smallest_std))
    return int(tiny[0]) if len(tiny) else None


def without_tiny(values: Array, limit: float) -> Array:
    """Return the values with 0 for those smaller than `limit`; NaN stays."""
    return np.where(np.abs(values) < limit, values.dtype.type(0), values)


def _array(tensor: Any) -> Array:
    return np.asarray(tensor.detach().cpu().numpy())


def _layer(modules: Sequence[nn.Module], is_residual: bool = False) -> DenseLayer:
    linear: Any = modules[0]
    weight, bias = _array(linear.weight), _array(linear.bias)
    for module in modules[1:]:
        if isinstance(module, nn.BatchNorm1d):
            weight, bias = _with_norm(module, weight, bias)
    norm = next((_unit_norm(one) for one in modules if isinstance(one, nn.LayerNorm)), None)
    activation = next(module for module in modules if isinstance(module, tuple(ACTIVATIONS.values())))
    limits = LIMITS[str(weight.dtype)]
    columns = np.ascontiguousarray(without_tiny(weight, limits.weight).T)
    return DenseLayer(columns, without_tiny(bias, limits.sum), activation_name(activation), norm, is_residual)


def _unit_norm(norm: Any) -> UnitNorm:
    scale, offset = _array(norm.weight), _array(norm.bias)
    limits = LIMITS[str(scale.dtype)]
    return UnitNorm(without_tiny(scale, limits.weight), without_tiny(offset, limits.sum))


def _with_norm(norm: Any, weight: Array, bias: Array) -> tuple[Array, Array]:
    scale = 1.0 / np.sqrt(_array(norm.running_var).astype(np.float64) + norm.eps)
    scale = scale if norm.weight is None else scale * _array(norm.weight)
    shift = 0.0 if norm.bias is None else _array(norm.bias).astype(np.float64)
    moved = (bias.astype(np.float64) - _array(norm.running_mean)) * scale + shift
    return (weight * scale[:, None]).astype(weight.dtype), moved.astype(bias.dtype)


def _network(
    plain: Any, layers: Sequence[DenseLayer], output_mean: Array | None, output_std: Array | None
) -> PortableNetwork:
    limit = layers[0].bias.dtype.type(LIMITS[str(layers[0].bias.dtype)].sum)
    mean = without_tiny(_array(plain.input_mean), limit)
    output_mean = None if output_mean is None else without_tiny(output_mean, limit)
    return PortableNetwork(tuple(layers), mean, _array(plain.input_std), output_mean, output_std)
