"""A U-Net: coarser and coarser fields, then back, with the fine fields handed across."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from mpitrain.models.networks.cnn import CnnSettings

if TYPE_CHECKING:
    from mpitrain.models.normalized import PhysicalModel

LARGEST_LEVELS = 8


class UNetSettings(CnnSettings):
    """A U-Net."""

    name: Literal["unet"] = "unet"  # type: ignore[assignment]  # a name of the table

    def problems(self) -> Iterator[tuple[str, object, str]]:
        """See `Component.problems`."""
        yield from super().problems()
        if self.hidden_layers > LARGEST_LEVELS:
            what = f"each level of unet doubles the channels; give at most {LARGEST_LEVELS}"
            yield "hidden_layers", self.hidden_layers, what

    def noun(self) -> str:
        """See `LayeredNetwork.noun`."""
        return "a U-Net (unet)"

    def build(self, num_inputs: int, num_outputs: int) -> PhysicalModel:
        """See `Network.build`."""
        from mpitrain.models.convolutional.unet import UNetNetwork
        from mpitrain.models.normalized import NormalizedModel

        options = self.layer_options(kernel_size=self.kernel_size, periodic=self.periodic)
        network = UNetNetwork(num_inputs, num_outputs, self.hidden_size, self.hidden_layers, options)
        return NormalizedModel(self.with_linear_part(network, num_inputs, num_outputs), num_inputs, num_outputs)
