"""Stochastic gradient descent, with optional momentum."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from mpitrain.config import NumberOrZero
from mpitrain.config.section import Momentum
from mpitrain.train.optimizers.optimizer import Arithmetic, Optimizer, OptimizerKind

if TYPE_CHECKING:
    import torch


class StochasticGradientDescent(Optimizer):
    """Stochastic gradient descent."""

    kernel = OptimizerKind.descent
    moments = ("momentum_buffer",)
    kernel_options = frozenset({"weight_decay", "momentum"})
    graph_flag = "fused"
    described_as = "Stochastic gradient descent"

    type: Literal["sgd"] = "sgd"
    """Which optimiser."""
    weight_decay: NumberOrZero = 0.0
    """L2 penalty on the weights."""
    momentum: Momentum = 0.0
    """Decay of the sum of gradients that each step follows."""

    def fused_step(self, flat: Any, gradient: torch.Tensor, learning_rate: float) -> None:
        """See `Optimizer.fused_step`."""
        import torch

        torch._fused_sgd_(
            [flat.weights], [gradient], [flat.first_moment] if self.momentum else [],
            weight_decay=self.weight_decay, momentum=self.momentum, lr=learning_rate, dampening=0.0, nesterov=False,
            maximize=False, is_first_step=False,
        )  # fmt: skip

    def build(self, parameters: Iterable[torch.Tensor], arithmetic: Arithmetic = "plain") -> torch.optim.Optimizer:
        """See `Optimizer.build`."""
        import torch

        return torch.optim.SGD(
            parameters, self.learning_rate, self.momentum, weight_decay=self.weight_decay,
            foreach=False, fused=arithmetic == "fused",
        )  # fmt: skip
