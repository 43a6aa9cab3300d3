"""The fast engine of `standard` semantics: each step is two calls of a kernel compiled for the network.

V  virtual ranks      k  slices of this rank      b  rows a slice      n  parameters      F  input features
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from mpitrain.comm.session import Session
from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.config import RunConfig
from mpitrain.data.batches import BatchPlan
from mpitrain.data.training_data import TrainingData
from mpitrain.train.dense_kernel import EXTRA_ENTRIES, DenseNetwork
from mpitrain.train.eager_engine import EagerEngine
from mpitrain.train.step_engine import StepResult


class CompiledEngine(EagerEngine):
    """`StepEngine` whose forward, backward and Adam are compiled; data, order and losses are those of `EagerEngine`.

    The parameters of `model` and the state of `optimizer` become views of flat vectors that the kernel updates. Each
    slice's sums run in an order that the slice alone fixes, so `reduction` "fixed" gives the same bits on any number
    of ranks; against `EagerEngine` results agree to rounding.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, data: TrainingData, plan: BatchPlan,
        virtual_ranks: VirtualRanks, session: Session, config: RunConfig,
        network: DenseNetwork, kernel: ctypes.CDLL,
    ) -> None:  # fmt: skip
        super().__init__(model, optimizer, data, plan, virtual_ranks, session, config)
        self._plan, self._kernel = plan, kernel
        self._is_fixed = session.reduction == "fixed"
        self._gathers = self._is_fixed and not virtual_ranks.is_even
        self._weights = _flatten_parameters(self._parameters)
        self._update = _bind_optimizer(kernel, optimizer, self._parameters, self._weights)
        self._clip_norm = ctypes.c_double(config.training.gradient_clip_norm or 0.0)
        self._workspace = torch.zeros(kernel.workspace_bytes() + 64, dtype=torch.uint8)
        self._inputs, self._targets, self._row_weights = self._collect_rows(data, kernel.input_width())
        self._order = torch.zeros((len(self._batches), plan.steps_per_epoch * plan.slice_rows), dtype=torch.int64)
        self._loss_and_stop = torch.zeros(2, dtype=torch.float64)
        self._real = ctypes.c_float if network.dtype == torch.float32 else ctypes.c_double
        self._bind_arguments()

    def _collect_rows(self, data: TrainingData, input_width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return all own rows, normalised and padded to the kernel's width; a virtual rank's padding row comes last."""
        mean, std = data.normalization.mean, data.normalization.std
        parts, targets, weights = [], [], []
        for own in data.training:
            rows = own.inputs.new_zeros((len(own.inputs) + 1, input_width))
            rows[:-1, : own.inputs.shape[1]] = (own.inputs - mean) / std
            parts.append(rows)
            targets.append(torch.cat([own.targets, own.targets.new_zeros(1)]))
            weights.append(torch.cat([torch.ones_like(own.targets), own.targets.new_zeros(1)]))
        return torch.cat(parts), torch.cat(targets), torch.cat(weights)

    def _bind_arguments(self) -> None:
        # Addresses do not change during a run: they are looked up once, not at each of many thousand steps.
        pointer = ctypes.c_void_p
        memory = pointer(-(-self._workspace.data_ptr() // 64) * 64)
        tensors = (self._weights, self._inputs, self._targets, self._row_weights)
        self._fixed_arguments = (memory, *(pointer(tensor.data_ptr()) for tensor in tensors))
        counts = (self._plan.steps_per_epoch * self._plan.slice_rows, len(self._batches), self._plan.slice_rows)
        self._counts = tuple(ctypes.c_int64(count) for count in counts)
        self._partials_pointer = pointer(self._partials.data_ptr())
        self._sums_pointer = pointer(self._loss_sums.data_ptr())
        self._result_pointer = pointer(self._loss_and_stop.data_ptr())
        self._result = self._loss_and_stop.numpy()

    def start_epoch(self, epoch: int) -> None:
        """See `StepEngine.start_epoch`."""
        super().start_epoch(epoch)
        first_row = 0
        for number, batches in enumerate(self._batches):
            rows = torch.cat([batches.rows(step) for step in range(self.steps_per_epoch)])
            # Every padding row of a virtual rank is the same one, behind its samples.
            self._order[number] = rows.clamp(max=batches.num_samples) + first_row
            first_row += batches.num_samples + 1

    def step(self, step_in_epoch: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """See `StepEngine.step`. Collective."""
        order = ctypes.c_void_p(self._order.data_ptr() + 8 * step_in_epoch * self._plan.slice_rows)
        stride, num_slices, slice_rows = self._counts
        stop_flag = self._real(float(stop_requested))
        self._kernel.slice_partials(
            *self._fixed_arguments, order, stride, num_slices, slice_rows, stop_flag, self._partials_pointer
        )
        total = self._add_up()
        gradient = ctypes.c_void_p(total.data_ptr())
        self._kernel.mean_gradient(gradient, self._clip_norm, self._result_pointer)
        self._update(gradient, learning_rate)
        loss, stop_flags = self._result
        return StepResult(float(loss), bool(stop_flags > 0))

    def _add_up(self) -> torch.Tensor:
        """Return the sum (n + 3,) of all ranks' partials. Collective."""
        num_slices = self._counts[1]
        if self._gathers:
            self._loss_sums += self._partials[:, -EXTRA_ENTRIES]
            return self._fixed.reduce(self._partials)
        self._kernel.combine_partials(
            self._partials_pointer, num_slices, ctypes.c_int64(self._is_fixed), self._sums_pointer
        )
        # What is left is this rank's subtree, or its plain sum: one row.
        return self._reducer.reduce(self._partials[:1])


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
