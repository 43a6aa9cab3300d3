"""Computation of a network's outputs: by torch, or by the package's own arithmetic, shared with exported sources.

N  samples      F  input features      O  outputs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
import numpy.typing as npt

from mpitrain.comm import host_array
from mpitrain.config import TargetTransform
from mpitrain.data.transforms import restored
from mpitrain.errors import DataError, UserError, installed_version
from mpitrain.inference.portable import with_numpy
from mpitrain.inference.portable.kernel import Kernel, open_kernel
from mpitrain.inference.portable.network import PortableNetwork, find_tiny_input, portable_network_of
from mpitrain.models import StoredNetwork, grid_of
from mpitrain.models.files.file_network import INPUT_SHAPE_ERRORS

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
Choice = Literal["auto", "portable", "torch"]
_ROWS_AT_ONCE = 16_384
# Number of products above which numpy takes longer than compiling and running a kernel.
_WORTH_COMPILING = 4e9


class Arithmetic(Protocol):
    """Computation of predictions; `words` is its description."""

    @property
    def description(self) -> str:
        """The description in the attribute `arithmetic` of a prediction file."""

    def evaluate(self, inputs: Array, with_jacobian: bool) -> tuple[Array, ...]:
        """Return outputs (N, O, ...) for points or fields (N, F, ...); if `with_jacobian`, also derivatives (N, O, F).

        Fields are computed one at a time. Raises DataError if the network cannot use inputs of this shape.
        """


def choose_arithmetic(network: StoredNetwork, choice: Choice, num_samples: int) -> Arithmetic:
    """Return torch's arithmetic or the portable one; `auto`: portable for networks trained by the compiled engine.

    `num_samples`: the number of samples to predict by all ranks together. Raises UserError if `portable` is requested
    for a network that it cannot compute.
    """
    portable = portable_network_of(network.model) if choice != "torch" else None
    if choice == "portable":
        _check_portable(portable)
    serves = portable is not None and find_tiny_input(portable) is None
    if portable is None or not serves or (choice == "auto" and network.engine != "compiled"):
        return TorchArithmetic(network.module)
    learnt = PortableArithmetic(portable, kernel_if_worth(portable, num_samples))
    transforms = network.transforms
    return RestoringArithmetic(learnt, transforms) if any(transforms) else learnt


def _check_portable(network: PortableNetwork | None) -> None:
    if network is None:
        raise UserError("--arithmetic portable: needs a chain of dense layers (icenet, mlp); leave the flag out")
    tiny = find_tiny_input(network)
    if tiny is not None:
        raise UserError(
            f"--arithmetic portable: the standard deviation of input {tiny + 1}, {network.input_std[tiny]}, is too "
            "small; give this variable in other units"
        )


def kernel_if_worth(network: PortableNetwork, num_samples: int) -> Kernel | None:
    """Return compiled functions of a network; None if `num_samples` are too few to save time, or without a compiler."""
    num_products = sum(layer.weight.size for layer in network.layers)
    return open_kernel(network) if num_samples * num_products > _WORTH_COMPILING else None


@dataclass(frozen=True)
class PortableArithmetic:
    """Arithmetic in a fixed order, without fused multiply-add: same bits in numpy, C, C++ and Fortran on any CPU."""

    network: PortableNetwork
    kernel: Kernel | None

    description: ClassVar[str] = "portable 1: the same bits as source exported by mpitrain export, on any CPU"

    def evaluate(self, inputs: Array, with_jacobian: bool) -> tuple[Array, ...]:
        """See `Arithmetic.evaluate`."""
        values = inputs
        if values.ndim != 2:
            raise DataError(_unfitting(inputs, None))
        if self.kernel is not None:
            return self.kernel.jacobian(values) if with_jacobian else (self.kernel.forward(values),)
        blocks = np.split(values, range(_ROWS_AT_ONCE, len(values), _ROWS_AT_ONCE))
        if with_jacobian:
            pairs = [with_numpy.jacobian(self.network, block) for block in blocks]
            return tuple(map(np.concatenate, zip(*pairs, strict=True)))
        return (np.concatenate([with_numpy.forward(self.network, block).outputs for block in blocks]),)


@dataclass(frozen=True)
class RestoringArithmetic:
    """Portable arithmetic, then the inverse of each output's transform, in float64: the same bits on any CPU.

    `transforms` (O,): None for an output without a transform.
    """

    learnt: PortableArithmetic
    transforms: Sequence[TargetTransform | None]

    description: ClassVar[str] = "portable 1, and the inverse of model.output_transforms: the same bits on any CPU"

    def evaluate(self, inputs: Array, with_jacobian: bool) -> tuple[Array, ...]:
        """See `Arithmetic.evaluate`."""
        outputs, *jacobian = (answer.copy() for answer in self.learnt.evaluate(inputs, with_jacobian))
        for number, transform in enumerate(self.transforms):
            if transform is not None:
                outputs[:, number], slopes = restored(transform, outputs[:, number])
                for derivatives in jacobian:
                    derivatives[:, number] *= slopes[:, None]
        return outputs, *jacobian


@dataclass(frozen=True)
class TorchArithmetic:
    """The module's forward method on its device, and derivatives by autograd."""

    module: torch.nn.Module

    @property
    def description(self) -> str:
        """See `Arithmetic.description`."""
        return f"torch {installed_version('torch')}: the last digits differ between kinds of CPU"

    def evaluate(self, inputs: Array, with_jacobian: bool) -> tuple[Array, ...]:
        """See `Arithmetic.evaluate`."""
        import torch

        tensor = torch.from_numpy(inputs).to(self.module.state_dict()["input_mean"])
        # TorchScript optimises from the second call on: the bits would depend on a rank's number of chunks so far.
        with torch.jit.optimized_execution(False):
            try:
                return tuple(map(host_array, self._evaluate(tensor, with_jacobian)))
            except INPUT_SHAPE_ERRORS as error:
                raise DataError(_unfitting(inputs, grid_of(self.module))) from error

    def _evaluate(self, inputs: torch.Tensor, with_jacobian: bool) -> tuple[torch.Tensor, ...]:
        import torch

        from mpitrain.models import input_jacobian

        rows = 1 if inputs.dim() > 2 else _ROWS_AT_ONCE
        if with_jacobian:
            pairs = [input_jacobian(self.module, block) for block in inputs.split(rows)]
            return tuple(map(torch.cat, zip(*pairs, strict=True)))
        with torch.no_grad():
            return (torch.cat([self.module(block) for block in inputs.split(rows)]),)


def fill_with_means(inputs: Array, mean: Array) -> Array:
    """Return inputs (N, F) or (N, F, H, W); missing values of fields become the input's mean, as in training."""
    return inputs if inputs.ndim == 2 else np.where(np.isfinite(inputs), inputs, mean.reshape(-1, 1, 1))


def _unfitting(inputs: Array, grid: tuple[int, int] | None) -> str:
    kind = "fields" if inputs.ndim > 2 else "points"
    if kind == "fields" and grid is not None and inputs.shape[2:] != grid:
        return (
            f"the model has weights for each point of its grid of {grid[0]} x {grid[1]}, but these fields have "
            f"{inputs.shape[2]} x {inputs.shape[3]} points; give data on the grid that it was trained on, or train "
            "with model.grid=null"
        )
    return (
        f"the model cannot take these {kind}, of shape {tuple(inputs.shape)}; set data.samples="
        f"{'points' if kind == 'fields' else 'fields'}, or give data of the kind that it was trained with"
    )
