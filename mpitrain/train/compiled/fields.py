"""The compiled step of networks on fields: the networks that it supports, and the macros of its source.

H, W  rows and columns of a field
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mpitrain.models.convolutional.graph import FieldGraph
from mpitrain.train.needs import EngineRequest

# For larger networks torch's libraries are faster than the tiles of the compiled step.
LARGEST_FIELD_CHANNELS = 128
LARGEST_FIELD_KERNEL = 7
LARGEST_FIELD_BYTES = 2 * 2**30
_BYTES = {"float32": 4, "float64": 8}


@dataclass(frozen=True)
class FieldNetwork:
    """A cnn or unet on fields of `shape` (H, W), with activations and loss by their names in the kernel.

    `dtype` is float32 or float64.
    """

    source: ClassVar[str] = "field_network"

    graph: FieldGraph
    shape: tuple[int, int]
    loss: str
    dtype: str

    @property
    def num_points(self) -> int:
        """The number of points of a sample."""
        return self.shape[0] * self.shape[1]

    def macros(self) -> list[str]:
        """See `KernelNetwork.macros`."""
        graph = self.graph
        values = ",".join(f"{{{value.level},{value.channels},{value.parts}}}" for value in graph.values)
        layers = ",".join(
            f"{{{layer.kind},{layer.source},{layer.target},{layer.part},{layer.parameters}}}" for layer in graph.layers
        )
        named = {
            "REAL": "float" if self.dtype == "float32" else "double",
            "FIELD_SIZE": f"{self.shape[0]},{self.shape[1]}",
            "LEVELS": max(value.level for value in graph.values),
            "KERNEL_SIZE": graph.kernel_size,
            "PERIODIC": int(graph.is_periodic),
            "OUTPUTS": graph.num_outputs,
            "PARAMETERS": graph.num_parameters,
            "VALUES": values,
            "LAYERS": layers,
            "HIDDEN": graph.hidden_activation.replace("none", "identity"),
            "OUTPUT": graph.output_activation.replace("none", "identity"),
            "LOSS": self.loss,
        }
        macros = [f"-D{name}={value}" for name, value in named.items()]
        macros += [f"-DDROPOUT={graph.dropout!r}"] if graph.dropout else []
        return macros + (["-DBATCH_NORM=1"] if graph.norm_channels else [])


def convolution_obstacle(request: EngineRequest, graph: FieldGraph, inputs: Sequence[int], dtype: str) -> str | None:
    """Return why the compiled step cannot compute microbatches of shape `inputs` (b, F, H, W); None if it can."""
    if len(inputs) != 4:
        return "the samples are not fields of rows and columns"
    if max(value.channels for value in graph.values) > LARGEST_FIELD_CHANNELS:
        return f"a layer has more than {LARGEST_FIELD_CHANNELS} channels, where PyTorch is fast"
    if graph.kernel_size > LARGEST_FIELD_KERNEL:
        return f"convolutions are wider than {LARGEST_FIELD_KERNEL}"
    if _bytes_of(graph, inputs[2] * inputs[3], dtype) > LARGEST_FIELD_BYTES:
        return f"the step would need more than {LARGEST_FIELD_BYTES >> 30} GiB of memory on each rank"
    return _norm_obstacle(request, inputs[0]) if graph.norm_channels else None


def _norm_obstacle(request: EngineRequest, num_samples: int) -> str | None:
    """Return why batch norm cannot be computed field by field; None if it can."""
    if request.distributed.sync_batch_norm:
        return "distributed.sync_batch_norm=true needs autograd"
    if request.training.gradient_accumulation_steps > 1:
        return "batch norm with training.gradient_accumulation_steps needs autograd"
    if num_samples > 1 or request.training.reduction == "any":
        return "batch norm over several fields needs autograd"
    return None


def _bytes_of(graph: FieldGraph, num_points: int, dtype: str) -> int:
    """Return the approximate memory of all values, their derivatives and the sums before activations, in bytes."""
    numbers = (value.parts * max(value.channels, 16) * num_points >> 2 * value.level for value in graph.values)
    return 3 * sum(numbers) * _BYTES[dtype]
