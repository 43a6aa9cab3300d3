"""Settings of the cnn, a stack of convolutions over fields, and of the U-Net."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from mpitrain.config import Count, object_at
from mpitrain.models.networks.network import LayeredNetwork

if TYPE_CHECKING:
    from mpitrain.models.normalized import PhysicalModel

LARGEST_UNET_LEVELS = 8


class CnnSettings(LayeredNetwork):
    """A stack of convolutions."""

    samples = "fields"
    noun = "a convolutional network (cnn)"
    unit = "channels"
    convolutions: ClassVar[str] = "mpitrain.models.convolutional.cnn:CnnNetwork"
    """The class path of its layers, imported only by `build`."""

    name: Literal["cnn"] = "cnn"
    kernel_size: Count = 3
    """Width of the convolutions of cnn and unet, odd."""
    periodic: bool = False
    """Let the convolutions of cnn and unet wrap around along the last dimension, as longitudes do."""
    linear_part: bool = False
    """Add to cnn and unet a linear map of the inputs at the same point; training starts from the least-squares fit to
    the training samples. The default for fields is true if no network is named."""
    grid: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    """Rows and columns of the grid of a network with linear_part, which then works on this grid only: each point adds
    its own coefficients, fitted once. The default is the grid of the data, unless it is too large."""

    def min_numbers(self, num_inputs: int, num_outputs: int) -> int:
        """See `Network.min_numbers`; a grid adds at least one number per point."""
        return super().min_numbers(num_inputs, num_outputs) + math.prod(self.grid or ())

    @property
    def starts_from_regression(self) -> bool:
        """See `Network.starts_from_regression`."""
        return self.linear_part and self.initial_weights is None

    def problems(self) -> Iterator[tuple[str, object, str]]:
        """See `Component.problems`."""
        yield from super().problems()
        if self.kernel_size % 2 == 0:
            yield "kernel_size", self.kernel_size, "even, so it has no middle; give an odd number such as 3 or 5"
        if self.linear_part and self.output_activation not in (None, "none"):
            reason = f"not together with model.output_activation={self.output_activation}; remove one of them"
            yield "linear_part", True, reason
        if self.grid is not None and not self.linear_part:
            yield "grid", self.grid, "has no effect without model.linear_part=true; set that or remove model.grid"

    def described_extras(self) -> list[str]:
        """See `LayeredNetwork.described_extras`."""
        linear = "a linear map with separate coefficients at each point" if self.grid else "a linear map"
        return super().described_extras() + ([linear] if self.linear_part else [])

    def build(self, num_inputs: int, num_outputs: int) -> PhysicalModel:
        """See `Network.build`."""
        from mpitrain.models.convolutional.linear_part import LinearPartNetwork
        from mpitrain.models.normalized import NormalizedModel

        options = self.layer_options(kernel_size=self.kernel_size, periodic=self.periodic)
        layers = object_at(self.convolutions)
        network = layers(num_inputs, num_outputs, self.hidden_size, self.hidden_layers, options)
        if self.linear_part:
            network = LinearPartNetwork(network, num_inputs, num_outputs, self.grid)
        return NormalizedModel(network, num_inputs, num_outputs)


class UNetSettings(CnnSettings):
    """A U-Net."""

    # Each level halves the resolution; on the way back skip connections concatenate the finer fields.
    convolutions = "mpitrain.models.convolutional.unet:UNetNetwork"
    noun = "a U-Net (unet)"

    name: Literal["unet"] = "unet"  # type: ignore[assignment]  # a name of the table

    def problems(self) -> Iterator[tuple[str, object, str]]:
        """See `Component.problems`."""
        yield from super().problems()
        if self.hidden_layers > LARGEST_UNET_LEVELS:
            reason = f"each level of unet doubles the channels; give at most {LARGEST_UNET_LEVELS}"
            yield "hidden_layers", self.hidden_layers, reason
