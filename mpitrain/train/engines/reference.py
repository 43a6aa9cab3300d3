"""The step of `reference` semantics: the operations of the C++ program in the same order, bit for bit.

n  samples of this rank, the same on every rank      P  ranks      F  input features
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import nn

from mpitrain.comm import set_values
from mpitrain.train.engines.contract import Spent, StepEngine, StepResult
from mpitrain.train.engines.standard import EngineInputs
from mpitrain.train.engines.weight_average import WeightAverage
from mpitrain.train.engines.weights_digest import CrcOfWeights, WeightsDigest


class ReferenceEngine(StepEngine):
    """`StepEngine` with one full-batch step per epoch, one Allreduce per parameter, and a division by F * P."""

    steps_per_epoch = 1
    shares_running_statistics = True
    average: WeightAverage | None = None

    def __init__(self, inputs: EngineInputs) -> None:
        self._model, self._ranks = inputs.model, inputs.ranks
        self.optimizer = inputs.training.optimizer.build(inputs.model.parameters(), "reference")
        self.mean_loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = nn.functional.mse_loss
        self._share = inputs.batches[0].microbatch(0)
        self.global_batch_size = inputs.plan.num_samples
        # The C++ program divides by the sum of the ranks' feature counts (its authors meant the sample counts).
        self.divisor = float(self._share.inputs.shape[1] * inputs.ranks.world_size)
        self.weights_digest: WeightsDigest = CrcOfWeights(
            inputs.model.parameters() if inputs.ranks.world_size > 1 else ()
        )
        self.has_drifted = False
        self._local_loss = 0.0
        self._root_loss = torch.zeros(1, dtype=torch.float64)

    def take_steps(self, first_step: int, num_steps: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """See `StepEngine.take_steps`: the only step of an epoch; the loss is rank 0's local one. Collective."""
        self.weights_digest.add()
        outputs = self._model(self._share.inputs)
        loss = self.mean_loss(outputs.view(-1), self._share.targets.view(-1))
        self.optimizer.zero_grad()
        loss.backward()
        for parameter in self._model.parameters():
            if parameter.grad is not None:
                self._ranks.all_reduce(parameter.grad)
                parameter.grad /= self.divisor
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        self.weights_digest.add()  # an epoch is one step: this is the digest at its end
        self._local_loss = float(loss.detach())
        return self._agree(stop_requested)

    def _agree(self, stop_requested: bool) -> StepResult:
        # An additional collective of loss, stop flag and digest, so that all ranks take the same decisions.
        reports = self._ranks.gather_object((self._local_loss, stop_requested, self.weights_digest.value))
        losses = [loss for loss, _, _ in reports]
        self.has_drifted = len({digest for _, _, digest in reports}) > 1
        self._root_loss[0] = losses[0]
        all_finite = all(map(math.isfinite, losses))
        return StepResult([losses[0] if all_finite else math.nan], any(stop for _, stop, _ in reports))

    def spent(self) -> Spent:
        """See `StepEngine.spent`: all 0, since the samples are in memory and the library computes the sums."""
        return Spent()

    def epoch_loss(self) -> float:
        """See `StepEngine.epoch_loss`: rank 0's local loss, as the C++ program prints."""
        return float(self._root_loss)

    def validation_loss(self) -> float | None:
        """See `StepEngine.validation_loss`: None, since the C++ program has no validation set."""
        return None

    def describe_failure(self) -> str:
        """See `StepEngine.describe_failure`. Collective."""
        reports = self._ranks.gather_object((self._local_loss, self._ranks.host))
        failed = ((rank, *report) for rank, report in enumerate(reports) if not math.isfinite(report[0]))
        return "; ".join(f"rank {rank} on {host}: {loss}" for rank, loss, host in failed)

    def gather_state(self) -> dict[str, torch.Tensor]:
        """See `StepEngine.gather_state`: the loss (1,) float64."""
        return {"epoch_loss_sums": self._root_loss.clone()}

    def restore_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """See `StepEngine.restore_state`."""
        set_values(self._root_loss, state["epoch_loss_sums"])
