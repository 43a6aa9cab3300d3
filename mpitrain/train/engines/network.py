"""What an engine calls for a forward pass: the model, as the settings wrap it."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from mpitrain.comm.data_parallel import data_parallel
from mpitrain.models.checkpointing import apply_gradient_checkpointing
from mpitrain.train.engines.standard import EngineInputs


def network_of(inputs: EngineInputs) -> nn.Module:
    """Return the module to call: the model itself, compiled, checkpointed or spread over GPUs as configured."""
    training = inputs.config.training
    if training.gradient_checkpointing:
        apply_gradient_checkpointing(inputs.model)
    model = inputs.model
    if inputs.config.distributed.strategy == "dp":
        model = data_parallel(model)
    if training.torch_compile:
        # Only a wrapper is made here; the compiler runs with the first step.
        model = cast(nn.Module, cast(Any, torch.compile)(model))
    return model
