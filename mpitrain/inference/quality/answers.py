"""Outputs of a network as numpy arrays; networks of the compiled engine use portable arithmetic.

N  samples      F  input features      O  outputs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from mpitrain.comm import host_array
from mpitrain.config import TargetTransform
from mpitrain.data.transforms import restored
from mpitrain.inference.arithmetic import Array, PortableArithmetic, RestoringArithmetic, kernel_if_worth
from mpitrain.inference.portable.network import find_tiny_input, portable_network_of
from mpitrain.models import DenseModel


class Answers(Protocol):
    """Outputs of a network. Inputs are in physical units: numpy arrays, or tensors on its device."""

    def learnt(self, inputs: Any) -> Array:
        """Return the outputs (N, O, ...) before the inverse output transforms, in the network's floating-point type."""

    def physical(self, inputs: Any) -> Array:
        """Return the outputs (N, O, ...) in physical units."""

    def restore(self, learnt: Array) -> Array:
        """Apply the inverse output transforms to outputs or targets (N, O, ...); return them in physical units."""

    def jacobian(self, inputs: Any) -> Array:
        """Return the derivatives (N, O, F) of the physical outputs. Raises RuntimeError if there are none."""


def answers_of(model: Any, num_samples: int = 0) -> Answers:
    """Return the outputs of a `DenseModel` or of a module; `num_samples`: the number of samples to be computed."""
    if not isinstance(model, DenseModel):
        return ModuleAnswers(model)
    portable = portable_network_of(model)
    assert portable is not None
    if find_tiny_input(portable) is not None:
        from mpitrain.models.dense_module import module_of

        return ModuleAnswers(module_of(model))
    return DenseAnswers(PortableArithmetic(portable, kernel_if_worth(portable, num_samples)), model.transforms)


@dataclass(frozen=True)
class DenseAnswers:
    """`Answers` by portable arithmetic, with the same bits on any CPU; `transforms` (O,), or () if there are none."""

    arithmetic: PortableArithmetic
    transforms: Sequence[TargetTransform | None]

    def learnt(self, inputs: Any) -> Array:
        """See `Answers.learnt`."""
        return self.arithmetic.evaluate(host_array(inputs), with_jacobian=False)[0]

    def physical(self, inputs: Any) -> Array:
        """See `Answers.physical`."""
        return self.restore(self.learnt(inputs))

    def restore(self, learnt: Array) -> Array:
        """See `Answers.restore`."""
        values = np.array(learnt)
        for number, transform in enumerate(self.transforms):
            if transform is not None:
                values[:, number] = restored(transform, values[:, number])[0]
        return values

    def jacobian(self, inputs: Any) -> Array:
        """See `Answers.jacobian`."""
        return RestoringArithmetic(self.arithmetic, self.transforms).evaluate(host_array(inputs), with_jacobian=True)[1]


@dataclass(frozen=True)
class ModuleAnswers:
    """`Answers` of a torch module."""

    module: Any

    def learnt(self, inputs: Any) -> Array:
        """See `Answers.learnt`."""
        import torch

        self.module.eval()
        with torch.no_grad():
            return host_array(self.module(self._tensor(inputs)))

    def physical(self, inputs: Any) -> Array:
        """See `Answers.physical`."""
        from mpitrain.models import physical_outputs

        with physical_outputs(self.module):
            return self.learnt(inputs)

    def restore(self, learnt: Array) -> Array:
        """See `Answers.restore`."""
        import torch

        from mpitrain.models.output_transforms import physical_targets

        return host_array(physical_targets(self.module, torch.from_numpy(learnt)))

    def jacobian(self, inputs: Any) -> Array:
        """See `Answers.jacobian`."""
        from mpitrain.models import input_jacobian, physical_outputs

        with physical_outputs(self.module):
            return host_array(input_jacobian(self.module, self._tensor(inputs))[1])

    def _tensor(self, inputs: Any) -> Any:
        import torch

        mean = self.module.get_buffer("input_mean")
        return torch.as_tensor(inputs).to(mean.device, mean.dtype)
