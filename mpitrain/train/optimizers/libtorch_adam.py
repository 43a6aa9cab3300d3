"""libtorch's Adam: the formula of Python's torch in a different order of operations.

t  optimiser steps so far      m, v  first and second moment of the gradient g
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class LibtorchAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba, 2015) in the order of operations of libtorch's C++ implementation.

    `torch.optim.Adam` updates m with `lerp`, libtorch with `mul` and `add`, which rounds differently.
    """

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # no closure is ever evaluated
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, group)

    def state_of(self, parameter: torch.Tensor) -> dict[str, Any]:
        """Return the state of a parameter; it is created as zeros before the first update."""
        state: dict[str, Any] = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        return state

    def update(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        """Update one parameter in place."""
        state = self.state_of(parameter)
        state["step"] += 1
        t = int(state["step"])
        beta1, beta2 = group["betas"]
        m, v = state["exp_avg"], state["exp_avg_sq"]
        m.mul_(beta1).add_(gradient, alpha=1 - beta1)
        v.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        denominator = (v.sqrt() / (1 - beta2**t) ** 0.5).add_(group["eps"])
        parameter.addcdiv_(m, denominator, value=-group["lr"] / (1 - beta1**t))
