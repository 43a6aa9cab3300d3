"""The fast engine of `standard` semantics: many steps in one call of a kernel compiled for the network.

V  virtual ranks      k  slices of this rank      b  rows a slice      n  parameters      F, O  inputs and targets
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch
from torch.profiler import record_function

from mpitrain.comm.watch.notes import waiting_in
from mpitrain.config import RunConfig
from mpitrain.data.dataset.batches import SliceSource
from mpitrain.data.random_streams import Stream, keyed_words
from mpitrain.models.batch_norm import moment_length
from mpitrain.train.compiled.addresses import (
    EpochAddresses,
    StepAddresses,
    addresses_of,
    batch_addresses,
    kept_if_few,
    packed,
)
from mpitrain.train.compiled.build import DenseNetwork
from mpitrain.train.compiled.node_sum import NodeSum, num_at_once, open_node_sum
from mpitrain.train.compiled.optimizer import KernelOptimizer
from mpitrain.train.compiled.running_statistics import KernelRunningStatistics
from mpitrain.train.compiled.structs import Combination, KernelDraws, KernelStep, OptimizerKind
from mpitrain.train.compiled.weights_digest import KernelDigest
from mpitrain.train.engines.contract import Spent, StepResult
from mpitrain.train.engines.profiled import allreduce_name
from mpitrain.train.engines.standard import EXTRA_ENTRIES, EngineInputs, StandardEngine, narrow_wire

# A call ends after about a tenth of a second: until then no signal is heard, and no progress shown.
MOST_STEPS_A_CALL = 1024
_MOST_PRODUCTS_A_CALL = 2e8
_PRODUCTS_A_WEIGHT = 3  # forward, gradient, and the layer below


class CompiledEngine(StandardEngine):
    """`StepEngine` whose forward, backward and optimiser are compiled; data and order are those of `EagerEngine`.

    The parameters of the model and the state of the optimiser are views of flat vectors that the kernel updates. Each
    slice's sums run in an order that the slice alone fixes, so `reduction` "fixed" gives the same bits on any number of
    ranks; against `EagerEngine` results agree to rounding. With "any" a rank's slices are one.
    """

    optimizer: KernelOptimizer
    weights_digest: KernelDigest

    def __init__(self, inputs: EngineInputs, network: DenseNetwork, kernel: ctypes.CDLL) -> None:
        super().__init__(inputs)
        self._kernel, layout = kernel, inputs.virtual_ranks
        # Where the layout is uneven every partial travels; else a rank's subtree, or its plain sum, is one row.
        gathers = not self.joins_slices and not layout.is_even
        self._addresses = self._open_addresses()
        self.joins_slices = self._addresses.num_slices < len(inputs.batches)  # slices from files are never joined
        num_entries = len(self.optimizer.weights) + moment_length(inputs.model) + EXTRA_ENTRIES
        self._partials = self.optimizer.weights.new_zeros((self._addresses.num_slices, num_entries))
        self._sent = self._partials if gathers else self._partials[:1]
        # One rank, or ranks that the kernel adds up, need nothing from outside of it during a step.
        self._node_sum: NodeSum | None = None
        self._is_self_contained = False
        if narrow_wire(inputs) is None:
            self._node_sum = open_node_sum(self.ranks, kernel, layout, gathers)
            self._is_self_contained = self._node_sum is not None or self.ranks.world_size == 1
        self._most_steps = self._fitting_steps() if isinstance(self._addresses, EpochAddresses) else 1
        self._validation = [kept_if_few(source) for source in inputs.validation]
        self._losses = torch.zeros(MOST_STEPS_A_CALL, dtype=torch.float64)
        self._loss_and_stop = torch.zeros(2, dtype=torch.float64)
        self._describe_step(network, Combination.none if gathers else Combination.tree)

    def make_optimizer(self) -> KernelOptimizer:
        """See `StandardEngine.make_optimizer`."""
        return KernelOptimizer(self.parameters, self.training.optimizer)

    def make_weights_digest(self) -> KernelDigest:
        """See `StandardEngine.make_weights_digest`."""
        return KernelDigest()

    def _open_addresses(self) -> EpochAddresses | StepAddresses:
        return batch_addresses(self.step_slices, self.plan.slice_rows, self.joins_slices)

    def _fitting_steps(self) -> int:
        products = _PRODUCTS_A_WEIGHT * len(self.optimizer.weights) * self.global_batch_size
        return min(max(1, int(_MOST_PRODUCTS_A_CALL * num_at_once(self.ranks) / products)), MOST_STEPS_A_CALL)

    def _describe_step(self, network: DenseNetwork, combination: Combination) -> None:
        """Tell the kernel all addresses and numbers, which do not change in a run, once."""
        # An aligned start, for the workspace is read in whole vectors.
        self._workspace = torch.zeros(self._kernel.workspace_bytes() + 64, dtype=torch.uint8)
        self._statistics = _statistics_of(self.inputs.model, network.sizes[-1], self.inputs.target_weights)
        self._draws = KernelDraws(first_microbatch=self.inputs.virtual_ranks.owned.start)
        self._running = KernelRunningStatistics(self.inputs.model)
        optimizer, settings = self.optimizer, self.training.optimizer
        self._step = KernelStep(
            work=-(-self._workspace.data_ptr() // 64) * 64,
            parameters=optimizer.weights.data_ptr(),
            statistics=self._statistics.data_ptr(),
            addresses=self._addresses.table.data_ptr(),
            partials=self._partials.data_ptr(),
            epoch_sums=self.loss_sums.data_ptr(),
            loss_and_stop=self._loss_and_stop.data_ptr(),
            first_moment=optimizer.first_moment.data_ptr(),
            second_moment=optimizer.second_moment.data_ptr(),
            step_count=optimizer.step_count.data_ptr(),
            steps_done=ctypes.addressof(self.ranks.cpu.notes.steps_in_call),
            digest=self.weights_digest.address if self.ranks.world_size > 1 else None,
            draws=ctypes.addressof(self._draws),
            running=self._running.flat.data_ptr(),
            slice_stride=self._addresses.slice_stride,
            num_slices=self._addresses.num_slices,
            slice_rows=self._addresses.slice_rows,
            combination=combination,
            optimizer=OptimizerKind.of(settings.type),
            clip_norm=self.training.gradient_clip_norm or 0.0,
            beta1=settings.beta1,
            beta2=settings.beta2,
            epsilon=settings.epsilon,
            weight_decay=settings.weight_decay,
            momentum=settings.momentum,
        )
        self._step_address = ctypes.addressof(self._step)
        self.weights_digest.added_by(functools.partial(self._kernel.add_parameters_to_digest, self._step_address))

    def restart(self, config: RunConfig, open_batches: Callable[[], Sequence[SliceSource]]) -> None:
        """Begin a run of another seed, of one rank, whose first weights are in the model: the bits of an engine anew.

        `open_batches` returns those of the same samples in memory, in another order.
        """
        # The orders of the last run go first: each of them holds as many numbers as there are samples.
        self.inputs = replace(self.inputs, config=config, batches=())
        del self._addresses, self.step_slices
        self.inputs = replace(self.inputs, batches=open_batches())
        self.optimizer.forget()
        self.open_slices()
        self._addresses = self._open_addresses()
        self._step.addresses = self._addresses.table.data_ptr()

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """See `StepEngine.start_epoch`."""
        super().start_epoch(epoch, first_step)
        self._draws.epoch_key = int(keyed_words((self.inputs.config.seed, Stream.STEP, epoch), 1)[0])

    def take_steps(self, first_step: int, num_steps: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """See `StepEngine.take_steps`. Collective."""
        # From files: read before the others are waited for.
        started_s = perf_counter()
        self._draws.step_in_epoch = first_step
        order = self._addresses.order_address(first_step)
        self.seconds_reading += perf_counter() - started_s
        if self.training.profile_training:
            return self._take_profiled_step(order, learning_rate, stop_requested)
        if not self._is_self_contained:
            return self._take_one_step(order, learning_rate, stop_requested)
        shared = self._node_sum.address if self._node_sum is not None else None
        with waiting_in("take_steps", self.ranks.cpu.notes):
            num_taken = self._kernel.take_steps(
                self._step_address, shared, order, self._addresses.step_stride, min(num_steps, self._most_steps),
                stop_requested, learning_rate, self._losses.data_ptr(),
            )  # fmt: skip
            if self._node_sum is not None:
                self._node_sum.check(num_taken)
        self._running.count(num_taken)
        return StepResult(self._losses[:num_taken].tolist(), bool(self._loss_and_stop[1] > 0))

    def spent(self) -> Spent:
        """See `StepEngine.spent`."""
        return Spent(self.seconds_reading, *(self._node_sum.seconds() if self._node_sum is not None else ()))

    def _take_one_step(self, order: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """Take a step whose sums travel as messages. Collective."""
        self._kernel.sum_slices(self._step_address, order, stop_requested)
        return self._update(self.reducer.reduce(self._sent), learning_rate)

    def _update(self, total: torch.Tensor, learning_rate: float) -> StepResult:
        self._kernel.apply_sum(self._step_address, total.data_ptr(), learning_rate)
        self._running.count(1)
        loss, stop_flags = self._loss_and_stop.tolist()
        return StepResult([loss], stop_flags > 0)

    def _take_profiled_step(self, order: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """Take the same step, its parts one by one, so that each has a name in the profile. Collective."""
        with record_function(f"forward and backward, {self._addresses.num_slices} microbatches (compiled)"):
            self._kernel.sum_slices(self._step_address, order, stop_requested)
        total = self._partials if self._is_self_contained else self.reducer.reduce(self._sent)
        if self._node_sum is not None:
            num_bytes = self._partials.shape[1] * self._partials.element_size()
            carrier = "the node's shared memory" + (" and MPI" if self.ranks.num_nodes > 1 else "")
            with record_function(allreduce_name(num_bytes, carrier, self.ranks.reduction)):
                self._node_sum.check(self._kernel.add_shared(self._step_address, self._node_sum.address))
        with record_function(f"{self.training.optimizer.type} (compiled)"):
            return self._update(total, learning_rate)

    def sum_validation_losses(self) -> torch.Tensor:
        """See `StandardEngine.sum_validation_losses`."""
        sums = torch.zeros((len(self._validation), 2), dtype=torch.float64)
        for row, own in zip(sums, self._validation, strict=True):
            for block in map(packed, own.blocks()):
                samples = (ctypes.c_void_p * 3)(*addresses_of(block))
                self._kernel.add_losses(self._step_address, samples, len(block.inputs), row.data_ptr())
        return sums

    def close(self) -> None:
        """See `StepEngine.close`. Collective."""
        if self._node_sum is not None:
            self._node_sum.close()
            self._node_sum = None


def _statistics_of(model: Any, num_outputs: int, target_weights: tuple[float, ...]) -> torch.Tensor:
    """Return what normalises inputs and targets, the targets' weights, and the sum of these (2F + 3O + 1,)."""
    mean = getattr(model, "output_mean", model.input_mean.new_zeros(num_outputs))
    std = getattr(model, "output_std", model.input_std.new_ones(num_outputs))
    weights = std.new_tensor(target_weights) if target_weights else torch.ones_like(std)
    return torch.cat([model.input_mean, model.input_std, mean, std, weights, weights.sum().view(1)]).detach()
