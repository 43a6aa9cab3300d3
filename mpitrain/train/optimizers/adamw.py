"""AdamW (Loshchilov and Hutter, 2019): Adam whose weight decay is apart from the gradient."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from mpitrain.config import NumberOrZero
from mpitrain.train.optimizers.adam import Adam
from mpitrain.train.optimizers.optimizer import OptimizerKind


class AdamW(Adam):
    """AdamW."""

    kernel = OptimizerKind.adamw
    in_reference: ClassVar[frozenset[str] | None] = None

    type: Literal["adamw"] = "adamw"  # type: ignore[assignment]  # another name in the table
    """Which optimiser."""
    weight_decay: NumberOrZero = 0.0
    """Fraction of the weights, times the learning rate, that each step takes off."""

    def describe(self) -> str:
        """See `Component.describe`."""
        return "AdamW"

    def _update(self, torch: Any) -> Any:
        return torch._fused_adamw_

    def _class(self, torch: Any) -> Any:
        return torch.optim.AdamW
