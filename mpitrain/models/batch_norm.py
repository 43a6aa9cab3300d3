"""Batch norm for virtual ranks: moments exclude padding rows, running statistics cover all microbatches.

b  rows of a microbatch      C  channels      E  elements per channel and row (1, or H W of a field)
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
from mpitrain.models.output_transforms import output_physical_units

_TORCH_CLASSES: tuple[type[_BatchNorm], ...] = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(eq=False)
class BatchContext:
    """Options of all batch-norm layers of one model, set by the engine before each forward pass in training mode.

    `row_weights` (b,): 1 for a sample, 0 for a padding row of the microbatch; None if there are no padding rows.
    `synchronise`: maps the sums (1 + 2 C,) of this microbatch to their totals over all microbatches and ranks; the
    backward pass adds the gradients in the same way. All microbatches on all ranks must then call the same layers in
    the same order. If it is None, each microbatch is normalised by its own moments.
    """

    row_weights: torch.Tensor | None = None
    synchronise: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> BatchContext:
        # A copied model (an average, an export) gets its options from its own engine; the communicator that
        # `synchronise` uses must not be copied.
        return BatchContext()


class VirtualBatchNorm(nn.Module):
    """Replacement of torch.nn.BatchNorm*d with its parameter and buffer names; the engine updates running statistics.

    A forward pass in training mode sets `batch_sums` (1 + 2 C,): the weight (number of elements per channel), and each
    channel's sums of (x - shift) and (x - shift)^2. The shift is running_mean: it is the same on all ranks, so that the
    sums of microbatches can be added, and it is close to the mean, so that cancellation is small.
    """

    weight: nn.Parameter | None
    bias: nn.Parameter | None
    running_mean: torch.Tensor
    running_var: torch.Tensor
    num_batches_tracked: torch.Tensor

    def __init__(self, original: _BatchNorm, context: BatchContext) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = original.num_features, original.eps, original.momentum
        # Modules of no fixed number of dimensions (SyncBatchNorm) normalise fields in practice.
        self.torch_class = next((kind for kind in _TORCH_CLASSES if isinstance(original, kind)), nn.BatchNorm2d)
        self.register_parameter("weight", original.weight)
        self.register_parameter("bias", original.bias)
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(original, name))
        self.context = context
        self.batch_sums: torch.Tensor | None = None
        self.train(original.training)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the normalised `inputs` (b, C) or (b, C, ...), in the dtype of `inputs`."""
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
        """Update the running statistics from `sums` (1 + 2 C,) over all microbatches, by torch's formula."""
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
        """Return the mean (C,), the biased variance (C,) and the weight that `sums` gives."""
        weight = sums[0]
        # E[(x - shift)^2] - E[x - shift]^2: rounding may make a variance near 0 negative.
        offset, square = (sums[1:] / weight.clamp(min=1)).chunk(2)
        return self.running_mean + offset, (square - offset * offset).clamp(min=0), weight

    def _own_moments(self, values: torch.Tensor, weights: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        weights = values.new_ones([len(values)] + [1] * (values.dim() - 1)) if weights is None else weights
        # A microbatch of padding only has no moments; a divisor of 1 keeps them finite, and its rows have weight 0.
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
    """Replace torch's batch-norm layers in place by ones that share one `BatchContext`, and return the model."""
    context = BatchContext()
    return _replace(model, _BatchNorm, lambda layer: VirtualBatchNorm(cast(_BatchNorm, layer), context))


def to_exportable(model: nn.Module) -> nn.Module:
    """Return a copy on the CPU in evaluation mode, with torch's own layers only, that TorchScript can compile."""
    return make_exportable(copy.deepcopy(model))


def make_exportable(model: nn.Module) -> nn.Module:
    """Convert `model` itself to what `to_exportable` returns; the model must not be used otherwise afterwards."""
    plain = model.cpu().eval()
    output_physical_units(plain)
    remove_gradient_checkpointing(plain)
    return _replace(plain, VirtualBatchNorm, lambda layer: cast(VirtualBatchNorm, layer).to_torch())


def batch_norm_layers(model: nn.Module) -> list[VirtualBatchNorm]:
    """Return the batch-norm layers of a model in the order of `model.modules()`, which is the same on all ranks.

    Parameters
    ----------
    model : torch.nn.Module
        A model after `use_virtual_batch_norm`; torch's own batch-norm layers are not returned.

    Returns
    -------
    list of VirtualBatchNorm
        The layers themselves, each once; empty if the model has none.
    """
    return [module for module in model.modules() if isinstance(module, VirtualBatchNorm)]


def find_batch_context(model: nn.Module) -> BatchContext | None:
    """Return the context that the model's batch-norm layers share; None if it has no batch norm."""
    return next((layer.context for layer in batch_norm_layers(model)), None)


def moment_length(model: nn.Module) -> int:
    """Return the length of the vector that `take_batch_sums` returns."""
    return sum(1 + 2 * layer.num_features for layer in batch_norm_layers(model))


def take_batch_sums(model: nn.Module) -> torch.Tensor:
    """Return the sums (moment_length,) of all layers from the last forward pass, on the model's device; clear them.

    The sums of a layer that the pass did not call are zeros; those of a layer called twice are of the later call.
    """
    parts = []
    for layer in batch_norm_layers(model):
        sums, layer.batch_sums = layer.batch_sums, None
        parts.append(layer.running_mean.new_zeros(1 + 2 * layer.num_features) if sums is None else sums)
    return torch.cat(parts) if parts else torch.zeros(0)


@torch.no_grad()
def update_running_statistics(model: nn.Module, sums: torch.Tensor) -> None:
    """Update all layers by `sums` (moment_length,): `take_batch_sums`, summed over the microbatches of all ranks."""
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
