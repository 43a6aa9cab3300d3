"""Ensemble of networks as one network: mean, spread, and the values of each member.

M  members      N  samples      F  input features      O  outputs
"""

from collections.abc import Sequence

# No `from __future__ import annotations`: TorchScript needs the types of the buffers, not their names.
import torch
from torch import nn


class EnsembleNetwork(nn.Module):
    """Ensemble of networks with the same inputs and outputs as one network. TorchScript can compile it.

    Mean and spread are computed in float64 and returned in the members' dtype. The spread is the standard deviation
    over members with divisor M - 1; it is 0 for a single member.

    Parameters
    ----------
    networks : sequence of torch.nn.Module, length M
        Networks from physical units to physical units, each with `forward` and `jac`. They are not copied.
    """

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the mean of the members' predictions.

        Parameters
        ----------
        inputs : Tensor, shape (N, F) or (N, F, H, W)
            In physical units and the members' dtype.

        Returns
        -------
        Tensor, shape (N, O) or (N, O, H, W)
            In physical units.
        """
        return self.mean_of(self.member_values(inputs))

    @torch.jit.export
    def member_values(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return each member's predictions.

        Parameters
        ----------
        inputs : Tensor, shape (N, F) or (N, F, H, W)

        Returns
        -------
        Tensor, shape (M, N, O) or (M, N, O, H, W)
        """
        values: list[torch.Tensor] = []
        for network in self.networks:
            values.append(network(inputs))
        return torch.stack(values)

    @torch.jit.export
    def spread(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the standard deviation over members of the predictions.

        Parameters
        ----------
        inputs : Tensor, shape (N, F) or (N, F, H, W)

        Returns
        -------
        Tensor, shape (N, O) or (N, O, H, W)
            In physical units.
        """
        return self.spread_of(self.member_values(inputs))

    @torch.jit.export
    def member_jacobians(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return each member's derivatives of the outputs with respect to the inputs.

        Parameters
        ----------
        inputs : Tensor, shape (N, F)

        Returns
        -------
        Tensor, shape (M, N, O, F)
            In physical units of the output per unit of the input.
        """
        values: list[torch.Tensor] = []
        for network in self.networks:
            values.append(network.jac(inputs))  # type: ignore[operator]
        return torch.stack(values)

    @torch.jit.export
    def jac(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the mean of the members' derivatives, which is the derivative of the mean.

        Parameters
        ----------
        inputs : Tensor, shape (N, F)

        Returns
        -------
        Tensor, shape (N, O, F)
            In physical units of the output per unit of the input.
        """
        return self.mean_of(self.member_jacobians(inputs))

    @torch.jit.export
    def jac_spread(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the standard deviation over members of the derivatives.

        Parameters
        ----------
        inputs : Tensor, shape (N, F)

        Returns
        -------
        Tensor, shape (N, O, F)
        """
        return self.spread_of(self.member_jacobians(inputs))

    @torch.jit.export
    def mean_of(self, values: torch.Tensor) -> torch.Tensor:
        """Return the mean over the first dimension, computed in float64.

        Parameters
        ----------
        values : Tensor, shape (M, ...)

        Returns
        -------
        Tensor, shape (...)
            In the dtype of `values`.
        """
        return values.double().mean(0).to(values.dtype)

    @torch.jit.export
    def spread_of(self, values: torch.Tensor) -> torch.Tensor:
        """Return the standard deviation over the first dimension, computed in float64 with divisor M - 1.

        Parameters
        ----------
        values : Tensor, shape (M, ...)

        Returns
        -------
        Tensor, shape (...)
            In the dtype of `values`; zeros if M is 1.
        """
        if values.size(0) < 2:
            return torch.zeros_like(values[0])
        return values.double().std(0, unbiased=True).to(values.dtype)
