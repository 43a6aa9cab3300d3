"""Derivatives of a network's outputs with respect to its inputs, in physical units.

N  samples      F  input features      O  outputs
"""

from __future__ import annotations

import torch
from torch import nn


def input_jacobian(model: nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs (N, O) and their derivatives (N, O, F) with respect to `inputs` (N, F), in evaluation mode.

    Takes one backward pass per output. For IceNet without an activation between its layers the derivatives are
    y (1 - y) (W2 W1) / std.
    """
    was_training = model.training
    model.eval()
    try:
        with torch.enable_grad():
            samples = inputs.detach().clone().requires_grad_(True)
            outputs = model(samples)
            return outputs.detach(), output_gradients(outputs, samples)
    finally:
        model.train(was_training)


def scalar_jacobian(model: nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the output (N,) and its derivatives (N, F) of a network with one output; see `input_jacobian`."""
    outputs, jacobian = input_jacobian(model, inputs)
    return outputs.view(-1), jacobian[:, 0]


# Also compiled into the models' TorchScript files, so it uses only tensors and plain loops.
def output_gradients(outputs: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    """Return d outputs[n, o] / d inputs[n, f] as (N, O, F); row n of `outputs` may depend only on row n of `inputs`."""
    rows: list[torch.Tensor] = []
    for number in range(outputs.size(1)):
        gradient = torch.autograd.grad([outputs[:, number].sum()], [inputs], retain_graph=True)[0]
        assert gradient is not None
        rows.append(gradient)
    return torch.stack(rows, 1)
