"""The interface of losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from mpitrain.config import TypedComponent

Array = Any
"""A numpy array; numpy is not imported here."""
ElementLosses = Callable[[Any, Any], Any]
"""A function of outputs and targets, tensors (b, O, ...), that returns the loss of each element in the same shape."""


class Loss(TypedComponent):
    """A loss for each element, so that masked elements can have weight 0 and sums can have any fixed order."""

    kernel: ClassVar[str | None] = None
    """The name in the compiled kernel; None if the kernel does not have the loss."""
    functional: ClassVar[str] = ""
    """The name in torch.nn.functional, unless the class overrides `build`."""
    is_squared_error: ClassVar[bool] = False
    """Whether it is (y - t)^2: the loss of predicting the mean then follows from the statistics."""

    type: str
    """Which loss."""

    def of_arrays(self, outputs: Array, targets: Array) -> Array:
        """Return the loss of each element of numpy arrays; computed by torch unless a subclass has a numpy formula."""
        import torch

        return self.build()(torch.from_numpy(outputs), torch.from_numpy(targets)).numpy()

    def build(self) -> ElementLosses:
        """Return the function that computes the loss of each element. Raises ConfigError if there is none."""
        if not self.functional:
            raise NotImplementedError
        from torch.nn import functional

        element_losses = getattr(functional, self.functional)
        return lambda outputs, targets: element_losses(outputs, targets, reduction="none")
