"""Batch norm for virtual ranks: moments over a microbatch's real rows, running statistics over all microbatches.

b  rows of a microbatch      C  channels      E  elements a channel has in a row (1, or H W of a field)
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from mpitrain.models.checkpointing import remove_gradient_checkpointing
from mpitrain.models.output_transforms import answer_physically

_TORCH_CLASSES: tuple[type[_BatchNorm], ...] = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(eq=False)
class BatchContext:
    """What the engine tells the layers of one model before each forward pass in training mode.

    `row_weights` (b,): 1 for a sample, 0 for a row that only fills the microbatch; None for no such row.
    `synchronise`: maps this microbatch's sums (1 + 2 C,) to those over all microbatches and ranks, and their gradients
    on the way back; None normalises each microbatch by its own moments. All ranks must then call every layer alike.
    """

    row_weights: torch.Tensor | None = None
    synchronise: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> BatchContext:
        # A copied model (an average, an export) is told by its own engine, and must not copy the ranks.
        return BatchContext()


class VirtualBatchNorm(nn.Module):
    """torch.nn.BatchNorm*d, names of parameters and buffers included, whose running statistics the engine updates.

    A forward pass in training mode leaves `batch_sums` (1 + 2 C,): the weight, and each channel's sums of (x - shift)
    and (x - shift)^2, where shift is running_mean: the same on all ranks, so that addition merges microbatches, and
    near the mean, so that little cancels.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: torch.Tensor
    running_var: torch.Tensor
    num_batches_tracked: torch.Tensor

    def __init__(self, original: _BatchNorm, context: BatchContext) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = original.num_features, original.eps, original.momentum
        # Modules without a torch class of their own number of axes (SyncBatchNorm) are fields in practice.
        self.torch_class = next((kind for kind in _TORCH_CLASSES if isinstance(original, kind)), nn.BatchNorm2d)
        self.register_parameter("weight", original.weight)
        self.register_parameter("bias", original.bias)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(original, name))
        self.context = context
        self.batch_sums: torch.Tensor | None = None
        self.train(original.training)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the normalised `inputs` (b, C) or (b, C, ...), of their dtype."""
        if not self.training:
            return nn.functional.batch_norm(
                inputs, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        values = inputs.to(self.running_mean.dtype)
        weights = self.context.row_weights
        if weights is not None:
            weights = weights.to(values).view([-1] + [1] * (values.dim() - 1))
        synchronise = self.context.synchronise
        with torch.set_grad_enabled(torch.is_grad_enabled() and synchronise is not None):
            sums = self._sums(values, weights)
        self.batch_sums = sums.detach()
        if synchronise is not None:
            mean, variance, _ = self._moments(synchronise(sums))
        elif weights is None and values.numel() > self.num_features:
            return nn.functional.batch_norm(values, None, None, self.weight, self.bias, True, eps=self.eps).to(inputs)
        else:
            mean, variance = self._own_moments(values, weights)
        return self._normalised(values, mean, variance).to(inputs.dtype)

    def update_running_statistics(self, sums: torch.Tensor) -> None:
        """Move the running statistics by `sums` (1 + 2 C,), the sum over all microbatches, as torch does."""
        mean, variance, weight = self._moments(sums.detach().double())
        unbiased = variance * (weight / (weight - 1).clamp(min=1))
        self.num_batches_tracked += 1
        fraction = 1 / self.num_batches_tracked.double() if self.momentum is None else self.momentum
        self.running_mean.mul_(1 - fraction).add_(fraction * mean.to(self.running_mean))
        self.running_var.mul_(1 - fraction).add_(fraction * unbiased.to(self.running_var))

    def _sums(self, values: torch.Tensor, weights: torch.Tensor | None) -> torch.Tensor:
        elements_a_row = values[0, 0].numel()
        shifted = values - self._along_channels(self.running_mean, values)
        weighted = shifted if weights is None else shifted * weights
        num_rows = values.new_tensor(len(values)) if weights is None else weights.sum()
        axes = _all_but_channels(values)
        return torch.cat([(num_rows * elements_a_row).view(1), weighted.sum(axes), (weighted * shifted).sum(axes)])

    def _moments(self, sums: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return mean (C,), biased variance (C,) and weight of `sums`."""
        weight = sums[0]
        offset, square = (sums[1:] / weight.clamp(min=1)).chunk(2)
        return self.running_mean + offset, (square - offset * offset).clamp(min=0), weight

    def _own_moments(self, values: torch.Tensor, weights: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        weights = values.new_ones([len(values)] + [1] * (values.dim() - 1)) if weights is None else weights
        # A microbatch of padding alone has no moments; any finite number serves, for its rows have no weight.
        total = (weights.sum() * values[0, 0].numel()).clamp(min=1)
        axes = _all_but_channels(values)
        mean = (values * weights).sum(axes) / total
        deviations = (values - self._along_channels(mean, values)) ** 2
        return mean, (deviations * weights).sum(axes) / total

    def _normalised(self, values: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(variance + self.eps)
        result = (values - self._along_channels(mean, values)) * self._along_channels(scale, values)
        if self.weight is not None:
            result = result * self._along_channels(self.weight, values)
        return result if self.bias is None else result + self._along_channels(self.bias, values)

    def _along_channels(self, statistic: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return statistic.view([1, -1] + [1] * (values.dim() - 2))

    def to_torch(self) -> _BatchNorm:
        """Return torch's layer with the same parameters and buffers."""
        layer = self.torch_class(self.num_features, self.eps, self.momentum, affine=self.weight is not None)
        layer.weight, layer.bias = cast(nn.Parameter, self.weight), cast(nn.Parameter, self.bias)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            setattr(layer, name, getattr(self, name))
        return layer.train(self.training)


def use_virtual_batch_norm(model: nn.Module) -> nn.Module:
    """Return the model with torch's batch-norm layers replaced, in place, by ones of a common `BatchContext`."""
    context = BatchContext()
    return _replace(model, _BatchNorm, lambda layer: VirtualBatchNorm(cast(_BatchNorm, layer), context))


def to_exportable(model: nn.Module) -> nn.Module:
    """Return a copy on the CPU, in evaluation mode, of torch's own layers, that TorchScript can compile."""
    return make_exportable(copy.deepcopy(model))


def make_exportable(model: nn.Module) -> nn.Module:
    """Return what `to_exportable` returns, made of `model` itself, which nobody else may use."""
    plain = model.cpu().eval()
    answer_physically(plain)
    remove_gradient_checkpointing(plain)
    return _replace(plain, VirtualBatchNorm, lambda layer: cast(VirtualBatchNorm, layer).to_torch())


def batch_norm_layers(model: nn.Module) -> list[VirtualBatchNorm]:
    """Return the batch-norm layers, in the order of `model.modules()`, the same on all ranks."""
    return [module for module in model.modules() if isinstance(module, VirtualBatchNorm)]


def find_batch_context(model: nn.Module) -> BatchContext | None:
    """Return the context that the model's batch-norm layers share; None for a model without."""
    return next((layer.context for layer in batch_norm_layers(model)), None)


def moment_length(model: nn.Module) -> int:
    """Return the number of entries of `take_batch_sums`."""
    return sum(1 + 2 * layer.num_features for layer in batch_norm_layers(model))


def take_batch_sums(model: nn.Module) -> torch.Tensor:
    """Return the last forward pass's sums of all layers, (moment_length,), on the model's device, and forget them.

    A layer that the pass did not reach gives zeros; of one reached twice the later call counts.
    """
    parts = []
    for layer in batch_norm_layers(model):
        sums, layer.batch_sums = layer.batch_sums, None
        parts.append(layer.running_mean.new_zeros(1 + 2 * layer.num_features) if sums is None else sums)
    return torch.cat(parts) if parts else torch.zeros(0)


@torch.no_grad()
def update_running_statistics(model: nn.Module, sums: torch.Tensor) -> None:
    """Update all layers by `sums` (moment_length,), `take_batch_sums` added over the microbatches of all ranks."""
    layers = batch_norm_layers(model)
    for layer, part in zip(layers, sums.split([1 + 2 * layer.num_features for layer in layers]), strict=True):
        layer.update_running_statistics(part)


def _replace(model: nn.Module, kind: type[nn.Module], make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    if isinstance(model, kind):
        return make(model)
    for name, child in model.named_children():
        setattr(model, name, _replace(child, kind, make))
    return model


def _all_but_channels(values: torch.Tensor) -> list[int]:
    return [axis for axis in range(values.dim()) if axis != 1]
