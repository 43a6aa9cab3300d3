"""How a network's outputs are computed: by torch, or by the package's own arithmetic, which exported sources share.

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
from mpitrain.models.files.file_network import UNFITTING_INPUTS

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
Choice = Literal["auto", "portable", "torch"]
_ROWS_AT_ONCE = 16_384
# Products and sums from which on a compiler's few seconds are less than numpy's.
_WORTH_COMPILING = 4e9


class Arithmetic(Protocol):
    """Computes predictions; `words` describe the arithmetic for messages."""

    @property
    def words(self) -> str:
        """Return the attributes of a prediction file."""

    def evaluate(self, inputs: Array, with_jacobian: bool) -> tuple[Array, ...]:
        """Return outputs (N, O) and, if asked for, derivatives (N, O, F) of points (N, F); fields one at a time.

        Raises DataError where the network cannot take such inputs.
        """


def choose_arithmetic(network: StoredNetwork, choice: Choice, num_samples: int) -> Arithmetic:
    """Return torch's arithmetic, or the portable one: with `auto` for networks that the compiled engine trained.

    `num_samples` are to be predicted, by all ranks together. Raises UserError where `portable` is asked for and cannot
    serve.
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
        raise UserError("--arithmetic portable: serves chains of dense layers (icenet, mlp) only; leave the flag out")
    tiny = find_tiny_input(network)
    if tiny is not None:
        raise UserError(
            f"--arithmetic portable: the standard deviation of input {tiny + 1}, {network.input_std[tiny]}, is too "
            "small a number; give that variable in other units"
        )


def kernel_if_worth(network: PortableNetwork, num_samples: int) -> Kernel | None:
    """Return compiled functions of a network where so many samples are worth a compiler's few seconds."""
    num_products = sum(layer.weight.size for layer in network.layers)
    return open_kernel(network) if num_samples * num_products > _WORTH_COMPILING else None


@dataclass(frozen=True)
class PortableArithmetic:
    """Multiply, then add, never fused, in a fixed order: the same bits from numpy, C, C++ and Fortran on any CPU."""

    network: PortableNetwork
    kernel: Kernel | None

    words: ClassVar[str] = "portable 1: the same bits as source exported by mpitrain export, on any CPU"

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
    """Portable arithmetic, and after it the inverse of each output's transform, in float64: the same bits on any CPU.

    `transforms` (O,): None where an output was learnt as it is.
    """

    learnt: PortableArithmetic
    transforms: Sequence[TargetTransform | None]

    words: ClassVar[str] = "portable 1, and the inverse of model.output_transforms: the same bits on any CPU"

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
    """The module's own forward on the device that it is on, and autograd's derivatives."""

    module: torch.nn.Module

    @property
    def words(self) -> str:
        """See `Arithmetic.words`."""
        return f"torch {installed_version('torch')}: the last digits differ between kinds of CPU"

    def evaluate(self, inputs: Array, with_jacobian: bool) -> tuple[Array, ...]:
        """See `Arithmetic.evaluate`."""
        import torch

        tensor = torch.from_numpy(inputs).to(self.module.state_dict()["input_mean"])
        # TorchScript's optimiser acts from the second call on: bits would depend on how many chunks a rank had before.
        with torch.jit.optimized_execution(False):
            try:
                return tuple(map(host_array, self._evaluate(tensor, with_jacobian)))
            except UNFITTING_INPUTS as error:
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


def with_means(inputs: Array, mean: Array) -> Array:
    """Return inputs (N, F) or (N, F, H, W); what a field has not measured is its input's mean, as in training."""
    return inputs if inputs.ndim == 2 else np.where(np.isfinite(inputs), inputs, mean.reshape(-1, 1, 1))


def _unfitting(inputs: Array, grid: tuple[int, int] | None) -> str:
    kind = "fields" if inputs.ndim > 2 else "points"
    if kind == "fields" and grid is not None and inputs.shape[2:] != grid:
        return (
            f"the model has coefficients of each point of its grid of {grid[0]} x {grid[1]}, these fields have "
            f"{inputs.shape[2]} x {inputs.shape[3]}; give data on the grid that it was trained on, or train with "
            "model.grid=null"
        )
    return (
        f"the model cannot take these {kind}, of shape {tuple(inputs.shape)}; set data.samples="
        f"{'points' if kind == 'fields' else 'fields'}, or give data of the kind that it was trained with"
    )
