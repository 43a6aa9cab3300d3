"""Adam (Kingma and Ba, 2015). libtorch and Python's torch compute its formula in different orders of operations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mpitrain.config import NumberOrZero, PositiveNumber
from mpitrain.config.section import Momentum
from mpitrain.train.optimizers.optimizer import Arithmetic, Optimizer, OptimizerKind

if TYPE_CHECKING:
    import torch


class Adam(Optimizer):
    """Adam, with its weight decay added to the gradient."""

    kernel = OptimizerKind.adam
    moments = ("exp_avg", "exp_avg_sq")
    kernel_options = frozenset({"beta1", "beta2", "epsilon", "weight_decay"})
    counts_steps = True
    graph_flag = "capturable"
    described_as = "Adam"
    in_torch: ClassVar[str] = "Adam"
    """The class in torch.optim."""
    fused: ClassVar[str] = "_fused_adam_"
    """The fused function in torch that updates all parameters in one pass."""
    in_reference: ClassVar[frozenset[str] | None] = frozenset({"learning_rate", "beta1", "beta2", "epsilon"})

    type: Literal["adam"] = "adam"
    """Which optimiser."""
    weight_decay: NumberOrZero = 0.0
    """L2 penalty on the weights."""
    beta1: Momentum = 0.9
    """Decay of the mean of gradients."""
    beta2: Momentum = 0.999
    """Decay of the mean of squared gradients."""
    epsilon: PositiveNumber = 1e-8
    """Added to the denominator."""

    def fused_step(self, flat: Any, gradient: torch.Tensor, learning_rate: float) -> None:
        """See `Optimizer.fused_step`."""
        import torch

        flat.step_count.add_(1)
        getattr(torch, self.fused)(
            [flat.weights], [gradient], [flat.first_moment], [flat.second_moment], [],
            [flat.step_count], lr=learning_rate, beta1=self.beta1, beta2=self.beta2,
            weight_decay=self.weight_decay, eps=self.epsilon, amsgrad=False, maximize=False,
        )  # fmt: skip

    def build(self, parameters: Iterable[torch.Tensor], arithmetic: Arithmetic = "plain") -> torch.optim.Optimizer:
        """See `Optimizer.build`."""
        import torch

        betas = (self.beta1, self.beta2)
        if arithmetic == "reference":
            from mpitrain.train.optimizers.libtorch_adam import LibtorchAdam

            return LibtorchAdam(parameters, self.learning_rate, betas, self.epsilon)
        optimizer: torch.optim.Optimizer = getattr(torch.optim, self.in_torch)(
            parameters, self.learning_rate, betas, self.epsilon, self.weight_decay,
            foreach=False, fused=arithmetic == "fused",
        )  # fmt: skip
        return optimizer


class AdamW(Adam):
    """AdamW."""

    # Loshchilov and Hutter, 2019: Adam with weight decay that is not added to the gradient.

    kernel = OptimizerKind.adamw
    described_as = in_torch = "AdamW"
    fused = "_fused_adamw_"
    in_reference: ClassVar[frozenset[str] | None] = None

    type: Literal["adamw"] = "adamw"  # type: ignore[assignment]  # another name in the table
    """Which optimiser."""
    weight_decay: NumberOrZero = 0.0
    """Each step subtracts this fraction of the weights, times the learning rate."""
