"""Base of the engines that use autograd: the wrapped network, its precision, batch norm and randomness, the update.

m  sums of batch norm
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import nn

from mpitrain.comm.data_parallel import data_parallel
from mpitrain.data import Microbatch
from mpitrain.models.build import random_layers
from mpitrain.models.checkpointing import apply_gradient_checkpointing
from mpitrain.train.engines.batch_norm import MicrobatchBatchNorm
from mpitrain.train.engines.precision import Precision
from mpitrain.train.engines.standard import EngineInputs
from mpitrain.train.engines.torch_engine import TorchEngine
from mpitrain.train.engines.weights_digest import CrcOfWeights
from mpitrain.train.random_streams import seed_stream


class AutogradEngine(TorchEngine):
    """The part of `StepEngine` that is the same whether the engine or DistributedDataParallel adds up gradients."""

    weights_digest: CrcOfWeights

    def __init__(self, inputs: EngineInputs) -> None:
        super().__init__(inputs)
        self._precision = Precision(inputs.training, self.ranks.device)
        self._network: Any = wrapped_network(inputs)
        self._draws_numbers = random_layers(inputs.model)
        self._batch_norm = MicrobatchBatchNorm(inputs, self.reducer)

    def _seed(self, microbatch: Microbatch, step_in_epoch: int, part_number: int) -> None:
        """Seed torch's random state for a part of a microbatch."""
        if self._draws_numbers:
            seed_stream(self.inputs.seed, self.epoch, step_in_epoch, microbatch.virtual_rank, part_number)

    def _sums(self, part: Microbatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run the network; return the sums of its losses and of their weights, scalars, and batch norm's sums (m,)."""
        outputs = self._outputs(part)
        sums = self._batch_norm.take_sums()
        return *self.loss.sums(outputs.to(part.targets.dtype), part), sums

    def _outputs(self, part: Microbatch) -> torch.Tensor:
        with self._precision.forward():
            outputs: torch.Tensor = self._network(part.inputs)
        return outputs

    def _update(self, learning_rate: float, clip: Callable[[float], Any]) -> None:
        """Take an optimiser step with the parameters' gradients, the same on all ranks; `clip` limits their norm."""
        optimizer, scaler, largest = self.optimizer, self._precision.scaler, self.training.gradient_clip_norm
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        scaler.unscale_(optimizer)  # before clipping: the limit is for the unscaled norm
        if largest is not None:
            clip(largest)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:  # a smaller scale means that the step was skipped
            self.update_average()

    def gather_state(self) -> dict[str, torch.Tensor]:
        """See `StepEngine.gather_state`: the epoch's sums, and the loss scale of float16. Collective."""
        return super().gather_state() | self._precision.state()

    def restore_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """See `StepEngine.restore_state`."""
        super().restore_state(state)
        self._precision.restore(state.get("loss_scale"))


def wrapped_network(inputs: EngineInputs) -> nn.Module:
    """Return the module to call: the model with gradient checkpointing, DataParallel or torch.compile as configured."""
    training = inputs.training
    model: nn.Module = inputs.model
    if training.gradient_checkpointing:
        apply_gradient_checkpointing(model)
    if inputs.distributed.strategy == "dp":
        model = data_parallel(model)
    if training.torch_compile:
        # This only wraps the model; it is compiled in the first step.
        model = cast(nn.Module, cast(Any, torch.compile)(model))
    return model
