"""The clear engine of `standard` semantics: autograd, slice by slice, in the order that is the definition.

V  virtual ranks      k  slices of this rank      b  rows a slice      n  parameters in all
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from mpitrain.comm.reduction import FixedTreeReducer, LibraryReducer, Reducer
from mpitrain.comm.session import Session
from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.config import RunConfig
from mpitrain.data.batches import BatchPlan, Slice, VirtualRankBatches
from mpitrain.data.training_data import TrainingData, VirtualRankSamples
from mpitrain.train.losses import element_losses
from mpitrain.train.step_engine import StepResult

# Behind the n gradient entries of a partial: the loss sum, the weight sum, and a stop flag, in the same message.
_EXTRA_ENTRIES = 3
_VALIDATION_ROWS = 65_536
# torch.nn.utils.clip_grad_norm_ adds the same to the norm.
CLIP_EPSILON = 1e-6


class EagerEngine:
    """`StepEngine` that loops over the slices; reduction "fixed" adds them in the tree, "any" as the library likes."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, data: TrainingData, plan: BatchPlan,
        virtual_ranks: VirtualRanks, session: Session, config: RunConfig,
    ) -> None:  # fmt: skip
        self.steps_per_epoch, self.global_batch_size = plan.steps_per_epoch, plan.global_batch_size
        self._model, self._optimizer, self._data, self._session = model, optimizer, data, session
        self._virtual_ranks, self._training = virtual_ranks, config.training
        self._parameters = list(model.parameters())
        self._fixed = FixedTreeReducer(session.data, virtual_ranks)
        self._reducer: Reducer = self._fixed if session.reduction == "fixed" else LibraryReducer(session.data)
        self._batches = [
            VirtualRankBatches(own.virtual_rank, own.inputs, own.targets, plan, config.seed, config.shuffle)
            for own in data.training
        ]
        num_entries = sum(parameter.numel() for parameter in self._parameters) + _EXTRA_ENTRIES
        self._partials = self._parameters[0].new_zeros((len(self._batches), num_entries))
        self._loss_sums = torch.zeros(len(self._batches), dtype=torch.float64, device=session.device)

    def start_epoch(self, epoch: int) -> None:
        """See `StepEngine.start_epoch`."""
        self._loss_sums.zero_()
        for batches in self._batches:
            batches.start_epoch(epoch)

    def step(self, step_in_epoch: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """See `StepEngine.step`. Collective."""
        for row, batches in zip(self._partials, self._batches, strict=True):
            self._write_partial(row, batches.slice(step_in_epoch), stop_requested)
        self._loss_sums += self._partials[:, -3]
        total = self._reducer.reduce(self._partials)
        loss_sum, weight_sum, stop_flags = total[-_EXTRA_ENTRIES:].tolist()
        self._apply(self._clipped(total[:-_EXTRA_ENTRIES] / weight_sum), learning_rate)
        return StepResult(loss_sum / weight_sum, stop_flags > 0)

    def _write_partial(self, row: torch.Tensor, piece: Slice, stop_requested: bool) -> None:
        row.zero_()
        parts = split_slice(piece, self._training.gradient_accumulation_steps)
        for part in parts:
            loss_sum = weighted_loss_sum(self._model(part.inputs), part, self._training.loss_function)
            gradients = torch.autograd.grad(loss_sum, self._parameters)
            extras = torch.stack([loss_sum.detach(), part.weights.sum(), loss_sum.new_zeros(())])
            entries = torch.cat([*(gradient.reshape(-1) for gradient in gradients), extras])
            # One part is copied, not added: 0 + x would turn -0 into +0.
            row.copy_(entries) if len(parts) == 1 else row.add_(entries)
        row[-1] = float(stop_requested)

    def _clipped(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the whole gradient (n,), shortened to the configured norm; the same bits on all ranks."""
        largest = self._training.gradient_clip_norm
        if largest is None:
            return gradient
        return gradient * torch.clamp(largest / (gradient.norm() + CLIP_EPSILON), max=1.0)

    def _apply(self, flat_gradient: torch.Tensor, learning_rate: float) -> None:
        start = 0
        for parameter in self._parameters:
            parameter.grad = flat_gradient[start : start + parameter.numel()].view_as(parameter)
            start += parameter.numel()
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()

    def epoch_loss(self) -> float:
        """See `StepEngine.epoch_loss`. Collective."""
        return float(self._fixed.reduce(self._loss_sums[:, None])) / self._data.num_training_samples

    def validation_loss(self) -> float | None:
        """See `StepEngine.validation_loss`. Collective."""
        if self._data.num_validation_samples == 0:
            return None
        sums = torch.stack(
            [sum_losses(self._model, own, self._training.loss_function) for own in self._data.validation]
        )
        return float(self._fixed.reduce(sums[:, None])) / self._data.num_validation_samples

    def describe_failure(self) -> str:
        """See `StepEngine.describe_failure`. Collective."""
        bad = [
            batches.virtual_rank
            for batches, row in zip(self._batches, self._partials, strict=True)
            if not torch.isfinite(row).all()
        ]
        ranks = self._session.ranks
        reports = [report for report in self._session.gather_object((ranks.rank, self._session.host, bad)) if report[2]]
        return (
            "; ".join(f"rank {rank} on {host}, virtual ranks {which}" for rank, host, which in reports)
            or "the sum over the ranks"
        )

    def gather_loss_sums(self) -> torch.Tensor:
        """See `StepEngine.gather_loss_sums`: (V,) float64. Collective."""
        return self._session.data.all_gather(self._loss_sums, self._virtual_ranks.counts).cpu()

    def restore_loss_sums(self, sums: torch.Tensor) -> None:
        """See `StepEngine.restore_loss_sums`."""
        owned = self._virtual_ranks.owned
        self._loss_sums.copy_(sums[owned.start : owned.stop])


def weighted_loss_sum(outputs: torch.Tensor, piece: Slice, loss: str = "mse") -> torch.Tensor:
    """Return the sum over a slice of weight * loss, a scalar; `outputs` is (b, 1)."""
    return (element_losses(loss, outputs.view(-1), piece.targets) * piece.weights).sum()


def split_slice(piece: Slice, num_parts: int) -> list[Slice]:
    """Return the slice in `num_parts` parts of equal shape, which its number of rows must allow."""
    if num_parts == 1:
        return [piece]
    columns = zip(*(tensor.chunk(num_parts) for tensor in (piece.inputs, piece.targets, piece.weights)), strict=True)
    return [Slice(piece.virtual_rank, *column) for column in columns]


@torch.no_grad()
def sum_losses(model: nn.Module, own: VirtualRankSamples, loss: str = "mse") -> torch.Tensor:
    """Return one virtual rank's sum of losses, float64 scalar, in blocks whose shape no rank count changes."""
    total = torch.zeros((), dtype=torch.float64, device=own.targets.device)
    for inputs, targets in _blocks(own.inputs, own.targets):
        total += element_losses(loss, model(inputs).view(-1), targets).double().sum()
    return total


def _blocks(inputs: torch.Tensor, targets: torch.Tensor) -> Sequence[tuple[torch.Tensor, torch.Tensor]]:
    return (
        list(zip(inputs.split(_VALIDATION_ROWS), targets.split(_VALIDATION_ROWS), strict=True)) if len(targets) else []
    )
