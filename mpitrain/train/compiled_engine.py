"""The fast engine of `standard` semantics: each step is one or two calls of a kernel compiled for the network.

V  virtual ranks      k  slices of this rank      b  rows a slice      n  parameters      F, O  inputs and targets
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from mpitrain.comm.reduction import LibraryReducer, Reducer
from mpitrain.train.dense_kernel import Combination, DenseNetwork, KernelStep, OptimizerKind
from mpitrain.train.eager_engine import EXTRA_ENTRIES, narrow_wire
from mpitrain.train.kernel_rows import rows_of
from mpitrain.train.node_sum import NodeSum, can_share
from mpitrain.train.standard_engine import EngineParts, StandardEngine
from mpitrain.train.step_engine import StepResult


class CompiledEngine(StandardEngine):
    """`StepEngine` whose forward, backward and optimiser are compiled; data and order are those of `EagerEngine`.

    The parameters of the model and the state of the optimiser become views of flat vectors that the kernel updates.
    Each slice's sums run in an order that the slice alone fixes, so `reduction` "fixed" gives the same bits on any
    number of ranks; against `EagerEngine` results agree to rounding. With "any" a rank's slices are one.
    """

    def __init__(self, parts: EngineParts, network: DenseNetwork, kernel: ctypes.CDLL) -> None:
        super().__init__(parts)
        self._kernel = kernel
        is_fixed = self.session.reduction == "fixed"
        wire = narrow_wire(parts)
        self._reducer: Reducer = self.fixed_tree if is_fixed else LibraryReducer(self.session.data, wire)
        self._is_alone = self.session.ranks.world_size == 1 and wire is None
        self._rows = rows_of(parts.batches, self.plan.slice_rows, self.steps_per_epoch, joins=not is_fixed)
        self._weights = _flatten_parameters(self.parameters)
        self._partials = self._weights.new_zeros((self._rows.num_slices, len(self._weights) + EXTRA_ENTRIES))
        # Where the layout is uneven every partial travels; else a rank's subtree, or its plain sum, is one row.
        self._gathers = is_fixed and not parts.virtual_ranks.is_even
        self._sent = self._partials if self._gathers else self._partials[:1]
        self._node_sum = self._open_node_sum() if wire is None else None
        self._loss_and_stop = (ctypes.c_double * 2)()
        within_rank = Combination.tree if is_fixed else Combination.line
        self._describe_step(network, Combination.none if self._gathers else within_rank)

    def _open_node_sum(self) -> NodeSum | None:
        """Return where the ranks add up, if they share a node's memory. Collective."""
        ranks, layout = self.session.ranks, self.parts.virtual_ranks
        num_rows = layout.num_virtual_ranks if self._gathers else ranks.world_size
        if not can_share(self.session, self._kernel, num_rows):
            return None
        first_row = layout.owned.start if self._gathers else ranks.rank
        return NodeSum(self.session, self._kernel, num_rows, first_row, len(self._sent))

    def _describe_step(self, network: DenseNetwork, combination: Combination) -> None:
        """Tell the kernel all addresses and numbers, which do not change in a run, once."""
        # An aligned start, for the workspace is read in whole vectors.
        self._workspace = torch.zeros(self._kernel.workspace_bytes() + 64, dtype=torch.uint8)
        self._statistics = _statistics_of(self.parts.model, network.sizes[-1])
        self._state = _bind_optimizer(self.parts.optimizer, self.parameters, self._weights)
        settings = self.parts.optimizer.param_groups[0]
        betas = settings.get("betas", (0.0, 0.0))
        self._step = KernelStep(
            work=-(-self._workspace.data_ptr() // 64) * 64,
            parameters=self._weights.data_ptr(),
            statistics=self._statistics.data_ptr(),
            sources=self._rows.sources.data_ptr(),
            partials=self._partials.data_ptr(),
            epoch_sums=self.loss_sums.data_ptr(),
            loss_and_stop=ctypes.addressof(self._loss_and_stop),
            first_moment=self._state[0].data_ptr(),
            second_moment=self._state[1].data_ptr(),
            step_count=self._state[2].data_ptr(),
            order_stride=self._rows.order_stride,
            num_slices=self._rows.num_slices,
            slice_rows=self._rows.slice_rows,
            combination=combination,
            optimizer=OptimizerKind.of(self.parts.optimizer),
            clip_norm=self.training.gradient_clip_norm or 0.0,
            beta1=betas[0],
            beta2=betas[1],
            epsilon=settings.get("eps", 0.0),
            weight_decay=settings["weight_decay"],
            momentum=settings.get("momentum", 0.0),
        )
        self._step_address = ctypes.addressof(self._step)

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """See `StepEngine.start_epoch`."""
        super().start_epoch(epoch, first_step)
        self._rows.start_epoch()

    def step(self, step_in_epoch: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """See `StepEngine.step`. Collective."""
        order = self._rows.order_address(step_in_epoch)
        if self._is_alone:
            self._kernel.whole_step(self._step_address, order, stop_requested, learning_rate)
        elif self._node_sum is not None:
            self._node_sum.enter()
            self._kernel.shared_step(self._step_address, self._node_sum.address, order, stop_requested, learning_rate)
            self._node_sum.leave()
        else:
            self._kernel.sum_slices(self._step_address, order, stop_requested)
            total = self._reducer.reduce(self._sent)
            self._kernel.apply_sum(self._step_address, total.data_ptr(), learning_rate)
        loss, stop_flags = self._loss_and_stop
        return StepResult(loss, stop_flags > 0)

    def close(self) -> None:
        """See `StepEngine.close`. Collective."""
        if self._node_sum is not None:
            self._node_sum.close()
            self._node_sum = None

    def _failed_slices(self) -> list[int]:
        failed = super()._failed_slices()
        return list(self.parts.virtual_ranks.owned) if failed and self._rows.num_slices == 1 else failed


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
    optimizer: torch.optim.Optimizer, parameters: list[Any], weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make the optimiser's state views of flat vectors of zeros: first and second moment (n,), and the step count."""
    moments = torch.zeros_like(weights), torch.zeros_like(weights)
    step_count = torch.zeros(())
    is_descent = isinstance(optimizer, torch.optim.SGD)
    names = ("momentum_buffer",) if is_descent else ("exp_avg", "exp_avg_sq")
    for name, vector in zip(names, moments, strict=False):
        for parameter, view in zip(parameters, _views(vector, parameters), strict=True):
            optimizer.state[parameter][name] = view
    if not is_descent:
        for parameter in parameters:
            optimizer.state[parameter]["step"] = step_count
    return *moments, step_count


def _views(flat: torch.Tensor, parameters: list[Any]) -> list[torch.Tensor]:
    pieces = flat.split([parameter.numel() for parameter in parameters])
    return [piece.view_as(parameter) for piece, parameter in zip(pieces, parameters, strict=True)]
