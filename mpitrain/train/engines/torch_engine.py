"""Base of the engines that compute with torch: parameters, optimiser, loss, validation."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from mpitrain.data import EvaluationSource
from mpitrain.train.engines.standard import EngineInputs, StandardEngine
from mpitrain.train.engines.weight_average import TorchWeightAverage, WeightAverage
from mpitrain.train.engines.weights_digest import CrcOfWeights, WeightsDigest
from mpitrain.train.losses.weighted import WeightedLoss, loss_of


class TorchEngine(StandardEngine):
    """A `StandardEngine` for torch modules; its sources return tensors on the device of the ranks."""

    def __init__(self, inputs: EngineInputs) -> None:
        self.parameters = [parameter for parameter in inputs.model.parameters() if parameter.requires_grad]
        super().__init__(inputs)
        self.loss = loss_of(self.training.loss_function, inputs.model, inputs.target_weights)

    def zeros(self, *shape: int) -> torch.Tensor:
        """See `StandardEngine.zeros`."""
        return torch.zeros(shape, dtype=torch.float64, device=self.ranks.device)

    def make_optimizer(self) -> Any:
        """See `StandardEngine.make_optimizer`: by default one of torch's."""
        # Fused is several times faster, and differs from the plain formula in the last bits.
        arithmetic = "fused" if self.ranks.reduction == "any" else "plain"
        return self.training.optimizer.build(self.parameters, arithmetic)

    def make_average(self, decay: float) -> WeightAverage:
        """See `StandardEngine.make_average`."""
        named = {name: one for name, one in self.inputs.model.named_parameters() if one.requires_grad}
        return TorchWeightAverage(named, decay)

    def update_average(self) -> None:
        """Add the weights after a step to their average, if one is kept."""
        if isinstance(self.average, TorchWeightAverage):
            self.average.update()

    def make_weights_digest(self) -> WeightsDigest:
        """See `StandardEngine.make_weights_digest`."""
        return CrcOfWeights(self.parameters if self.ranks.world_size > 1 else ())

    def sum_validation_losses(self) -> torch.Tensor:
        """See `StandardEngine.sum_validation_losses`."""
        self.inputs.model.eval()
        sums = torch.stack([sum_losses(self.inputs.model, self.loss, own) for own in self.inputs.validation])
        self.inputs.model.train()
        return sums.to(self.ranks.device)


@torch.no_grad()
def sum_losses(model: nn.Module, loss: WeightedLoss, own: EvaluationSource) -> torch.Tensor:
    """Return one virtual rank's sums of losses and of weights (2,), float64, computed block by block."""
    total = torch.zeros(2, dtype=torch.float64)
    for block in own.blocks():
        total = total.to(block.targets.device) + loss.double_sums(model(block.inputs), block)
    return total
