"""Networks with inputs and outputs in physical units that compute with normalised values.

b  samples      F  input features      O  outputs      H, W  rows and columns of a field
"""

from collections.abc import Sequence

# No `from __future__ import annotations`: TorchScript needs the types of the buffers, not their names.
import torch
from torch import nn

from mpitrain.models.jacobian import output_gradients


class PhysicalModel(nn.Module):
    """Base class of networks from physical units to physical units; it stores the statistics of the inputs.

    The buffers input_mean and input_std (F,) start as 0 and 1.
    """

    input_mean: torch.Tensor
    input_std: torch.Tensor

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.register_buffer("input_mean", torch.zeros(num_inputs))
        self.register_buffer("input_std", torch.ones(num_inputs))

    @torch.jit.export
    def jac(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the derivatives (N, O, F) of the outputs with respect to `inputs` (N, F), in physical units."""
        if inputs.dim() != 2:
            raise ValueError("jac: the inputs must have two dimensions, samples and features")
        # Derivatives need the graph, also if the caller has disabled gradients; the caller's mode is restored.
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
        """Set the statistics of the inputs (F,) and of the outputs (O,). No standard deviation may be 0.

        Statistics that are None keep their values; a network without statistics of its outputs ignores them.
        """
        given = {
            "input_mean": input_mean, "input_std": input_std, "output_mean": output_mean, "output_std": output_std
        }  # fmt: skip
        for name, buffer in self.named_buffers(recurse=False):
            values = given[name]
            if values is not None:
                buffer.copy_(values)


class NormalizedModel(PhysicalModel):
    """inverse(output_std * network((inputs - input_mean) / input_std) + output_mean).

    The buffers input_mean, input_std (F,) and output_mean, output_std (O,) start as 0 and 1. `network` maps (b, F) to
    (b, O), or fields (b, F, H, W) to (b, O, H, W). `inverse` undoes the transforms of the targets, if any.
    """

    output_mean: torch.Tensor
    output_std: torch.Tensor

    def __init__(self, network: nn.Module, num_inputs: int, num_outputs: int) -> None:
        super().__init__(num_inputs)
        self.network = network
        self.inverse: nn.Module = nn.Identity()
        self.register_buffer("output_mean", torch.zeros(num_outputs))
        self.register_buffer("output_std", torch.ones(num_outputs))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the predictions (b, O) or (b, O, H, W) for `inputs` (b, F) or (b, F, H, W), in physical units."""
        axes = [-1] + [1] * (inputs.dim() - 2)
        outputs: torch.Tensor = self.network((inputs - self.input_mean.view(axes)) / self.input_std.view(axes))
        physical: torch.Tensor = self.inverse(outputs * self.output_std.view(axes) + self.output_mean.view(axes))
        return physical

    def checkpoint_blocks(self) -> Sequence[nn.Module]:
        """Return the modules whose activations may be recomputed in the backward pass."""
        if isinstance(self.network, BlockNetwork):
            return self.network.checkpoint_blocks()
        return [self.network]


class BlockNetwork(nn.Module):
    """Base class of networks that consist of blocks, the units of gradient checkpointing."""

    def checkpoint_blocks(self) -> Sequence[nn.Module]:
        """Return the blocks, in the order of the forward pass."""
        raise NotImplementedError
