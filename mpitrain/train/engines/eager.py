"""The clear engine of `standard` semantics: autograd, slice by slice, in the order that is the definition.

V  virtual ranks      k  slices of this rank      b  rows a slice      n  parameters in all      m  sums of batch norm
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch

from mpitrain.comm.reduction import LibraryReducer, NarrowWire, Reducer
from mpitrain.data.dataset.batches import Slice, join_slices, split_slice
from mpitrain.models.build import random_layers
from mpitrain.train.engines.batch_norm import SliceBatchNorm
from mpitrain.train.engines.contract import StepResult
from mpitrain.train.engines.network import network_of
from mpitrain.train.engines.standard import EngineInputs, StandardEngine
from mpitrain.train.precision import Precision
from mpitrain.train.random_streams import kept_random_state, seed_stream

# Behind the n gradient entries of a partial come the m sums of batch norm, and the loss sum, the weight sum, and a stop
# flag: all in the same message.
EXTRA_ENTRIES = 3
# torch.nn.utils.clip_grad_norm_ adds the same to the norm.
CLIP_EPSILON = 1e-6


class EagerEngine(StandardEngine):
    """`StepEngine` that loops over the slices; reduction "fixed" adds them in the tree.

    With "any" a rank computes its slices in one product, and the library adds the ranks' sums as it likes.
    """

    def __init__(self, inputs: EngineInputs) -> None:
        super().__init__(inputs)
        self._joins = self.session.reduction == "any"
        self._reducer: Reducer = (
            LibraryReducer(self.session.data, narrow_wire(inputs)) if self._joins else self.fixed_tree
        )
        self._precision = Precision(inputs.config, self.session.device)
        self._forward = network_of(inputs)
        self._draws_numbers = random_layers(inputs.model)
        self._batch_norm = SliceBatchNorm(inputs, self._reducer)
        self._num_gradient_entries = sum(parameter.numel() for parameter in self.parameters)
        num_entries = self._num_gradient_entries + self._batch_norm.num_sums + EXTRA_ENTRIES
        self._partials = self.parameters[0].new_zeros((1 if self._joins else len(inputs.batches), num_entries))

    def take_steps(self, first_step: int, num_steps: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """See `StepEngine.take_steps`: one step. Collective."""
        pieces = self.slices(first_step)
        self._write_partials([join_slices(pieces)] if self._joins else pieces, first_step)
        self._partials[:, -1] = float(stop_requested)
        self.loss_sums[: len(self._partials)] += self._partials[:, -EXTRA_ENTRIES:-1]
        total = self._reducer.reduce(self._partials)
        loss_sum, weight_sum, stop_flags = total[-EXTRA_ENTRIES:].tolist()
        self._batch_norm.update(total[self._num_gradient_entries : -EXTRA_ENTRIES])
        self._update(total[: self._num_gradient_entries] / weight_sum, learning_rate)
        return StepResult([loss_sum / weight_sum], stop_flags > 0)

    def _write_partials(self, pieces: Sequence[Slice], step_in_epoch: int) -> None:
        bodies = [
            functools.partial(self._write_partial, row, number, piece, step_in_epoch)
            for number, (row, piece) in enumerate(zip(self._partials, pieces, strict=True))
        ]
        with kept_random_state(self.session.device, self._draws_numbers):
            self._batch_norm.run(bodies)

    def _write_partial(self, row: torch.Tensor, number: int, piece: Slice, step_in_epoch: int) -> None:
        row.zero_()
        parts = split_slice(piece, self.training.gradient_accumulation_steps)
        for part_number, part in enumerate(parts):
            if self._draws_numbers:
                seed_stream(self.inputs.config.seed, self.epoch, step_in_epoch, piece.virtual_rank, part_number)
            entries = self._entries(part, number)
            # One part is copied, not added: 0 + x would turn -0 into +0.
            row.copy_(entries) if len(parts) == 1 else row.add_(entries)

    def _entries(self, part: Slice, number: int) -> torch.Tensor:
        """Return the gradient of the part's summed loss, batch norm's sums, loss, weight and a zero (n + m + 3,)."""
        with self._batch_norm.slice(number, part):
            with self._precision.forward():
                outputs = self._forward(part.inputs)
            sums = self._batch_norm.take_sums()
            loss_sum, weight_sum = self.loss.sums(outputs.to(part.targets.dtype), part)
            gradients = torch.autograd.grad(
                self._precision.scaled(loss_sum), self.parameters, allow_unused=True, materialize_grads=True
            )
        extras = torch.stack([loss_sum.detach(), weight_sum, loss_sum.new_zeros(())])
        return torch.cat([*(gradient.reshape(-1) for gradient in gradients), sums, extras])

    def _update(self, flat_gradient: torch.Tensor, learning_rate: float) -> None:
        """Take an optimiser step with the mean gradient (n,), which is the same bits on all ranks."""
        optimizer, scaler = self.optimizer, self._precision.scaler
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        self._assign_gradients(flat_gradient)
        scaler.unscale_(optimizer)
        self._clip(flat_gradient)
        scaler.step(optimizer)
        scaler.update()

    def _assign_gradients(self, flat_gradient: torch.Tensor) -> None:
        start = 0
        for parameter in self.parameters:
            parameter.grad = flat_gradient[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()

    def _clip(self, flat_gradient: torch.Tensor) -> None:
        """Shorten the gradient (n,) to the configured norm, in place: the parameters' gradients are views of it."""
        largest = self.training.gradient_clip_norm
        if largest is not None:
            flat_gradient *= torch.clamp(largest / (flat_gradient.norm() + CLIP_EPSILON), max=1.0)

    def _failed_slices(self) -> list[int]:
        failed = super()._failed_slices()
        return list(self.inputs.virtual_ranks.owned) if failed and self._joins else failed

    def gather_state(self) -> dict[str, torch.Tensor]:
        """See `StepEngine.gather_state`: the epoch's sums, and the loss scale of float16. Collective."""
        return super().gather_state() | self._precision.state()

    def restore_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """See `StepEngine.restore_state`."""
        super().restore_state(state)
        self._precision.restore(state.get("loss_scale"))


def narrow_wire(inputs: EngineInputs) -> NarrowWire | None:
    """Return how gradients travel with `distributed.fp16_allreduce`: as parts of the batch's mean; None without it."""
    if not inputs.config.distributed.fp16_allreduce:
        return None
    return NarrowWire(torch.float16, EXTRA_ENTRIES, 1 / inputs.plan.global_batch_size)
