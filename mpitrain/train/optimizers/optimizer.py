"""What an optimiser is to the rest of the package."""

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
    """Its formula in the compiled kernel; None where the kernel has none."""
    moments: ClassVar[tuple[str, ...]] = ()
    """With a kernel: torch's names of the first and second moment that it keeps of each parameter."""
    kernel_options: ClassVar[frozenset[str]] = frozenset()
    """With a kernel: the options that are numbers of its formula, by their names there too; those left out are 0."""
    counts_steps: ClassVar[bool] = False
    """With a kernel: whether it counts its steps."""
    graph_flag: ClassVar[str | None] = None
    """The option of torch's class that lets a CUDA graph record its step; None where there is none."""

    type: str
    """Which optimiser."""
    learning_rate: PositiveNumber = 0.001
    """Step length at the start."""

    def kernel_numbers(self) -> Mapping[str, float]:
        """Return the numbers of the compiled kernel's formula by their names there; those left out are 0."""
        return self.model_dump(include=set(self.kernel_options))

    def fused_step(self, flat: Any, gradient: torch.Tensor, learning_rate: float) -> None:
        """With a kernel: update the vectors of `flat`, a `FlatOptimizer`, by torch's kernel of one pass.

        `gradient` (n,) is the mean over the batch.
        """
        raise NotImplementedError

    def build(self, parameters: Iterable[torch.Tensor], arithmetic: Arithmetic = "plain") -> torch.optim.Optimizer:
        """Return the optimiser of `parameters`.

        Raises ConfigError where it cannot be made.
        """
        raise NotImplementedError
