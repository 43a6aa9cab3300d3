"""The fast engine of `standard` semantics: each step is two calls of a kernel compiled for the network.

V  virtual ranks      k  slices of this rank      b  rows a slice      n  parameters      F, O  inputs and targets
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

from mpitrain.comm.reduction import LibraryReducer, Reducer
from mpitrain.data.batches import Slice, VirtualRankBatches
from mpitrain.data.virtual_rank_samples import VirtualRankSamples
from mpitrain.train.dense_kernel import DenseNetwork
from mpitrain.train.eager_engine import EXTRA_ENTRIES, narrow_wire
from mpitrain.train.standard_engine import EngineParts, StandardEngine
from mpitrain.train.step_engine import StepResult


class CompiledEngine(StandardEngine):
    """`StepEngine` whose forward, backward and optimiser are compiled; data and order are those of `EagerEngine`.

    The parameters of the model and the state of the optimiser become views of flat vectors that the kernel updates.
    Each slice's sums run in an order that the slice alone fixes, so `reduction` "fixed" gives the same bits on any
    number of ranks; against `EagerEngine` results agree to rounding.
    """

    def __init__(self, parts: EngineParts, network: DenseNetwork, kernel: ctypes.CDLL) -> None:
        super().__init__(parts)
        self._kernel, self._num_outputs = kernel, network.sizes[-1]
        self._is_fixed = self.session.reduction == "fixed"
        self._gathers = self._is_fixed and not parts.virtual_ranks.is_even
        wire = narrow_wire(parts)
        self._reducer: Reducer = self.fixed_tree if self._is_fixed else LibraryReducer(self.session.data, wire)
        self._weights = _flatten_parameters(self.parameters)
        self._update = _bind_optimizer(kernel, parts.optimizer, self.parameters, self._weights)
        self._clip_norm = ctypes.c_double(self.training.gradient_clip_norm or 0.0)
        self._partials = self._weights.new_zeros((len(parts.batches), len(self._weights) + EXTRA_ENTRIES))
        self._real = ctypes.c_float if network.dtype == torch.float32 else ctypes.c_double
        self._in_memory = [source for source in parts.batches if isinstance(source, VirtualRankBatches)]
        steps_in_order = self.steps_per_epoch if self._in_memory else 1
        self._order = torch.arange(self.plan.slice_rows).repeat(len(parts.batches), steps_in_order)
        self._sources = torch.zeros((len(parts.batches), 3), dtype=torch.int64)
        self._held = [
            _point_at(row, source.samples) for row, source in zip(self._sources, self._in_memory, strict=False)
        ]
        self._bind_arguments()

    def _bind_arguments(self) -> None:
        # Addresses do not change during a run: they are looked up once, not at each of many thousand steps.
        self._workspace = torch.zeros(self._kernel.workspace_bytes() + 64, dtype=torch.uint8)
        memory = ctypes.c_void_p(-(-self._workspace.data_ptr() // 64) * 64)
        self._statistics = _statistics_of(self.parts.model, self._num_outputs)
        self._fixed_arguments = (memory, *_pointers(self._weights, self._statistics, self._sources))
        counts = (self._order.shape[1], len(self._partials), self.plan.slice_rows)
        self._counts = tuple(ctypes.c_int64(count) for count in counts)
        self._loss_and_stop = torch.zeros(2, dtype=torch.float64)
        self._partials_pointer, self._sums_pointer, self._result_pointer = _pointers(
            self._partials, self.loss_sums, self._loss_and_stop
        )
        self._result = self._loss_and_stop.numpy()

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """See `StepEngine.start_epoch`."""
        super().start_epoch(epoch, first_step)
        for row, source in zip(self._order, self._in_memory, strict=False):
            torch.cat([source.rows(step) for step in range(self.steps_per_epoch)], out=row)

    def step(self, step_in_epoch: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """See `StepEngine.step`. Collective."""
        if not self._in_memory:
            slices = self.slices(step_in_epoch)
            self._held = [_point_at(row, piece) for row, piece in zip(self._sources, slices, strict=True)]
            step_in_epoch = 0
        order = ctypes.c_void_p(self._order.data_ptr() + 8 * step_in_epoch * self.plan.slice_rows)
        self._kernel.slice_partials(
            *self._fixed_arguments, order, *self._counts, self._real(float(stop_requested)), self._partials_pointer
        )
        total = self._add_up()
        gradient = ctypes.c_void_p(total.data_ptr())
        self._kernel.mean_gradient(gradient, self._clip_norm, self._result_pointer)
        self._update(gradient, learning_rate)
        loss, stop_flags = self._result
        return StepResult(float(loss), bool(stop_flags > 0))

    def _add_up(self) -> torch.Tensor:
        """Return the sum (n + 3,) of all ranks' partials. Collective."""
        if self._gathers:
            self.loss_sums += self._partials[:, -EXTRA_ENTRIES:-1]
            return self._reducer.reduce(self._partials)
        self._kernel.combine_partials(
            self._partials_pointer, self._counts[1], ctypes.c_int64(self._is_fixed), self._sums_pointer
        )
        # What is left is this rank's subtree, or its plain sum: one row.
        return self._reducer.reduce(self._partials[:1])


