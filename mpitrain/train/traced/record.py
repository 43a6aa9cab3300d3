"""Whether a run's steps can be recorded: its settings first, then what the network does."""

from __future__ import annotations

from torch import nn

from mpitrain.comm import Device, Ranks
from mpitrain.data import Microbatch
from mpitrain.models import batch_norm_layers
from mpitrain.train.needs import EngineRequest
from mpitrain.train.traced.gradient import NotTraceableError, TracedGradient


def record_gradient(
    request: EngineRequest, ranks: Ranks, model: nn.Module, example: Microbatch, target_weights: tuple[float, ...] = ()
) -> TracedGradient | str:
    """Return the recorded gradient, or what is in the way on some rank, the same on all. Collective."""
    if (lacking := _not_traceable(request, ranks.device, model)) is not None:
        return lacking
    recorded: TracedGradient | str
    try:
        recorded = TracedGradient(model, request.training.loss_function, example, target_weights)
    except NotTraceableError as error:
        recorded = f"the network cannot be traced: {error}"
    found = ranks.gather_object(recorded if isinstance(recorded, str) else None)
    return next(filter(None, found), recorded)


def _not_traceable(request: EngineRequest, device: Device, model: nn.Module) -> str | None:
    """Say what the traced step lacks for this run, whatever the network's forward does; None where it serves."""
    if (obstacle := request.needs_autograd(device)) is not None:
        return obstacle
    if request.training.gradient_accumulation_steps > 1:
        return "training.gradient_accumulation_steps needs autograd"
    return "batch norm adds up over the microbatches" if batch_norm_layers(model) else None
