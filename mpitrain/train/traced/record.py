"""Whether a run's steps can be recorded: its settings first, then what the network does."""

from __future__ import annotations

import torch
from torch import nn

from mpitrain.comm.ranks import Ranks
from mpitrain.config import RunConfig
from mpitrain.data.dataset.batches import Slice
from mpitrain.models.batch_norm import batch_norm_layers
from mpitrain.train.traced.gradient import NotTraceableError, TracedGradient


def record_gradient(
    config: RunConfig, ranks: Ranks, model: nn.Module, example: Slice, target_weights: tuple[float, ...] = ()
) -> TracedGradient | str:
    """Return the recorded gradient, or what is in the way on some rank, the same on all. Collective."""
    if (lacking := _not_traceable(config, ranks.device, model)) is not None:
        return lacking
    recorded: TracedGradient | str
    try:
        recorded = TracedGradient(model, config.training.loss_function, example, target_weights)
    except NotTraceableError as error:
        recorded = f"the network cannot be traced: {error}"
    found = ranks.gather_object(recorded if isinstance(recorded, str) else None)
    return next(filter(None, found), recorded)


def _not_traceable(config: RunConfig, device: torch.device, model: nn.Module) -> str | None:
    """Say what the traced step lacks for this run, whatever the network's forward does; None where it serves."""
    if (obstacle := needs_autograd(config, device)) is not None:
        return obstacle
    if config.training.gradient_accumulation_steps > 1:
        return "training.gradient_accumulation_steps is autograd's"
    return "batch norm adds up over the microbatches" if batch_norm_layers(model) else None


def needs_autograd(config: RunConfig, device: torch.device) -> str | None:
    """Say which setting only autograd can follow; None where there is none."""
    if device.type != "cpu":
        return "compiled steps run on CPUs"
    for key in ("use_amp", "torch_compile", "gradient_checkpointing"):
        if getattr(config.training, key):
            return f"training.{key}=true is autograd's"
    if config.distributed.strategy == "dp":
        return "distributed.strategy=dp is autograd's"
    return None
