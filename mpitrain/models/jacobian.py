"""Derivatives of a network's output by its inputs, in physical units.

N  samples      F  input features
"""

from __future__ import annotations

import torch
from torch import nn


def input_jacobian(model: nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the outputs (N,) and their derivatives (N, F) by `inputs` (N, F), for a network with one output.

    For IceNet without an activation between its layers this is y (1 - y) (W2 W1) / std.
    """
    samples = inputs.detach().clone().requires_grad_(True)
    outputs = model(samples)
    (jacobian,) = torch.autograd.grad(outputs, samples, torch.ones_like(outputs))
    return outputs.detach().view(-1), jacobian
