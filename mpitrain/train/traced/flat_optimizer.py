"""An optimiser on flat vectors, updated by torch's fused kernels, with the state of a torch optimiser for checkpoints.

n  parameters
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mpitrain.train.optimizers.optimizer import Optimizer


class FlatOptimizer:
    """Flat vectors (n,): the parameters, their first and second moments, and the step count (), with torch's names.

    Parameters and state become views of the vectors. No torch optimiser is created: the first one imports parts of
    torch, which takes a second or two, and which the run does not need otherwise.
    """

    def __init__(self, parameters: Sequence[Any], settings: Optimizer) -> None:
        self._settings = settings
        self.weights = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.first_moment, self.second_moment = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        self.step_count = torch.zeros(())
        for parameter, view in zip(parameters, _views(self.weights, parameters), strict=True):
            parameter.data = view
        self.param_groups: list[dict[str, Any]] = [{"params": list(parameters)}]
        self.state: dict[torch.Tensor, dict[str, Any]] = {parameter: {} for parameter in parameters}
        for name, vector in zip(settings.moments, (self.first_moment, self.second_moment), strict=False):
            for parameter, view in zip(parameters, _views(vector, parameters), strict=True):
                self.state[parameter][name] = view
        if settings.counts_steps:
            for parameter in parameters:
                self.state[parameter]["step"] = self.step_count

    @torch.no_grad()
    def step(self, gradient: torch.Tensor, learning_rate: float) -> None:
        """Update the parameters in place with their mean gradient (n,)."""
        self._settings.fused_step(self, gradient, learning_rate)


def _views(flat: torch.Tensor, parameters: Sequence[Any]) -> list[torch.Tensor]:
    parts = flat.split([parameter.numel() for parameter in parameters])
    return [part.view_as(parameter) for part, parameter in zip(parts, parameters, strict=True)]
