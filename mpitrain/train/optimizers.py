"""Optimisers. libtorch's Adam and Python torch's Adam are the same formula and not the same arithmetic.

t  optimiser steps so far      m, v  first and second moment of the gradient g
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch

from mpitrain.config.training import OptimizerSection


class LibtorchAdam(torch.optim.Optimizer):
    """Adam (Kingma and Ba, 2015) in the order of operations of libtorch's C++ implementation.

    `torch.optim.Adam` updates m by `lerp`, libtorch by `mul` and `add`: other bits.
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
        """Return what is remembered of a parameter: zeros before its first update."""
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


class OptimizerState(Protocol):
    """What a checkpoint needs of an optimiser: torch's have it, and so has the compiled step's."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameters and settings, group by group."""

    @property
    def state(self) -> Mapping[torch.Tensor, dict[str, Any]]:
        """What is remembered of each parameter, by torch's names for it."""


def build_optimizer(
    parameters: Iterable[torch.Tensor], settings: OptimizerSection, semantics: str, is_fused: bool = False
) -> torch.optim.Optimizer:
    """Return the optimiser of `settings`: libtorch's arithmetic in `reference`, torch's in `standard`.

    `is_fused`: torch's one kernel for the whole update, several times faster and different in the last bits.
    """
    betas = (settings.beta1, settings.beta2)
    if semantics == "reference":
        return LibtorchAdam(parameters, settings.learning_rate, betas, settings.epsilon)
    # Else one tensor after the other: the plain formula, which other engines and the C++ program are compared with.
    how = {"foreach": False, "fused": is_fused}
    if settings.type == "sgd":
        return torch.optim.SGD(
            parameters, settings.learning_rate, settings.momentum, weight_decay=settings.weight_decay, **how
        )
    adam = torch.optim.AdamW if settings.type == "adamw" else torch.optim.Adam
    return adam(parameters, settings.learning_rate, betas, settings.epsilon, settings.weight_decay, **how)


def optimizer_tensors(optimizer: OptimizerState, names: list[str]) -> dict[str, torch.Tensor]:
    """Return the optimiser's state as named tensors, e.g. "optimizer.fc1.weight.exp_avg"."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        f"optimizer.{name}.{key}": value.detach().cpu().clone()
        for name, parameter in zip(names, parameters, strict=True)
        for key, value in optimizer.state[parameter].items()
        if value is not None  # SGD without momentum keeps an empty buffer
    }


def restore_optimizer(optimizer: OptimizerState, names: list[str], tensors: dict[str, torch.Tensor]) -> None:
    """Set the state that `optimizer_tensors` gave."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for name, parameter in zip(names, parameters, strict=True):
        prefix = f"optimizer.{name}."
        for key, value in tensors.items():
            if key.startswith(prefix):
                own = optimizer.state[parameter].get(key[len(prefix) :])
                if own is not None:
                    own.copy_(value)  # in place: an engine may share this memory
                    continue
                # The step count stays on the CPU, where torch's own loop keeps it; its fused kernel wants it at hand.
                is_count = key.endswith(".step") and not optimizer.param_groups[0].get("fused")
                device = torch.device("cpu") if is_count else parameter.device
                optimizer.state[parameter][key[len(prefix) :]] = value.clone().to(device)
