"""IceNet: y = sigmoid(fc2(activation(fc1((x - mean) / std)))).

N  samples      F  input features      H  hidden units      O  outputs
"""

import torch
from torch import nn

from mpitrain.models.activations import ACTIVATIONS
from mpitrain.models.normalized import PhysicalModel


class IceNet(PhysicalModel):
    """The sea-ice network of the C++ program: two linear layers, normally without an activation between them.

    Parameters and buffers have the C++ module's names: fc1.weight (H, F), fc1.bias (H,), fc2.weight (O, H),
    fc2.bias (O,), input_mean (F,), input_std (F,). The buffers start as 0 and 1.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        output_size: int = 1,
        hidden_activation: str = "none",
        output_activation: str = "sigmoid",
    ) -> None:
        super().__init__(input_size)
        self.fc1 = nn.Linear(input_size, hidden_size)
        self.fc2 = nn.Linear(hidden_size, output_size)
        self.activation = ACTIVATIONS[hidden_activation]()
        self.output_activation = ACTIVATIONS[output_activation]()
        if self.fc1.weight.is_meta:
            return  # a file's weights are set next; drawing on `meta` would import torch's compiler for seconds
        # The C++ program draws in this order, after both layers' default initialisation.
        nn.init.xavier_normal_(self.fc1.weight)
        nn.init.xavier_normal_(self.fc2.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the predictions (N, O) for `inputs` (N, F) in physical units."""
        hidden = self.activation(self.fc1((inputs - self.input_mean) / self.input_std))
        outputs: torch.Tensor = self.output_activation(self.fc2(hidden))
        return outputs
