"""A single bit flipped in the memory of one rank, as by a failing node: the watch for drifted ranks must notice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mpitrain.comm.arrays import Array, host_array
from mpitrain.train.compiled.vectors import KernelOptimizer
from mpitrain.train.engines.contract import StepEngine, StepResult


@dataclass(frozen=True)
class BitFlip:
    """Which bit, when: before the step that follows `num_steps` steps.

    `parameter` counts those of the optimiser; `what` is "weight" or a name of the optimiser's state, such as "exp_avg".
    """

    rank: int
    num_steps: int
    parameter: int
    what: str
    element: int
    bit: int


def plant_bit_flip(flip: BitFlip, rank: int, engine: StepEngine) -> None:
    """Let the steps of the engine of rank `rank` flip the bit on the flip's own rank, and do nothing elsewhere."""
    engine.take_steps = _Flipping(engine, flip, rank).take_steps  # type: ignore[method-assign]


class _Flipping:
    """Takes an engine's steps, and ends a call of many before the bit flips."""

    def __init__(self, engine: StepEngine, flip: BitFlip, rank: int) -> None:
        self._engine, self._flip, self._rank = engine, flip, rank
        self._take_steps: Callable[..., StepResult] = engine.take_steps
        self._num_taken = 0

    def take_steps(self, first_step: int, num_steps: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """See `StepEngine.take_steps`."""
        left = self._flip.num_steps - self._num_taken
        if left == 0 and self._rank == self._flip.rank:
            flip_bit(self._memory(), self._flip.element, self._flip.bit)
        taken = self._take_steps(first_step, min(num_steps, left) if left > 0 else num_steps, learning_rate,
                                 stop_requested)  # fmt: skip
        self._num_taken += len(taken.losses)
        return taken

    def _memory(self) -> Array:
        optimizer, flip = self._engine.optimizer, self._flip
        if isinstance(optimizer, KernelOptimizer):
            name, parameter = list(self._engine.inputs.model.named_parameters())[flip.parameter]  # type: ignore[attr-defined]
            return parameter if flip.what == "weight" else optimizer.named_state()[f"{name}.{flip.what}"]
        parameter = optimizer.param_groups[0]["params"][flip.parameter]
        return parameter.detach() if flip.what == "weight" else optimizer.state[parameter][flip.what]


def flip_bit(tensor: Array, element: int, bit: int) -> None:
    """Flip bit number `bit`, counted from the lowest, of one element of a contiguous tensor, in place."""
    values = host_array(tensor)  # the same memory
    octets = values.reshape(-1).view(np.uint8)
    octets[element * values.itemsize + bit // 8] ^= 1 << bit % 8
