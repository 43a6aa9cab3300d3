"""IceNet, the network of the C++ program: two linear layers and a sigmoid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar, Literal

from mpitrain.config import Count
from mpitrain.config.model import Activation
from mpitrain.models.networks.network import Network

if TYPE_CHECKING:
    from mpitrain.models.dense import DenseChain
    from mpitrain.models.normalized import PhysicalModel


class IceNetSettings(Network):
    """IceNet."""

    samples = "points"
    has_cpp_names = True
    default_output_activation = "sigmoid"
    in_reference: ClassVar[frozenset[str] | None] = frozenset(
        {
            "input_size", "output_size", "normalize_outputs", "initial_weights",
            "hidden_size", "hidden_activation", "output_activation",
        }
    )  # fmt: skip

    name: Literal["icenet"] = "icenet"
    hidden_size: Count = 16
    """Number of units of each hidden layer; for cnn and unet, number of channels of the first layer."""
    hidden_activation: Activation | None = None
    """Function after each hidden layer; null means none for icenet, as in the C++ program, and relu for the others."""
    output_activation: Activation | None = None
    """Function after the last layer; null means sigmoid for icenet and none for the others."""

    def min_numbers(self, num_inputs: int, num_outputs: int) -> int:
        """See `Network.min_numbers`."""
        return self.hidden_size * (num_inputs + num_outputs)

    @property
    def normalizes_outputs(self) -> bool:
        """See `Network.normalizes_outputs`: as in the C++ program, only inputs are normalised."""
        return False

    def chain(self, num_inputs: int, num_outputs: int) -> DenseChain | None:
        """See `Network.chain`."""
        from mpitrain.models.dense import DenseChain

        functions = self.hidden_activation or "none", self.output_activation or "sigmoid"
        return DenseChain((num_inputs, self.hidden_size, num_outputs), *functions)

    def problems(self) -> Iterator[tuple[str, object, str]]:
        """See `Component.problems`."""
        if self.normalize_outputs:
            yield "normalize_outputs", True, "icenet has no such option; remove the key or give model.name=mlp"

    def describe(self) -> str:
        """See `Component.describe`."""
        activation = f", activation {self.hidden_activation}" if self.hidden_activation else ""
        return f"an IceNet with {self.hidden_size} units{activation}"

    def build(self, num_inputs: int, num_outputs: int) -> PhysicalModel:
        """See `Network.build`."""
        from mpitrain.models.icenet import IceNet

        hidden, output = self.hidden_activation or "none", self.output_activation or "sigmoid"
        return IceNet(num_inputs, self.hidden_size, num_outputs, hidden, output)
