"""The engine with torch's DistributedDataParallel: gradients are averaged while the backward pass still runs.

P  ranks      W  weight of the whole batch
"""

from __future__ import annotations

import functools
from contextlib import nullcontext

import torch

from mpitrain.comm import Reducer
from mpitrain.comm.data_parallel import distributed_data_parallel
from mpitrain.comm.reduction import LibraryReducer
from mpitrain.data import Microbatch
from mpitrain.data.dataset.batches import split_microbatch
from mpitrain.errors import ConfigError
from mpitrain.train.engines.autograd import AutogradEngine
from mpitrain.train.engines.contract import StepResult
from mpitrain.train.engines.standard import EngineInputs
from mpitrain.train.random_streams import kept_random_state


class DdpEngine(AutogradEngine):
    """`StepEngine` with DistributedDataParallel, options from the section `distributed`; reduction "any" only."""

    def __init__(self, inputs: EngineInputs) -> None:
        super().__init__(inputs)
        self.joins_microbatches = True
        self.shares_running_statistics = self._batch_norm.is_synchronised
        self._network = distributed_data_parallel(self._network, self.ranks, inputs.distributed)
        self._batch_norm_sums = self.parameters[0].new_zeros(self._batch_norm.num_sums)
        # torch records a static graph in the first backward pass, which must be one that reduces gradients.
        self._sends_each_part = inputs.distributed.static_graph
        self._weight_and_stop, self._loss = (
            torch.zeros(count, dtype=torch.float64, device=self.ranks.device) for count in (2, 1)
        )

    def make_reducer(self) -> Reducer:
        """See `StandardEngine.make_reducer`: for synchronised batch norm only; DDP reduces the gradients."""
        return LibraryReducer(self.ranks.tensors)

    def take_steps(self, first_step: int, num_steps: int, learning_rate: float, stop_requested: bool) -> StepResult:
        """See `StepEngine.take_steps`: one step. Collective."""
        microbatch = self.joined_microbatch(first_step)
        self.weights_digest.add_in_step()
        weight, stop_flags = self._agree_on_weight(microbatch, stop_requested)
        # Gradients that are views of DDP's buckets must be zeroed in place, not released.
        self.optimizer.zero_grad(set_to_none=not self.inputs.distributed.gradient_as_bucket_view)
        with kept_random_state(self.ranks.device, self._draws_numbers):
            self._loss[0] = self._accumulate(microbatch, first_step, weight)
        self.loss_sums[0] += torch.cat([self._loss, self._local_weight(microbatch)])
        self.ranks.all_reduce(self._loss)
        self._fill_missing_gradients()
        self._update(learning_rate, functools.partial(torch.nn.utils.clip_grad_norm_, self.parameters))
        return StepResult([float(self._loss) / weight], stop_flags > 0)

    def _agree_on_weight(self, microbatch: Microbatch, stop_requested: bool) -> tuple[float, float]:
        """Return W and the number of ranks that request a stop. Collective."""
        self._weight_and_stop[:1] = self._local_weight(microbatch)
        self._weight_and_stop[1] = float(stop_requested)
        self.ranks.all_reduce(self._weight_and_stop)
        weight, stop_flags = self._weight_and_stop.tolist()
        return weight, stop_flags

    def _local_weight(self, microbatch: Microbatch) -> torch.Tensor:
        weights = self.loss.weights_of(microbatch)
        targets: torch.Tensor = microbatch.targets
        spread = targets.numel() // max(weights.numel(), 1)
        return weights.sum(dtype=torch.float64).view(1) * spread

    def _accumulate(self, microbatch: Microbatch, step_in_epoch: int, weight: float) -> float:
        """Run forward and backward over the parts of `microbatch`; return the sum of its losses. Collective."""
        parts = split_microbatch(microbatch, self.training.gradient_accumulation_steps)
        losses: list[float] = []
        self._batch_norm_sums.zero_()
        for number, part in enumerate(parts):
            self._seed(microbatch, step_in_epoch, number)
            # Gradients are reduced once, in the last part; reducing them in each part gives the same sum.
            sends = self._sends_each_part or number == len(parts) - 1
            with nullcontext() if sends else self._network.no_sync():
                self._batch_norm.run([functools.partial(self._pass, part, weight, losses)])
        self._sends_each_part = False
        self._update_running_statistics()
        return sum(losses)

    def _pass(self, part: Microbatch, weight: float, losses: list[float]) -> None:
        with self._batch_norm.microbatch(0, part):
            loss_sum, _, sums = self._sums(part)
            self._batch_norm_sums += sums
            # DDP divides gradients by P; the mean over the batch needs a division by W instead.
            mean = loss_sum * (self.ranks.world_size / weight)
            self._precision.scaled(mean).backward()
        losses.append(float(loss_sum.detach()))

    def _update_running_statistics(self) -> None:
        # As usual with DDP, each rank keeps its own; `broadcast_buffers` copies those of the root. Synchronised moments
        # are taken about the running mean, which must then be the same on all ranks.
        if self._batch_norm.is_synchronised:
            self.ranks.all_reduce(self._batch_norm_sums)
        self._batch_norm.update(self._batch_norm_sums)

    def validation_loss(self) -> float | None:
        """See `StepEngine.validation_loss`. Collective."""
        # DistributedDataParallel broadcasts buffers only before forward passes in training mode.
        if self.inputs.distributed.broadcast_buffers:
            for buffer in self.inputs.model.buffers():
                self.ranks.tensors.broadcast(buffer)
        return super().validation_loss()

    def _outputs(self, part: Microbatch) -> torch.Tensor:
        try:
            return super()._outputs(part)
        except RuntimeError as error:
            if "finished reduction in the prior iteration" in str(error):
                raise _unused_error("some parameters") from error
            raise

    def _fill_missing_gradients(self) -> None:
        """Set the gradient of parameters that no rank used to 0, as in other engines.

        Raises ConfigError if DDP was not set to expect unused parameters. With `gradient_as_bucket_view` no gradient is
        missing: DDP itself then raises in the next step.
        """
        options = self.inputs.distributed
        missing = {
            name: one for name, one in self.inputs.model.named_parameters() if one.requires_grad and one.grad is None
        }
        if missing and not (options.find_unused_parameters or options.static_graph):
            raise _unused_error(" ".join(missing))
        for parameter in missing.values():
            parameter.grad = torch.zeros_like(parameter)


def _unused_error(names: str) -> ConfigError:
    return ConfigError(
        f"distributed.find_unused_parameters=false: {names} did not contribute to this step's loss; set it to true, or "
        "use every parameter in each step"
    )
