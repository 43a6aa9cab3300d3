"""IceNet: y = sigmoid(fc2(activation(fc1((x - mean) / std)))).

N  samples      F  input features      H  hidden units      O  outputs
"""

# Annotations are not postponed here: TorchScript wants the buffers' types, not their names.
import torch
from torch import nn

from mpitrain.config.model import ModelSection
from mpitrain.models.activations import ACTIVATIONS
from mpitrain.models.files.record import remember_architecture
from mpitrain.models.jacobian import output_gradients


class IceNet(nn.Module):
    """The sea-ice network of the C++ program: two linear layers, normally without an activation between them.

    Parameters and buffers carry the C++ module's names: fc1.weight (H, F), fc1.bias (H,), fc2.weight (O, H),
    fc2.bias (O,), input_mean (F,), input_std (F,). The buffers start as 0 and 1.
    """

    input_mean: torch.Tensor
    input_std: torch.Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        output_size: int = 1,
        hidden_activation: str = "none",
        output_activation: str = "sigmoid",
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(input_size, hidden_size)
        self.fc2 = nn.Linear(hidden_size, output_size)
        self.activation = ACTIVATIONS[hidden_activation]()
        self.output_activation = ACTIVATIONS[output_activation]()
        self.register_buffer("input_mean", torch.zeros(input_size))
        self.register_buffer("input_std", torch.ones(input_size))
        # The C++ program draws in this order, after both layers' default initialisation.
        nn.init.xavier_normal_(self.fc1.weight)
        nn.init.xavier_normal_(self.fc2.weight)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the predictions (N, O) for `inputs` (N, F) in physical units."""
        hidden = self.activation(self.fc1((inputs - self.input_mean) / self.input_std))
        outputs: torch.Tensor = self.output_activation(self.fc2(hidden))
        return outputs

    @torch.jit.export
    def jac(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the derivatives (N, O, F) of the outputs by `inputs` (N, F), in physical units."""
        # A caller's no-gradient mode holds for the caller; derivatives need the graph.
        gradients_were_enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        samples = inputs.detach().clone().requires_grad_(True)
        derivatives = output_gradients(self.forward(samples), samples)
        torch.set_grad_enabled(gradients_were_enabled)
        return derivatives

    def set_normalization(
        self,
        input_mean: torch.Tensor,
        input_std: torch.Tensor,
        output_mean: torch.Tensor | None = None,
        output_std: torch.Tensor | None = None,
    ) -> None:
        """Set the buffers: `input_mean` (F,) and `input_std` (F,), std nowhere 0; the outputs' are not used."""
        self.input_mean.copy_(input_mean)
        self.input_std.copy_(input_std)


def build_icenet(
    input_size: int, hidden_size: int, hidden_activation: str, seed: int, dtype: torch.dtype = torch.float32
) -> IceNet:
    """Return an IceNet whose weights are fixed by `seed`, the same numbers that libtorch draws with that seed.

    The caller's random state is left as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # Drawn as float32 for every dtype, so that float64 runs start from the same weights.
        model = IceNet(input_size, hidden_size, hidden_activation=hidden_activation).to(dtype)
    settings = {"name": "icenet", "hidden_size": hidden_size, "hidden_activation": hidden_activation}
    remember_architecture(model, ModelSection.model_validate(settings))
    return model