def _point_at(row: torch.Tensor, rows: VirtualRankSamples | Slice) -> tuple[torch.Tensor, ...]:
    """Write the addresses of a source's inputs, targets and weights to `row` (3,); return them, to be kept alive."""
    if isinstance(rows, VirtualRankSamples):
        tensors = (rows.padded_inputs, rows.padded_targets, rows.padded_weights)
    else:
        tensors = (rows.inputs.contiguous(), rows.targets.contiguous(), rows.weights.contiguous())
    row.copy_(torch.tensor([tensor.data_ptr() for tensor in tensors]))
    return tensors


def _statistics_of(model: Any, num_outputs: int) -> torch.Tensor:
    """Return what normalises inputs and targets, one behind the other (2F + 2O,)."""
    mean = getattr(model, "output_mean", model.input_mean.new_zeros(num_outputs))
    std = getattr(model, "output_std", model.input_std.new_ones(num_outputs))
    return torch.cat([model.input_mean, model.input_std, mean, std]).detach()


def _flatten_parameters(parameters: list[Any]) -> torch.Tensor:
    """Make the parameters views of one flat vector (n,), which is returned."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, view in zip(parameters, _views(flat, parameters), strict=True):
        parameter.data = view
    return flat


def _bind_optimizer(
    kernel: ctypes.CDLL, optimizer: torch.optim.Optimizer, parameters: list[Any], weights: torch.Tensor
) -> Callable[[ctypes.c_void_p, float], None]:
    """Return the kernel's update (gradient, learning rate); the optimiser's state becomes views of flat vectors."""
    settings = optimizer.param_groups[0]
    decay = ctypes.c_double(settings["weight_decay"])
    # The tensors are held by the optimiser's state; the update holds their addresses.
    if isinstance(optimizer, torch.optim.SGD):
        (velocity,) = _flatten_state(optimizer, parameters, weights, ("momentum_buffer",))
        momentum = ctypes.c_double(settings["momentum"])
        pointers = _pointers(weights, velocity)
        return lambda gradient, rate: kernel.sgd_step(
            pointers[0], gradient, pointers[1], ctypes.c_double(rate), momentum, decay
        )
    mean, square = _flatten_state(optimizer, parameters, weights, ("exp_avg", "exp_avg_sq"))
    step_count = torch.zeros(())
    for parameter in parameters:
        optimizer.state[parameter]["step"] = step_count
    numbers = tuple(ctypes.c_double(value) for value in (*settings["betas"], settings["eps"]))
    is_decoupled = ctypes.c_int64(isinstance(optimizer, torch.optim.AdamW))
    first, *state = _pointers(weights, mean, square, step_count)
    return lambda gradient, rate: kernel.adam_step(
        first, gradient, *state, ctypes.c_double(rate), *numbers, decay, is_decoupled
    )


def _pointers(*tensors: torch.Tensor) -> tuple[ctypes.c_void_p, ...]:
    return tuple(ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors)


def _flatten_state(
    optimizer: torch.optim.Optimizer, parameters: list[Any], weights: torch.Tensor, names: tuple[str, ...]
) -> tuple[torch.Tensor, ...]:
    """Make the optimiser's state `names` views of flat vectors of zeros, which are returned."""
    flat = tuple(torch.zeros_like(weights) for _ in names)
    for name, vector in zip(names, flat, strict=True):
        for parameter, view in zip(parameters, _views(vector, parameters), strict=True):
            optimizer.state[parameter][name] = view
    return flat


def _views(flat: torch.Tensor, parameters: list[Any]) -> list[torch.Tensor]:
    pieces = flat.split([parameter.numel() for parameter in parameters])
    return [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]
