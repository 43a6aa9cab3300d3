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
    """Base class of losses: one value per element, so that masked elements can have weight 0 and sums any fixed order.

    A subclass defines its options as fields, its `type`, and either `functional` or `build`. With a `kernel` the
    compiled engine can use it.

    Notes
    -----
    Outputs y and targets t are transformed (`model.output_transforms`) and divided by the standard deviation of the
    targets if the model normalises its outputs. In `standard` semantics the loss of a batch is the sum of weight * loss
    over all elements of all ranks, divided by the sum of the weights. The built-in losses: `mse`, (y - t)^2; `mae`, |y
    - t|; `huber` (Huber, 1964, with delta 1), (y - t)^2 / 2 if |y - t| < 1, otherwise |y - t| - 1/2.
    """

    kernel: ClassVar[str | None] = None
    """The name in the compiled kernel; None if the kernel does not have the loss."""
    functional: ClassVar[str] = ""
    """The name in torch.nn.functional, unless the class overrides `build`."""
    is_squared_error: ClassVar[bool] = False
    """Whether it is (y - t)^2: the loss of predicting the mean then follows from the statistics."""

    type: str
    """Which loss."""

    def of_arrays(self, outputs: Array, targets: Array) -> Array:
        """Return the loss of each element of numpy arrays; computed by torch unless a subclass has a numpy formula.

        Parameters
        ----------
        outputs, targets : ndarray of float32 or float64, shape (b, O, ...)
            Of one shape and dtype.

        Returns
        -------
        ndarray, shape (b, O, ...)
            In the same dtype.
        """
        import torch

        return self.build()(torch.from_numpy(outputs), torch.from_numpy(targets)).numpy()

    def build(self) -> ElementLosses:
        """Return the function that computes the loss of each element.

        Returns
        -------
        callable
            Called with outputs and targets, tensors (b, O, ...) of one shape, dtype and device; returns a tensor of
            this shape, without reduction. It is differentiable by autograd. The loss of an element does not depend on
            other samples, and no parameters are trained.

        Raises
        ------
        NotImplementedError
            The class has neither `functional` nor its own `build`.
        ConfigError
            Named code cannot be imported, fails, or does not return one loss per element. Raised on this rank only.
        """
        if not self.functional:
            raise NotImplementedError
        from torch.nn import functional

        element_losses = getattr(functional, self.functional)
        return lambda outputs, targets: element_losses(outputs, targets, reduction="none")
