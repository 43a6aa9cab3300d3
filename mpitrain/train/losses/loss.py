"""What a loss is to the rest of the package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from mpitrain.config import TypedComponent

Array = Any
"""An array of numpy, which is loaded where there are some."""
ElementLosses = Callable[[Any, Any], Any]
"""Outputs and targets, tensors (b, O, ...), to the loss of each element, of the same shape."""


class Loss(TypedComponent):
    """A loss, element by element: masks weigh elements out, and sums are taken in any fixed order."""

    kernel: ClassVar[str | None] = None
    """Its name in the compiled kernel; None where the kernel lacks it."""
    functional: ClassVar[str] = ""
    """Its name in torch.nn.functional, where `build` is not its own."""
    is_squared_error: ClassVar[bool] = False
    """Whether it is (y - t)^2: the loss of always answering the mean then follows from the statistics."""

    type: str
    """Which loss."""

    def of_arrays(self, outputs: Array, targets: Array) -> Array:
        """Return the loss of each element of numpy's arrays; by torch, where the loss has no formula for them."""
        import torch

        return self.build()(torch.from_numpy(outputs), torch.from_numpy(targets)).numpy()

    def build(self) -> ElementLosses:
        """Return the function that computes the loss of each element. Raises ConfigError where there is none."""
        if not self.functional:
            raise NotImplementedError
        from torch.nn import functional

        element_losses = getattr(functional, self.functional)
        return lambda outputs, targets: element_losses(outputs, targets, reduction="none")
