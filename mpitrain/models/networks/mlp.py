"""A network of dense layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from mpitrain.models.networks.network import LayeredNetwork

if TYPE_CHECKING:
    from mpitrain.models.dense import DenseChain
    from mpitrain.models.normalized import PhysicalModel


class MlpSettings(LayeredNetwork):
    """A network of dense layers."""

    samples = "points"
    noun = "a network of dense layers (mlp)"

    name: Literal["mlp"] = "mlp"
    layer_norm: bool = False
    """Layer norm in mlp: normalise the units of each hidden layer within each sample, before the activation; not
    together with batch_norm."""
    residual: bool = False
    """Add the inputs of each hidden layer of mlp after the first to its outputs: x + f(x)."""

    def chain(self, num_inputs: int, num_outputs: int) -> DenseChain | None:
        """See `Network.chain`."""
        from mpitrain.models.dense import DenseChain

        sizes = (num_inputs, *[self.hidden_size] * self.hidden_layers, num_outputs)
        functions = self.hidden_activation or "relu", self.output_activation or "none"
        return DenseChain(sizes, *functions, self.dropout, self.batch_norm, self.layer_norm, self.residual)

    def problems(self) -> Iterator[tuple[str, object, str]]:
        """See `Component.problems`."""
        yield from super().problems()
        if self.layer_norm and self.batch_norm:
            yield "layer_norm", True, "not together with model.batch_norm=true, as a layer has one norm; remove one"
        elif self.layer_norm and self.hidden_size == 1:
            yield (
                "layer_norm",
                True,
                "gives the same outputs for every sample with model.hidden_size=1; give model.hidden_size of at least "
                "2",
            )
        if self.residual and self.hidden_layers == 1:
            yield "residual", True, "has no effect on a single hidden layer; give model.hidden_layers of at least 2"

    def described_extras(self) -> list[str]:
        """See `LayeredNetwork.described_extras`."""
        norm = ["layer norm"] if self.layer_norm else []
        return super().described_extras() + norm + (["residual connections"] if self.residual else [])

    def build(self, num_inputs: int, num_outputs: int) -> PhysicalModel:
        """See `Network.build`."""
        from mpitrain.models.mlp import MlpNetwork
        from mpitrain.models.normalized import NormalizedModel

        sizes = [num_inputs, *[self.hidden_size] * self.hidden_layers, num_outputs]
        options = self.layer_options(layer_norm=self.layer_norm, residual=self.residual)
        return NormalizedModel(MlpNetwork(sizes, options), num_inputs, num_outputs)
