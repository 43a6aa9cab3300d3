"""Base of all engines of `standard` semantics: the epoch's losses, validation, failures. Needs no torch.

V  virtual ranks      k  microbatches of this rank
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from mpitrain.comm import Array, FixedTreeReducer, Ranks, Reducer, VirtualRanks, host_array, set_values
from mpitrain.comm.reduction import LibraryReducer, NarrowWire
from mpitrain.config import DistributedSection, TrainingSection
from mpitrain.data import BatchPlan, EvaluationSource, Microbatch
from mpitrain.data.dataset.batches import MicrobatchSource
from mpitrain.data.dataset.step_microbatches import open_step_microbatches
from mpitrain.train.engines.agreement import are_equal, columns_of
from mpitrain.train.engines.contract import Spent, StepEngine
from mpitrain.train.engines.weight_average import WeightAverage
from mpitrain.train.engines.weights_digest import WeightsDigest
from mpitrain.train.losses.array_loss import target_weights_of

T = TypeVar("T")


@dataclass(frozen=True)
class EngineInputs:
    """The inputs of an engine; `batches` and `validation` hold one source for each owned virtual rank.

    `model` is a `DenseModel` or a torch module, and the sources return arrays of the same kind, numpy's or torch's.
    """

    model: Any
    batches: Sequence[MicrobatchSource]
    validation: Sequence[EvaluationSource]
    plan: BatchPlan
    virtual_ranks: VirtualRanks
    ranks: Ranks
    training: TrainingSection
    distributed: DistributedSection
    seed: int
    target_names: tuple[str, ...] = ()

    @property
    def target_weights(self) -> tuple[float, ...]:
        """The weight of each target in the loss (O,); () if all are 1."""
        return target_weights_of(self.training, self.target_names)


# A partial sum ends in its loss, its weight and a stop flag, which are reduced together with the gradient.
EXTRA_ENTRIES = 3


class StandardEngine(StepEngine):
    """The part of `StepEngine` that does not depend on how a step is computed."""

    shares_running_statistics = True

    def __init__(self, inputs: EngineInputs) -> None:
        self.inputs = inputs
        self.plan, self.ranks, self.training = inputs.plan, inputs.ranks, inputs.training
        self.steps_per_epoch, self.global_batch_size = inputs.plan.steps_per_epoch, inputs.plan.global_batch_size
        self.open_microbatches()
        self.optimizer = self.make_optimizer()
        self.average = None if inputs.training.average is None else self.make_average(inputs.training.average.decay)
        self.weights_digest = self.make_weights_digest()
        self.has_drifted = False
        self.epoch = 0
        self.seconds_reading = 0.0
        # With "any" a rank's microbatches are computed as one.
        self.joins_microbatches = self.ranks.reduction == "any"
        self.fixed_tree = FixedTreeReducer(inputs.ranks.tensors, inputs.virtual_ranks)
        self.reducer = self.make_reducer()
        if self.training.profile_training:
            from mpitrain.train.engines.profiled import NamedReducer  # imports torch

            self.reducer = NamedReducer(self.reducer, self.ranks)
        self._holds_out = True  # until a sum over the ranks shows that no rank holds out samples
        # Loss and weight of each microbatch in this epoch; added in the tree, so the bits are the same for any number
        # of ranks.
        self.loss_sums = self.zeros(len(inputs.batches), 2)

    def open_microbatches(self) -> None:
        """Read the microbatches from `inputs.batches` from now on."""
        self.step_microbatches = open_step_microbatches(self.inputs.batches)

    def zeros(self, *shape: int) -> Array:
        """Return zeros of float64 on the engine's device."""
        return np.zeros(shape)

    def make_optimizer(self) -> Any:
        """Return the optimiser."""
        raise NotImplementedError

    def make_average(self, decay: float) -> WeightAverage:
        """Return the moving average of the weights; by default the optimiser's own."""
        average: WeightAverage = self.optimizer.make_average()
        return average

    def make_weights_digest(self) -> WeightsDigest:
        """Return the digest of the weights of each step; with one rank it is not needed, and may contain no weights."""
        raise NotImplementedError

    def make_reducer(self) -> Reducer:
        """Return the reducer of gradients, which adds in the fixed tree or in the library's order."""
        if not self.joins_microbatches:
            return self.fixed_tree
        return LibraryReducer(self.ranks.tensors, narrow_wire(self.inputs))

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """See `StepEngine.start_epoch`."""
        self.epoch = epoch
        self.loss_sums[...] = 0
        self.step_microbatches.start_epoch(epoch, first_step)

    def microbatches(self, step: int) -> list[Microbatch]:
        """Return the microbatches of a step, one for each owned virtual rank."""
        return self.timed(self.step_microbatches.apart, step)

    def joined_microbatch(self, step: int) -> Microbatch:
        """Return the microbatches of a step of all owned virtual ranks, joined to one."""
        return self.timed(self.step_microbatches.joined, step)

    def timed(self, read: Callable[..., T], *arguments: Any) -> T:
        """Return the result of `read`, and add its time to `seconds_reading`."""
        started_s = perf_counter()
        result = read(*arguments)
        self.seconds_reading += perf_counter() - started_s
        return result

    def spent(self) -> Spent:
        """See `StepEngine.spent`."""
        return Spent(reading=self.seconds_reading)

    def epoch_loss(self) -> float:
        """See `StepEngine.epoch_loss`. Collective."""
        self.weights_digest.add()  # the weights after the epoch's last step
        digest = columns_of(self.weights_digest.value)
        rows = self.zeros(len(self.loss_sums), 2 + len(digest))
        rows[:, :2] = self.loss_sums
        for column, number in enumerate(digest, 2):
            rows[:, column] = number
        loss, weight, *digests = self.fixed_tree.reduce(rows).tolist()
        self.has_drifted = not are_equal(digests, self.inputs.virtual_ranks.num_places)
        return float(loss / weight) if weight else 0.0

    def validation_loss(self) -> float | None:
        """See `StepEngine.validation_loss`. Collective."""
        if not self._holds_out:
            return None
        loss, weight = self.fixed_tree.reduce(self.sum_validation_losses()).tolist()
        self._holds_out = weight > 0
        return float(loss / weight) if weight else None

    def sum_validation_losses(self) -> Array:
        """Return the sums of losses and weights of each owned virtual rank's held-out samples (k, 2), float64."""
        raise NotImplementedError

    def describe_failure(self) -> str:
        """See `StepEngine.describe_failure`. Collective."""
        mine = (self.ranks.rank, self.ranks.host, self._failed_microbatches())
        reports = [report for report in self.ranks.gather_object(mine) if report[2]]
        return (
            "; ".join(f"rank {rank} on {host}, virtual ranks {which}" for rank, host, which in reports)
            or "the sum over the ranks"
        )

    def _failed_microbatches(self) -> list[int]:
        """Return the owned virtual ranks with a loss that is not finite: all or none if microbatches are joined."""
        finite = np.isfinite(host_array(self.loss_sums)).all(axis=1).tolist()
        owned = self.inputs.virtual_ranks.owned
        if self.joins_microbatches:
            return [] if all(finite) else list(owned)
        return [v for v, is_fine in zip(owned, finite, strict=True) if not is_fine]

    def gather_state(self) -> dict[str, Array]:
        """See `StepEngine.gather_state`: the epoch's sums (V, 2) float64. Collective."""
        layout = self.inputs.virtual_ranks
        gathered = self.ranks.tensors.all_gather(self.loss_sums, layout.counts)
        return {"epoch_loss_sums": host_array(gathered)[: layout.num_virtual_ranks]}

    def restore_state(self, state: Mapping[str, Array]) -> None:
        """See `StepEngine.restore_state`."""
        layout = self.inputs.virtual_ranks
        if not layout.is_idle:
            set_values(self.loss_sums, state["epoch_loss_sums"][layout.owned.start : layout.owned.stop])


def narrow_wire(inputs: EngineInputs) -> NarrowWire | None:
    """Return the float16 format of sent gradients, scaled to the batch's mean; None without `fp16_allreduce`."""
    if not inputs.distributed.fp16_allreduce:
        return None
    import torch

    return NarrowWire(torch.float16, EXTRA_ENTRIES, 1 / inputs.plan.global_batch_size)
