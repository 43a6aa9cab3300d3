"""The fast engine of `standard` semantics: many steps in one call of a kernel compiled for the network.

V  virtual ranks      k  microbatches of this rank      b  rows a microbatch      n  parameters   F, O  inputs, targets
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from mpitrain.comm import Array, address_of
from mpitrain.comm.agent.position import waiting_in
from mpitrain.data.random_streams import Stream, keyed_words
from mpitrain.models import DenseModel
from mpitrain.train.compiled.addresses import (
    EpochAddresses,
    StepAddresses,
    addresses_of,
    batch_addresses,
    kept_if_few,
    packed,
)
from mpitrain.train.compiled.build import KernelNetwork
from mpitrain.train.compiled.node_sum import NodeSum, num_at_once, open_node_sum
from mpitrain.train.compiled.structs import KernelDraws, KernelStep
from mpitrain.train.compiled.vectors import KernelDigest, KernelOptimizer, KernelRunningStatistics, placed_zeros
from mpitrain.train.engines.contract import Spent, StepResult
from mpitrain.train.engines.standard import EXTRA_ENTRIES, EngineInputs, StandardEngine, narrow_wire

if TYPE_CHECKING:
    from mpitrain.models.convolutional.field_model import FieldModel

# A call ends after about a tenth of a second: no signal is handled and no progress is shown before.
MOST_STEPS_A_CALL = 1024
_MOST_PRODUCTS_A_CALL, _MOST_PRODUCTS_A_CALL_BY_SHARES = 2e8, 1e9
_PRODUCTS_A_WEIGHT = 3  # forward, gradient, and the layer below


class CompiledEngine(StandardEngine):
    """`StepEngine` with compiled forward and backward pass and optimiser; data and order are those of `EagerEngine`.

    The parameters of the model and the state of the optimiser are views of flat vectors that the kernel updates. The
    order of the sums within a microbatch depends on the microbatch only, so `reduction` "fixed" gives the same bits on
    any number of ranks; results agree with those of `EagerEngine` to rounding. With "any" a rank's microbatches are
    computed as one.
    """

    model: DenseModel | FieldModel
    optimizer: KernelOptimizer
    weights_digest: KernelDigest

    def __init__(self, inputs: EngineInputs, network: KernelNetwork, kernel: ctypes.CDLL) -> None:
        """`inputs.model`: a `DenseModel`, or a module (dense chain, cnn or unet) that then shares the memory."""
        module, self.model = inputs.model, _numbers_of(inputs.model)
        super().__init__(replace(inputs, model=self.model))
        self._kernel = kernel
        subtrees = self._rows_of_ranks()
        self._addresses = self._open_addresses()
        self.joins_microbatches = self._addresses.num_microbatches < len(
            inputs.batches
        )  # microbatches from files are never joined
        num_entries = len(self.optimizer.weights) + moment_length(self.model) + EXTRA_ENTRIES
        # One rank, or ranks with sums that the kernel computes, need nothing but the kernel in a step.
        self._node_sum: NodeSum | None = None
        self._is_self_contained = False
        if narrow_wire(inputs) is None:
            self._node_sum = open_node_sum(self.ranks, kernel, subtrees)
            self._is_self_contained = self._node_sum is not None or self.ranks.world_size == 1
        self._block_microbatches = self._microbatches_of_blocks(subtrees[self.ranks.rank])
        # After the row of a block there are at most as many sums of its subtrees as its tree has levels.
        num_rows = len(self._block_microbatches) + int(self._block_microbatches.max()).bit_length()
        partials = placed_zeros(num_rows * num_entries, self.model.dtype, 4)
        self._partials = partials.reshape(num_rows, num_entries)
        self._sent = self._partials[: len(self._block_microbatches)]
        self._most_steps = self._fitting_steps(network.num_points) if isinstance(self._addresses, EpochAddresses) else 1
        self._validation = [kept_if_few(source) for source in inputs.validation]
        self._losses = np.zeros(MOST_STEPS_A_CALL)
        self._loss_and_stop = np.zeros(2)
        self._describe_step()
        if module is not self.model:
            from mpitrain.models.dense_module import bind

            bind(module, self.model)

    def make_optimizer(self) -> KernelOptimizer:
        """See `StandardEngine.make_optimizer`."""
        return KernelOptimizer(self.model, self.training.optimizer)

    def make_weights_digest(self) -> KernelDigest:
        """See `StandardEngine.make_weights_digest`."""
        return KernelDigest()

    def _open_addresses(self) -> EpochAddresses | StepAddresses:
        return batch_addresses(self.step_microbatches, self.plan.microbatch_rows, self.joins_microbatches)

    def _rows_of_ranks(self) -> list[list[range]]:
        """Return the subtrees of the reduction tree that each rank adds up; with "any", one leaf for each rank."""
        if self.ranks.reduction == "any":
            return [[range(rank, rank + 1)] for rank in range(self.ranks.world_size)]
        return self.inputs.virtual_ranks.blocks

    def _microbatches_of_blocks(self, own: list[range]) -> Array:
        """Return the number of microbatches that are added in each of this rank's rows, int64."""
        layout, num_microbatches = self.inputs.virtual_ranks, self._addresses.num_microbatches
        if self.ranks.reduction == "any":
            counts = [num_microbatches]
        elif layout.is_idle:
            counts = [0]
        elif self._is_self_contained or layout.is_even:
            counts = [len(block) for block in own]
        else:  # the reducer adds up the microbatches
            counts = [1] * num_microbatches
        return np.array(counts, np.int64)

    def _fitting_steps(self, num_points: int) -> int:
        products = _PRODUCTS_A_WEIGHT * len(self.optimizer.weights) * num_points * self.global_batch_size
        # By shares each call ends with a gathering of moments, and a wide network's products are fast.
        most = _MOST_PRODUCTS_A_CALL_BY_SHARES if self._kernel.adds_by_shares() else _MOST_PRODUCTS_A_CALL
        return min(max(1, int(most * num_at_once(self.ranks) / products)), MOST_STEPS_A_CALL)

    def _describe_step(self) -> None:
        """Set the addresses and numbers in the kernel's `Step`; they do not change during a run."""
        # 64 more bytes to align the start: the workspace is read in whole vectors.
        self._workspace = np.zeros(self._kernel.workspace_bytes() + 64, dtype=np.uint8)
        self._statistics = statistics_of(self.model, self.inputs.target_weights)
        self._draws = KernelDraws(first_microbatch=self.inputs.virtual_ranks.owned.start)
        self._running = KernelRunningStatistics(self.model)
        optimizer, settings = self.optimizer, self.training.optimizer
        self._step = KernelStep(
            work=-(-address_of(self._workspace) // 64) * 64,
            parameters=address_of(optimizer.weights),
            statistics=address_of(self._statistics),
            addresses=address_of(self._addresses.table),
            partials=address_of(self._partials),
            epoch_sums=address_of(self.loss_sums),
            loss_and_stop=address_of(self._loss_and_stop),
            first_moment=address_of(optimizer.first_moment),
            second_moment=address_of(optimizer.second_moment),
            step_count=address_of(optimizer.step_count),
            average=address_of(optimizer.averaged) if self.average is not None else None,
            average_decay=self.training.average.decay if self.training.average is not None else 0.0,
            steps_done=ctypes.addressof(self.ranks.cpu.notes.steps_in_call),
            digest=self.weights_digest.address if self.ranks.world_size > 1 else None,
            draws=ctypes.addressof(self._draws),
            running=address_of(self._running.flat),
            block_microbatches=address_of(self._block_microbatches),
            microbatch_stride=self._addresses.microbatch_stride,
            num_blocks=len(self._block_microbatches),
            microbatch_rows=self._addresses.microbatch_rows,
            optimizer=settings.kernel,
            clip_norm=self.training.gradient_clip_norm or 0.0,
            **settings.kernel_numbers(),
        )
        self._step_address = ctypes.addressof(self._step)
        self.weights_digest.added_by(functools.partial(self._kernel.add_parameters_to_digest, self._step_address))

    def restart(self, renew: Callable[[EngineInputs], EngineInputs]) -> None:
        """Reset for another seed (one rank); the model's weights stay. Results are those of a new engine, bit for bit.

        `renew` returns the inputs with other settings and the same samples in memory, in another order.
        """
        # Release the orders of the last run before the new ones: each holds as many numbers as there are samples.
        self.inputs = replace(self.inputs, batches=())
        del self._addresses, self.step_microbatches
        self.inputs = renew(self.inputs)
        self.optimizer.forget()
        if self.average is not None:
            self.average.restart()
        self.open_microbatches()
        self._addresses = self._open_addresses()
        self._step.addresses = address_of(self._addresses.table)

    def start_epoch(self, epoch: int, first_step: int = 0) -> None:
        """See `StepEngine.start_epoch`."""
        super().start_epoch(epoch, first_step)
        self._draws.epoch_key = int(keyed_words((self.inputs.seed, Stream.STEP, epoch), 1)[0])

    def take_steps(self, first_step: int, num_steps: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """See `StepEngine.take_steps`. Collective."""
        # Samples from files are read here, before waiting for the other ranks.
        started_s = perf_counter()
        self._draws.step_in_epoch = first_step
        order = self._addresses.order_address(first_step)
        self.seconds_reading += perf_counter() - started_s
        if self.training.profile_training:
            return self._take_profiled_step(order, learning_rate, stop_requested)
        if not self._is_self_contained:
            self._kernel.sum_microbatches(self._step_address, order, stop_requested)
            return self._update(self.reducer.reduce(self._sent), learning_rate)
        shared = self._node_sum.address if self._node_sum is not None else None
        with waiting_in("take_steps", self.ranks.cpu.notes):
            num_taken = self._kernel.take_steps(
                self._step_address, shared, order, self._addresses.step_stride, min(num_steps, self._most_steps),
                stop_requested, learning_rate, address_of(self._losses),
            )  # fmt: skip
            if self._node_sum is not None:
                self._node_sum.check(num_taken)
        self._running.count(num_taken)
        return StepResult(self._losses[:num_taken].tolist(), bool(self._loss_and_stop[1] > 0))

    def spent(self) -> Spent:
        """See `StepEngine.spent`."""
        return Spent(self.seconds_reading, *(self._node_sum.seconds() if self._node_sum is not None else ()))

    def _update(self, total: Array, learning_rate: float) -> StepResult:
        self._kernel.apply_sum(self._step_address, address_of(total), learning_rate)
        self._running.count(1)
        loss, stop_flags = self._loss_and_stop.tolist()
        return StepResult([loss], stop_flags > 0)

    def _take_profiled_step(self, order: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """Take one step in separate calls, so that each part has a name in the profile. Collective."""
        from torch.profiler import record_function

        from mpitrain.train.engines.profiled import allreduce_name

        number = self._addresses.num_microbatches
        with record_function(f"forward and backward, {number} microbatch{'es' * (number != 1)} (compiled)"):
            self._kernel.sum_microbatches(self._step_address, order, stop_requested)
        total = self._partials if self._is_self_contained else self.reducer.reduce(self._sent)
        if self._node_sum is not None:
            num_bytes = self._partials.shape[1] * self._partials.itemsize
            carrier = "the node's shared memory" + (" and MPI" if self.ranks.num_nodes > 1 else "")
            with record_function(allreduce_name(num_bytes, carrier, self.ranks.reduction)):
                self._node_sum.check(self._kernel.add_shared(self._step_address, self._node_sum.address))
        with record_function(f"{self.training.optimizer.name} (compiled)"):
            return self._update(total, learning_rate)

    def sum_validation_losses(self) -> Array:
        """See `StandardEngine.sum_validation_losses`."""
        sums = np.zeros((len(self._validation), 2))
        for row, own in zip(sums, self._validation, strict=True):
            for block in map(packed, own.blocks()):
                samples = (ctypes.c_void_p * 3)(*addresses_of(block))
                self._kernel.add_losses(self._step_address, samples, len(block.inputs), address_of(row))
        return sums

    def close(self) -> None:
        """See `StepEngine.close`. Collective."""
        if self._node_sum is not None:
            self._node_sum.close()
            self._node_sum = None


def _numbers_of(model: Any) -> DenseModel | FieldModel:
    if isinstance(model, DenseModel):
        return model
    from mpitrain.models import dense_of
    from mpitrain.models.convolutional.field_model import field_model_of

    found = dense_of(model) or field_model_of(model)
    if found is None:
        raise TypeError(f"{type(model).__name__} is neither a chain of dense layers nor a cnn or unet")
    return found


def moment_length(model: DenseModel | FieldModel) -> int:
    """Return the number of batch norm's sums in a microbatch's row: 1 + 2 C for each layer that has it."""
    return sum(1 + 2 * size for size in model.norm_sizes)


def statistics_of(model: DenseModel | FieldModel, target_weights: tuple[float, ...]) -> Array:
    """Return the statistics of inputs and targets, the targets' weights, and the sum of the weights (2F + 3O + 1,)."""
    mean = model.buffers.get("output_mean", np.zeros(model.num_outputs, model.dtype))
    std = model.buffers.get("output_std", np.ones(model.num_outputs, model.dtype))
    weights = np.array(target_weights, model.dtype) if target_weights else np.ones_like(std)
    inputs = model.buffers["input_mean"], model.buffers["input_std"]
    return np.concatenate([*inputs, mean, std, weights, _sum_of(weights)])


def _sum_of(weights: Array) -> Array:
    """Return the sum (1,) of weights (O,) by four interleaved partial sums, for the same bits as earlier versions."""
    whole = len(weights) // 4 * 4
    sums = np.zeros(4, weights.dtype)
    for four in weights[:whole].reshape(-1, 4):
        sums += four
    for one in weights[whole:]:
        sums[0] += one
    return (((sums[0] + sums[1]) + sums[2]) + sums[3]).reshape(1)
