"""Parameters and buffers of a cnn or unet for its compiled step: arrays that share the memory of a torch module."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mpitrain.models.convolutional.graph import FieldGraph, field_graph_of
from mpitrain.models.dense import Array, NetworkNumbers


@dataclass
class FieldModel(NetworkNumbers):
    """Parameters and buffers of a cnn or unet with torch's names and in torch's order; see `DenseModel` for chains."""

    graph: FieldGraph
    parameters: dict[str, Array]
    buffers: dict[str, Array]

    @property
    def num_outputs(self) -> int:
        """The number of outputs O."""
        return self.graph.num_outputs

    @property
    def norm_sizes(self) -> tuple[int, ...]:
        """The number of channels of each layer that has batch norm."""
        return self.graph.norm_channels


def field_model_of(module: Any) -> FieldModel | None:
    """Return the arrays of a cnn or unet on the CPU, which share the module's memory; None for other networks."""
    graph = field_graph_of(module)
    if graph is None:
        return None
    parameters = {name: parameter.detach().numpy() for name, parameter in module.named_parameters()}
    return FieldModel(graph, parameters, {name: buffer.detach().numpy() for name, buffer in module.named_buffers()})
