"""What all engines of `standard` semantics have in common: the epoch's losses, validation, failures.

V  virtual ranks      k  slices of this rank
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import torch
from torch import nn

from mpitrain.comm.ranks import Ranks
from mpitrain.comm.reduction import FixedTreeReducer, LibraryReducer, NarrowWire, Reducer
from mpitrain.comm.virtual_ranks import VirtualRanks
from mpitrain.config import RunConfig
from mpitrain.data.dataset.batches import BatchPlan, EvaluationSource, Slice, SliceSource
from mpitrain.data.dataset.step_slices import open_step_slices
from mpitrain.train.engines.agreement import are_equal, columns_of
from mpitrain.train.engines.contract import Spent, StepEngine
from mpitrain.train.engines.profiled import NamedReducer
from mpitrain.train.engines.weights_digest import CrcOfWeights, WeightsDigest
from mpitrain.train.losses import WeightedLoss, loss_of, target_weights_of
from mpitrain.train.optimizers import build_optimizer

T = TypeVar("T")


@dataclass(frozen=True)
class EngineInputs:
    """What an engine is built from; `batches` and `validation` hold one source for each owned virtual rank."""

    model: nn.Module
    batches: Sequence[SliceSource]
    validation: Sequence[EvaluationSource]
    plan: BatchPlan
    virtual_ranks: VirtualRanks
    ranks: Ranks
    config: RunConfig
    target_names: tuple[str, ...] = ()

    @property
    def target_weights(self) -> tuple[float, ...]:
        """How much each target counts in the loss (O,); () where all count 1."""
        return target_weights_of(self.config.training, self.target_names)


# Behind the gradient of a partial sum come its loss, its weight and a stop flag: all in the same message.
EXTRA_ENTRIES = 3


class StandardEngine(StepEngine):
    """The part of `StepEngine` that does not depend on how a step is computed."""

    shares_running_statistics = True

    def __init__(self, inputs: EngineInputs) -> None:
        self.inputs = inputs
        self.plan, self.ranks, self.training = inputs.plan, inputs.ranks, inputs.config.training
        self.steps_per_epoch, self.global_batch_size = inputs.plan.steps_per_epoch, inputs.plan.global_batch_size
        self.loss = loss_of(self.training.loss_function, inputs.model, inputs.target_weights)
        self.open_slices()
        self.parameters = [parameter for parameter in inputs.model.parameters() if parameter.requires_grad]
        self.optimizer = self.make_optimizer()
        self.weights_digest = self.make_weights_digest()
        self.has_drifted = False
        self.epoch = 0
        self.seconds_reading = 0.0
        # With "any" a rank's slices are one.
        self.joins_slices = self.ranks.reduction == "any"
        self.fixed_tree = FixedTreeReducer(inputs.ranks.tensors, inputs.virtual_ranks)
        reducer = self.make_reducer()
        self.reducer: Reducer = NamedReducer(reducer, self.ranks) if self.training.profile_training else reducer
        self._holds_out = True  # until the ranks have found together that none does
        # Loss and weight of each slice so far: added in the tree, they are the same for any number of ranks.
        self.loss_sums = torch.zeros((len(inputs.batches), 2), dtype=torch.float64, device=inputs.ranks.device)

    def open_slices(self) -> None:
        """Take the slices of `inputs.batches` from now on."""
        self.step_slices = open_step_slices(self.inputs.batches)

    def make_optimizer(self) -> Any:
        """Return what updates `parameters`: one of torch's optimisers, unless the engine has its own."""
        # Fused is several times faster, and other in the last bits than the plain formula.
        is_fused = self.ranks.reduction == "any"
        return build_optimizer(self.inputs.model.parameters(), self.training.optimizer, "standard", is_fused)

    def make_weights_digest(self) -> WeightsDigest:
        """Return what takes in the weights that each step finds; nothing where there is one rank only."""
        return CrcOfWeights(self.parameters if self.ranks.world_size > 1 else ())

    def make_reducer(self) -> Reducer:
        """Return what adds up gradients: in the fixed tree, or as the library likes."""
        if not self.joins_slices:
            return self.fixed_tree
        return LibraryReducer(self.ranks.tensors, narrow_wire(self.inputs))

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """See `StepEngine.start_epoch`."""
        self.epoch = epoch
        self.loss_sums.zero_()
        self.step_slices.start_epoch(epoch, first_step)

    def slices(self, step: int) -> list[Slice]:
        """Return the owned virtual ranks' slices of a step."""
        return self.timed(self.step_slices.apart, step)

    def joined_slice(self, step: int) -> Slice:
        """Return the owned virtual ranks' slices of a step as one."""
        return self.timed(self.step_slices.joined, step)

    def timed(self, read: Callable[..., T], *arguments: Any) -> T:
        """Return what `read` returns, whose time is that of reading."""
        started_s = perf_counter()
        result = read(*arguments)
        self.seconds_reading += perf_counter() - started_s
        return result

    def spent(self) -> Spent:
        """See `StepEngine.spent`."""
        return Spent(reading=self.seconds_reading)

    def close(self) -> None:
        """See `StepEngine.close`."""

    def epoch_loss(self) -> float:
        """See `StepEngine.epoch_loss`. Collective."""
        self.weights_digest.add()  # as the epoch's last step left them
        digest = columns_of(self.weights_digest.value).to(self.loss_sums.device)
        rows = torch.cat([self.loss_sums, digest.expand(len(self.loss_sums), -1)], dim=1)
        loss, weight, *digests = self.fixed_tree.reduce(rows).tolist()
        self.has_drifted = not are_equal(digests, self.inputs.virtual_ranks.num_virtual_ranks)
        return float(loss / weight) if weight else 0.0

    def validation_loss(self) -> float | None:
        """See `StepEngine.validation_loss`. Collective."""
        if not self._holds_out:
            return None
        loss, weight = self.fixed_tree.reduce(self.sum_validation_losses()).tolist()
        self._holds_out = weight > 0
        return float(loss / weight) if weight else None

    def sum_validation_losses(self) -> torch.Tensor:
        """Return the sums of losses and weights of each owned virtual rank's held-out samples (k, 2), float64."""
        self.inputs.model.eval()
        sums = torch.stack([sum_losses(self.inputs.model, self.loss, own) for own in self.inputs.validation])
        self.inputs.model.train()
        return sums.to(self.ranks.device)

    def describe_failure(self) -> str:
        """See `StepEngine.describe_failure`. Collective."""
        mine = (self.ranks.rank, self.ranks.host, self._failed_slices())
        reports = [report for report in self.ranks.gather_object(mine) if report[2]]
        return (
            "; ".join(f"rank {rank} on {host}, virtual ranks {which}" for rank, host, which in reports)
            or "the sum over the ranks"
        )

    def _failed_slices(self) -> list[int]:
        """Return the owned virtual ranks whose loss is not finite: all, where their slices are one."""
        finite = torch.isfinite(self.loss_sums).all(dim=1).tolist()
        owned = self.inputs.virtual_ranks.owned
        if self.joins_slices:
            return [] if all(finite) else list(owned)
        return [v for v, is_fine in zip(owned, finite, strict=True) if not is_fine]

    def gather_state(self) -> dict[str, torch.Tensor]:
        """See `StepEngine.gather_state`: the epoch's sums (V, 2) float64. Collective."""
        return {
            "epoch_loss_sums": self.ranks.tensors.all_gather(self.loss_sums, self.inputs.virtual_ranks.counts).cpu()
        }

    def restore_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """See `StepEngine.restore_state`."""
        owned = self.inputs.virtual_ranks.owned
        self.loss_sums.copy_(state["epoch_loss_sums"][owned.start : owned.stop])


@torch.no_grad()
def sum_losses(model: nn.Module, loss: WeightedLoss, own: EvaluationSource) -> torch.Tensor:
    """Return one virtual rank's sums (2,) of losses and weights, float64, block by block."""
    total = torch.zeros(2, dtype=torch.float64)
    for block in own.blocks():
        total = total.to(block.targets.device) + loss.double_sums(model(block.inputs), block)
    return total


def narrow_wire(inputs: EngineInputs) -> NarrowWire | None:
    """Return how gradients travel with `distributed.fp16_allreduce`: as parts of the batch's mean; None without it."""
    if not inputs.config.distributed.fp16_allreduce:
        return None
    return NarrowWire(torch.float16, EXTRA_ENTRIES, 1 / inputs.plan.global_batch_size)
