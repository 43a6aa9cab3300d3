"""Ensemble of networks as one network: mean, spread, and the values of each member.

M  members      N  samples      F  input features      O  outputs
"""

from collections.abc import Sequence

# No `from __future__ import annotations`: TorchScript needs the types of the buffers, not their names.
import torch
from torch import nn


class EnsembleNetwork(nn.Module):
    """Ensemble of networks with the same inputs and outputs, each with `forward` and `jac`. TorchScript can compile it.

    The spread is the standard deviation over members with divisor M - 1; it is 0 for a single member.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the mean of the members' predictions (N, O) for `inputs` (N, F) in physical units."""
        return self.mean_of(self.member_values(inputs))

    @torch.jit.export
    def member_values(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return each member's predictions (M, N, O)."""
        values: list[torch.Tensor] = []
        for network in self.networks:
            values.append(network(inputs))
        return torch.stack(values)

    @torch.jit.export
    def spread(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the standard deviation over members of the predictions (N, O)."""
        return self.spread_of(self.member_values(inputs))

    @torch.jit.export
    def member_jacobians(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return each member's derivatives (M, N, O, F)."""
        values: list[torch.Tensor] = []
        for network in self.networks:
            values.append(network.jac(inputs))  # type: ignore[operator]
        return torch.stack(values)

    @torch.jit.export
    def jac(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the mean of the members' derivatives (N, O, F), which is the derivative of the mean."""
        return self.mean_of(self.member_jacobians(inputs))

    @torch.jit.export
    def jac_spread(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the standard deviation over members of the derivatives (N, O, F)."""
        return self.spread_of(self.member_jacobians(inputs))

    @torch.jit.export
    def mean_of(self, values: torch.Tensor) -> torch.Tensor:
        """Return the mean over the first dimension, computed in float64."""
        return values.double().mean(0).to(values.dtype)

    @torch.jit.export
    def spread_of(self, values: torch.Tensor) -> torch.Tensor:
        """Return the standard deviation over the first dimension, computed in float64."""
        if values.size(0) < 2:
            return torch.zeros_like(values[0])
        return values.double().std(0, unbiased=True).to(values.dtype)
