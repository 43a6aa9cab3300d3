"""Graph of the layers of a cnn or unet, for its compiled step.

C, O  channels of a layer's source and target
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from torch import nn

from mpitrain.models.activations import ACTIVATIONS, activation_name
from mpitrain.models.batch_norm import VirtualBatchNorm
from mpitrain.models.convolutional.blocks import FieldConvolution
from mpitrain.models.convolutional.cnn import CnnNetwork
from mpitrain.models.convolutional.unet import UNetNetwork
from mpitrain.models.normalized import NormalizedModel


@dataclass(frozen=True)
class FieldValue:
    """Fields with `parts` times `channels` channels, at 1 / 2^level of the resolution."""

    level: int
    channels: int
    parts: int = 1


@dataclass(frozen=True)
class FieldLayer:
    """A layer from value number `source` to part `part` of value number `target`.

    `kernels/field_graph.hpp` defines what each `kind` computes. The layer's parameters start at index `parameters` of
    all of the model's parameters, flattened in the model's order.
    """

    kind: Literal["convolve", "pool", "widen", "answer"]
    source: int
    target: int = 0
    part: int = 0
    parameters: int = 0


@dataclass(frozen=True)
class FieldGraph:
    """A cnn or unet: its values (the first is the input), and its layers in the order of the forward pass."""

    values: tuple[FieldValue, ...]
    layers: tuple[FieldLayer, ...]
    num_outputs: int
    num_parameters: int
    kernel_size: int
    is_periodic: bool
    hidden_activation: str
    output_activation: str
    dropout: float = 0.0
    norm_channels: tuple[int, ...] = ()
    """The number of channels of each layer that has batch norm."""


def field_graph_of(model: object) -> FieldGraph | None:
    """Return the graph of a cnn or unet; None for every other model."""
    if not isinstance(model, NormalizedModel) or not isinstance(model.network, CnnNetwork | UNetNetwork):
        return None
    return _Builder(model, model.network).graph()


@dataclass
class _Builder:
    model: NormalizedModel
    network: CnnNetwork | UNetNetwork
    values: list[FieldValue] = field(default_factory=list)
    layers: list[FieldLayer] = field(default_factory=list)
    _offsets: dict[int, int] = field(default_factory=dict)

    def graph(self) -> FieldGraph:
        total = 0
        for parameter in self.model.parameters():
            self._offsets[id(parameter)] = total
            total += parameter.numel()
        last = self._cnn(self.network) if isinstance(self.network, CnnNetwork) else self._unet(self.network)
        output = self.network.output
        self.layers.append(FieldLayer("answer", last, parameters=self._offset(output)))
        modules = list(self.network.modules())
        convolution = _first_convolution(self.network)
        hidden = next(module for module in modules if isinstance(module, tuple(ACTIVATIONS.values())))
        norms = [module for module in modules if isinstance(module, VirtualBatchNorm | nn.BatchNorm2d)]
        return FieldGraph(
            tuple(self.values), tuple(self.layers), output.out_channels, total,
            convolution.convolution.kernel_size[0], convolution.wrapped_columns > 0, activation_name(hidden),
            activation_name(self.network.output_activation),
            next((module.p for module in modules if isinstance(module, nn.Dropout2d)), 0.0),
            tuple(int(norm.num_features) for norm in norms),
        )  # fmt: skip

    def _offset(self, layer: nn.Conv2d | nn.ConvTranspose2d) -> int:
        return self._offsets[id(layer.weight)]

    def _value(self, level: int, channels: int, parts: int = 1) -> int:
        self.values.append(FieldValue(level, channels, parts))
        return len(self.values) - 1

    def _cnn(self, network: CnnNetwork) -> int:
        current = self._value(0, self.model.input_mean.numel())
        for block in network.blocks:
            current = self._convolution(block, current, 0)
        return current

    def _unet(self, network: UNetNetwork) -> int:
        current = self._value(0, self.model.input_mean.numel())
        widened = [module for module in network.widen if isinstance(module, nn.ConvTranspose2d)]
        # The two parts of one value, concatenated: the fields of the skip connection and the upsampled fields.
        joined = [self._value(level, widen.out_channels, 2) for level, widen in enumerate(reversed(widened))]
        for level, block in enumerate([network.entrance, *network.down]):
            if level > 0:
                coarse = self._value(level, self.values[current].channels)
                self.layers.append(FieldLayer("pool", current, coarse))
                current = coarse
            current = self._block(block, current, level, joined[level] if level < len(joined) else None)
        for level, widen, block in zip(reversed(range(len(joined))), widened, network.up, strict=True):
            self.layers.append(FieldLayer("widen", current, joined[level], 1, self._offset(widen)))
            current = self._block(block, joined[level], level, None)
        return current

    def _block(self, block: nn.Module, source: int, level: int, target: int | None) -> int:
        first, second = block.children()
        return self._convolution(second, self._convolution(first, source, level), level, target)

    def _convolution(self, block: nn.Module, source: int, level: int, target: int | None = None) -> int:
        convolution = _first_convolution(block).convolution
        if target is None:
            target = self._value(level, convolution.out_channels)
        self.layers.append(FieldLayer("convolve", source, target, 0, self._offset(convolution)))
        return target


def _first_convolution(module: nn.Module) -> FieldConvolution:
    return next(one for one in module.modules() if isinstance(one, FieldConvolution))
