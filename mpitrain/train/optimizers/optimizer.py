"""The interface of optimisers."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mpitrain.config import PositiveNumber, TypedComponent

if TYPE_CHECKING:
    import torch

Arithmetic = Literal["plain", "fused", "reference"]
"""`plain` updates one tensor after the other; `fused` updates all in one kernel, faster and different in the last bits;
`reference` follows libtorch's order of operations."""


class OptimizerKind(enum.IntEnum):
    """The update formulas of the compiled kernel."""

    adam = 0
    adamw = 1
    descent = 2


class Optimizer(TypedComponent):
    """Base class of optimisers and their settings.

    A subclass defines its options as fields, its `type`, and `build`. With a `kernel` the compiled and the traced
    engine can use it; all other engines use `build`.

    Notes
    -----
    The built-in formulas, of the mean gradient g: `adam`, Kingma and Ba (2015), with the weight decay added to g;
    `adamw`, Loshchilov and Hutter (2019), which instead multiplies the weights by 1 - learning rate * weight decay;
    `sgd`, v = momentum * v + g, and the weights change by -learning rate * v, as in torch without dampening.
    """

    kernel: ClassVar[OptimizerKind | None] = None
    """The formula in the compiled kernel; None if the kernel does not have it."""
    moments: ClassVar[tuple[str, ...]] = ()
    """With a kernel: torch's names of the first and second moments that are kept of each parameter."""
    kernel_options: ClassVar[frozenset[str]] = frozenset()
    """With a kernel: the options that are numbers of its formula, with the same names there; all others are 0."""
    counts_steps: ClassVar[bool] = False
    """With a kernel: whether it counts steps."""
    graph_flag: ClassVar[str | None] = None
    """The option of torch's class with which a CUDA graph can record the step; None if there is none."""

    type: str
    """Which optimiser."""
    learning_rate: PositiveNumber = 0.001
    """Step length at the start."""

    def kernel_numbers(self) -> Mapping[str, float]:
        """Return the numbers of the compiled kernel's formula.

        Returns
        -------
        mapping of str to float
            The values of `kernel_options` by name; the kernel's other numbers are 0.
        """
        return self.model_dump(include=set(self.kernel_options))

    def fused_step(self, flat: Any, gradient: torch.Tensor, learning_rate: float) -> None:
        """Update flat vectors in place with torch's fused function. For optimisers with a kernel, in the traced engine.

        Parameters
        ----------
        flat : FlatOptimizer
            Parameters and moments (n,) and the step count (), all updated in place.
        gradient : Tensor, shape (n,)
            The mean over the batch, after clipping; the same on all ranks.
        learning_rate : float
            The learning rate of this step.
        """
        raise NotImplementedError

    def build(self, parameters: Iterable[torch.Tensor], arithmetic: Arithmetic = "plain") -> torch.optim.Optimizer:
        """Return the torch optimiser of these parameters.

        Parameters
        ----------
        parameters : iterable of Tensor
            The parameters to train, with the same values on all ranks.
        arithmetic : {"plain", "fused", "reference"}, default "plain"
            "plain" updates one tensor after the other; "fused" updates all in one kernel, faster and different in the
            last bits; "reference" follows libtorch's order of operations (`adam` only). An optimiser of the user
            ignores it.

        Returns
        -------
        torch.optim.Optimizer
            Its learning rate is `learning_rate`; engines set `group["lr"]` before each step. Its `step` has no
            arguments and no collective, and must give the same bits on all ranks. A checkpoint holds the tensors and
            numbers of its `state` and the numbers of its groups.

        Raises
        ------
        ConfigError
            Named code cannot be imported, is not such an optimiser, or fails in a first step on copies of the
            parameters. Raised on this rank only.
        """
        raise NotImplementedError
