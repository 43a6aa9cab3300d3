"""Derivatives of a network's outputs with respect to its inputs, in physical units.

N  samples      F  input features      O  outputs
"""

from __future__ import annotations

import torch
from torch import nn


def input_jacobian(model: nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs of a network and their derivatives with respect to its inputs, in evaluation mode.

    Parameters
    ----------
    model : torch.nn.Module
        Maps (N, F) to (N, O); row n of the outputs may depend only on row n of the inputs. Its mode, training or
        evaluation, is restored.
    inputs : Tensor, shape (N, F)
        On the model's device and in its dtype; not changed.

    Returns
    -------
    outputs : Tensor, shape (N, O)
        Without a graph.
    jacobian : Tensor, shape (N, O, F)
        d outputs[n, o] / d inputs[n, f], in units of the output per unit of the input.

    Notes
    -----
    Takes one forward pass and one backward pass per output. The gradients of the parameters are not changed. For IceNet
    with a sigmoid and no activation between its layers the derivatives are y (1 - y) (W2 W1) / std.
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
