"""The memory that the compiled step updates: flat vectors of parameters, optimiser, running statistics; the digest.

n  parameters      C  units of a layer
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm import address_of
from mpitrain.models import DenseModel
from mpitrain.train.engines.weight_average import WeightAverage
from mpitrain.train.optimizers.optimizer import Optimizer

if TYPE_CHECKING:
    from mpitrain.models.convolutional.field_model import FieldModel

Vector = npt.NDArray[Any]
_LANES_BYTES, _ALIGNMENT, _PAGE = 64, 64, 4096


def placed_zeros(length: int, dtype: npt.DTypeLike, slot: int) -> Vector:
    """Return zeros (length,) whose address is `slot` times 832 bytes, 13 cache lines, after the start of a page.

    Vectors that a loop reads together get other slots: if their elements are at the same offset in their pages, a CPU
    takes the loads of one for loads of what it has just stored to another; updates by Adam took 2.6 times as long.
    """
    item, offset = np.dtype(dtype), 832 * slot
    memory = np.zeros(length * item.itemsize + 2 * _PAGE, dtype=np.uint8)
    first = -address_of(memory) % _PAGE + offset
    placed: Vector = memory[first : first + length * item.itemsize].view(item)
    return placed


class KernelOptimizer:
    """Flat vectors (n,): the parameters, their first and second moments, and the step count (), float32.

    The parameters of the model become views of the first vector.
    """

    def __init__(self, model: DenseModel | FieldModel, settings: Optimizer) -> None:
        self._shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        weights = np.concatenate([parameter.reshape(-1) for _, parameter in model.named_parameters()])
        self.weights, self.first_moment, self.second_moment = (
            placed_zeros(len(weights), weights.dtype, slot) for slot in range(3)
        )
        self.weights[...] = weights
        self.step_count = np.zeros((), np.float32)
        model.parameters.update(self._views(self.weights))
        self.averaged = np.zeros(0, self.weights.dtype)
        self._moments = dict(zip(settings.moments, (self.first_moment, self.second_moment), strict=False))
        self._counts_steps = settings.counts_steps

    def make_average(self) -> WeightAverage:
        """Return the average of the parameters; the kernel keeps it and its number of steps in `averaged` (n + 1,)."""
        self.averaged = placed_zeros(len(self.weights) + 1, self.weights.dtype, 3)
        return WeightAverage(self._views(self.weights), self._views(self.averaged[:-1]), self.averaged[-1:])

    def named_state(self) -> dict[str, Vector]:
        """Return the state by the parameter's name and torch's name, e.g. `fc1.weight.exp_avg`; views, not copies."""
        of_vectors = {kind: self._views(vector) for kind, vector in self._moments.items()}
        found: dict[str, Vector] = {}
        for name in self._shapes:
            found |= {f"{name}.{kind}": views[name] for kind, views in of_vectors.items()}
            found |= {f"{name}.step": self.step_count} if self._counts_steps else {}
        return found

    def set_state(self, values: Mapping[str, Vector]) -> None:
        """Set the state to `values`, as returned by `named_state`."""
        for name, own in self.named_state().items():
            if name in values:
                own[...] = values[name]

    def forget(self) -> None:
        """Reset the state to that of a new optimiser; the parameters are kept."""
        for vector in (self.first_moment, self.second_moment, self.step_count):
            vector[...] = 0

    def _views(self, flat: Vector) -> dict[str, Vector]:
        ends = np.cumsum([int(np.prod(shape)) for shape in self._shapes.values()])[:-1]
        parts = zip(self._shapes.items(), np.split(flat, ends), strict=True)
        return {name: part.reshape(shape) for (name, shape), part in parts}


class KernelRunningStatistics:
    """`flat`: running mean and variance (2 C,) of each layer with batch norm, one after the other.

    The model's buffers become views of it.
    """

    def __init__(self, model: DenseModel | FieldModel) -> None:
        names = [name for name in model.buffers if name.endswith((".running_mean", ".running_var"))]
        parts = [model.buffers[name] for name in names]
        self.flat = np.concatenate(parts) if parts else np.zeros(0)
        ends = np.cumsum([len(part) for part in parts])[:-1]
        model.buffers.update(zip(names, np.split(self.flat, ends) if parts else (), strict=True))
        self._counts = [buffer for name, buffer in model.named_buffers() if name.endswith("num_batches_tracked")]

    def count(self, num_steps: int) -> None:
        """Add the steps that the kernel has taken to `num_batches_tracked`, as torch's layers do."""
        for count in self._counts:
            count += num_steps


class KernelDigest:
    """`WeightsDigest` that the compiled step computes itself, in every step of a call.

    Its memory is a `Digest` (digest.hpp): lanes of sums, then lanes of weighted sums.
    """

    def __init__(self) -> None:
        self._memory = np.zeros(2 * _LANES_BYTES + _ALIGNMENT, dtype=np.uint8)
        self.address = -(-self._memory.ctypes.data // _ALIGNMENT) * _ALIGNMENT
        self._add: Callable[[], None] = lambda: None

    def added_by(self, add: Callable[[], None]) -> None:
        """Set the function that adds the present weights."""
        self._add = add

    @property
    def value(self) -> int:
        """See `WeightsDigest.value`: a CRC-32 detects any difference that is in one lane only."""
        content = ctypes.string_at(self.address, 2 * _LANES_BYTES)
        return zlib.crc32(content[:_LANES_BYTES]) << 32 | zlib.crc32(content[_LANES_BYTES:])

    def add(self) -> None:
        """See `WeightsDigest.add`."""
        self._add()
