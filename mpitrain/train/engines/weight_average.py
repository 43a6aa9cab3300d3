"""Moving average of the weights over the training steps; it is validated and exported instead of the weights.

After step t (from 1) the average moves towards the weights by the fraction 1 - min(decay, (1 + t) / (10 + t)), so that
early steps soon lose their influence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from mpitrain.comm import Array, set_values
from mpitrain.errors import CheckpointError
from mpitrain.train.state import copied

if TYPE_CHECKING:
    import torch

STEPS = "#steps"
"""The key of the number of steps in the averages."""


class WeightAverage:
    """The averages of parameters by name, and under `STEPS` the number of steps (1,); complete on each rank."""

    def __init__(self, parameters: Mapping[str, Array], averages: Mapping[str, Array], steps: Array) -> None:
        """Start with the values of `parameters`. `averages` (same shapes and types) and `steps` are memory to use."""
        self._parameters, self.values = dict(parameters), {**averages, STEPS: steps}
        self.restart()

    def restart(self) -> None:
        """Start again from the present parameters."""
        self.values[STEPS][...] = 0
        for name, parameter in self._parameters.items():
            set_values(self.values[name], parameter)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Replace the model's parameters with the averages inside the block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for name, parameter in self._parameters.items():
            own = parameter.copy() if isinstance(parameter, np.ndarray) else parameter.detach().clone()
            set_values(parameter, self.values[name])
            set_values(self.values[name], own)

    def tensors(self) -> dict[str, Array]:
        """Return copies on the CPU for a checkpoint."""
        return {f"average.{name}": copied(value) for name, value in self.values.items()}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """Restore the result of `tensors`, by names without the prefix. Raises CheckpointError if one is missing."""
        missing = self.values.keys() - tensors.keys()
        if missing:
            raise CheckpointError(f"the checkpoint lacks the average of '{min(missing)}'; use another checkpoint")
        for name in self.values:
            set_values(self.values[name], tensors[name])


class TorchWeightAverage(WeightAverage):
    """The average of torch parameters, on their device; a CUDA graph may record its `update`."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], decay: float) -> None:
        import torch

        first = next(iter(parameters.values()))
        averages = {name: torch.empty_like(one, requires_grad=False) for name, one in parameters.items()}
        super().__init__(parameters, averages, torch.zeros(1, dtype=torch.float64, device=first.device))
        self._decay = decay

    def update(self) -> None:
        """Add the parameters after a step."""
        import torch

        with torch.no_grad():
            steps = self.values[STEPS].add_(1)
            part = 1 - ((1 + steps) / (10 + steps)).clamp(max=self._decay)
            for name, parameter in self._parameters.items():
                self.values[name].lerp_(parameter, part.to(parameter.dtype))
