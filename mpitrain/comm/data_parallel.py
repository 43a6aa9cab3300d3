"""torch's own data parallelism over the backend of the ranks."""

from __future__ import annotations

import gc
import inspect
import weakref
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DataParallel, DistributedDataParallel

from mpitrain.comm.ranks import Ranks
from mpitrain.config import DistributedSection

_wrappers: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def distributed_data_parallel(model: nn.Module, ranks: Ranks, settings: DistributedSection) -> DistributedDataParallel:
    """Wrap `model`, whose parameters must agree on all ranks, with the options of `settings`. Collective.

    The wrapper averages gradients over the ranks during the backward pass; with `fp16_allreduce` they travel in half
    precision.
    """
    wrapped = DistributedDataParallel(
        model,
        **_buffer_option(settings),
        bucket_cap_mb=settings.bucket_cap_mb,
        find_unused_parameters=settings.find_unused_parameters,
        gradient_as_bucket_view=settings.gradient_as_bucket_view,
        static_graph=settings.static_graph,
    )
    if settings.fp16_allreduce:
        wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    _wrappers.add(wrapped)
    return wrapped


def free_wrappers() -> None:
    """Free the wrappers that only cycles keep alive, before their group ends.

    Freed later, by a thread that waits for Python's lock, they hang a process at its exit.
    """
    if _wrappers:  # else there is nothing to look for, in all that a process has made
        gc.collect()


def _buffer_option(settings: DistributedSection) -> dict[str, Any]:
    """Return the argument that keeps each rank's buffers its own; none where they are broadcast, torch's default."""
    if settings.broadcast_buffers:
        return {}
    # Newer releases of torch warn of the older name.
    names = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False}


def data_parallel(model: nn.Module) -> nn.Module:
    """Return `model` spread over all GPUs that this process sees; itself where there is at most one."""
    return DataParallel(model) if torch.cuda.device_count() > 1 else model
