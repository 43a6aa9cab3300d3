"""The plain engine of `standard` semantics, by autograd; its order of microbatches and sums defines the result.

V  virtual ranks      k  microbatches of this rank      b  rows a microbatch      n  parameters    m  batch norm's sums
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch

from mpitrain.data import Microbatch
from mpitrain.data.dataset.batches import split_microbatch
from mpitrain.train.engines.autograd import AutogradEngine
from mpitrain.train.engines.contract import StepResult
from mpitrain.train.engines.standard import EXTRA_ENTRIES, EngineInputs
from mpitrain.train.random_streams import kept_random_state

# Added to the norm, as in torch.nn.utils.clip_grad_norm_.
CLIP_EPSILON = 1e-6


class EagerEngine(AutogradEngine):
    """`StepEngine` that loops over the microbatches; with reduction "fixed" their sums are added in the fixed tree.

    With "any" a rank's microbatches are computed as one, and the library adds the ranks' sums in an order of its own.
    """

    def __init__(self, inputs: EngineInputs) -> None:
        super().__init__(inputs)
        # A partial sum holds the gradient (n), the sums of batch norm (m), and the EXTRA_ENTRIES.
        self._num_gradient_entries = sum(parameter.numel() for parameter in self.parameters)
        num_entries = self._num_gradient_entries + self._batch_norm.num_sums + EXTRA_ENTRIES
        self._partials = self.parameters[0].new_zeros(
            (1 if self.joins_microbatches else len(inputs.batches), num_entries)
        )

    def take_steps(self, first_step: int, num_steps: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """See `StepEngine.take_steps`: one step. Collective."""
        microbatches = (
            [self.joined_microbatch(first_step)] if self.joins_microbatches else self.microbatches(first_step)
        )
        self.weights_digest.add_in_step()
        self._write_partials(microbatches, first_step)
        self._partials[:, -1] = float(stop_requested)
        self.loss_sums[: len(self._partials)] += self._partials[:, -EXTRA_ENTRIES:-1]
        total = self.reducer.reduce(self._partials)
        loss_sum, weight_sum, stop_flags = total[-EXTRA_ENTRIES:].tolist()
        self._batch_norm.update(total[self._num_gradient_entries : -EXTRA_ENTRIES])
        gradient = total[: self._num_gradient_entries] / weight_sum  # the same bits on all ranks
        self._assign_gradients(gradient)
        self._update(learning_rate, functools.partial(clip, gradient))
        return StepResult([loss_sum / weight_sum], stop_flags > 0)

    def _write_partials(self, microbatches: Sequence[Microbatch], step_in_epoch: int) -> None:
        bodies = [
            functools.partial(self._write_partial, row, number, microbatch, step_in_epoch)
            for number, (row, microbatch) in enumerate(zip(self._partials, microbatches, strict=True))
        ]
        with kept_random_state(self.ranks.device, self._draws_numbers):
            self._batch_norm.run(bodies)

    def _write_partial(self, row: torch.Tensor, number: int, microbatch: Microbatch, step_in_epoch: int) -> None:
        row.zero_()
        parts = split_microbatch(microbatch, self.training.gradient_accumulation_steps)
        for part_number, part in enumerate(parts):
            self._seed(microbatch, step_in_epoch, part_number)
            entries = self._entries(part, number)
            # A single part is copied, not added to zeros: 0 + x would turn -0 into +0.
            row.copy_(entries) if len(parts) == 1 else row.add_(entries)

    def _entries(self, part: Microbatch, number: int) -> torch.Tensor:
        """Return the gradient of the part's summed loss, batch norm's sums, loss, weight and a zero (n + m + 3,)."""
        with self._batch_norm.microbatch(number, part):
            loss_sum, weight_sum, sums = self._sums(part)
            gradients = torch.autograd.grad(
                self._precision.scaled(loss_sum), self.parameters, allow_unused=True, materialize_grads=True
            )
        extras = torch.stack([loss_sum.detach(), weight_sum, loss_sum.new_zeros(())])
        return torch.cat([*(gradient.reshape(-1) for gradient in gradients), sums, extras])

    def _assign_gradients(self, flat_gradient: torch.Tensor) -> None:
        start = 0
        for parameter in self.parameters:
            parameter.grad = flat_gradient[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()


def clip(flat_gradient: torch.Tensor, largest: float) -> None:
    """Scale a gradient (n,) in place to a norm of at most `largest`; the parameters' gradients are views of it."""
    flat_gradient *= torch.clamp(largest / (flat_gradient.norm() + CLIP_EPSILON), max=1.0)
