"""A moving average of the weights over the steps of a training, which is judged and exported in their place.

After step t (from 1) the average moves towards the weights by 1 - min(decay, (1 + t) / (10 + t)): early steps are soon
forgotten.
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
"""The name of the number of steps among the averages."""


class WeightAverage:
    """The averages of parameters, by name, and under `STEPS` how many steps are in them (1,); each rank has all."""

    def __init__(self, parameters: Mapping[str, Array], averages: Mapping[str, Array], steps: Array) -> None:
        """Begin at the parameters. `averages` and `steps` are memory of their kind and shape."""
        self._parameters, self.values = dict(parameters), {**averages, STEPS: steps}
        self.restart()

    def restart(self) -> None:
        """Begin anew, at the parameters as they are."""
        self.values[STEPS][...] = 0
        for name, parameter in self._parameters.items():
            set_values(self.values[name], parameter)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the averages for its parameters inside of the block."""
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
        """Return copies on the CPU, for a checkpoint."""
        return {f"average.{name}": copied(value) for name, value in self.values.items()}

    def restore(self, tensors: Mapping[str, Array]) -> None:
        """Set what `tensors` gave, by names without the prefix. Raises CheckpointError where one is missing."""
        missing = self.values.keys() - tensors.keys()
        if missing:
            raise CheckpointError(f"the checkpoint lacks the average of '{min(missing)}'; give another one")
        for name in self.values:
            set_values(self.values[name], tensors[name])


class TorchWeightAverage(WeightAverage):
    """The average of parameters of torch's, on their device; a CUDA graph may record its `update`."""

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
