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
    """An optimiser and its settings."""

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
        """Return the numbers of the compiled kernel's formula by their names there; all others are 0."""
        return self.model_dump(include=set(self.kernel_options))

    def fused_step(self, flat: Any, gradient: torch.Tensor, learning_rate: float) -> None:
        """Update the vectors of `flat`, a `FlatOptimizer`, with torch's fused function. For optimisers with a kernel.

        `gradient` (n,) is the mean over the batch.
        """
        raise NotImplementedError

    def build(self, parameters: Iterable[torch.Tensor], arithmetic: Arithmetic = "plain") -> torch.optim.Optimizer:
        """Return the optimiser of `parameters`.

        Raises ConfigError if it cannot be created.
        """
        raise NotImplementedError
