"""torch's DistributedDataParallel and DataParallel over the backend of the ranks."""

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
    """Wrap `model` in DistributedDataParallel with the options of `settings`. Collective.

    The parameters must be the same on all ranks. The wrapper averages gradients over the ranks during the backward
    pass; with `fp16_allreduce` they are sent in half precision.
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
    """Free the wrappers that are kept alive only by reference cycles, before their process group is destroyed.

    If they are freed later, by a thread that waits for the GIL, the process hangs at exit.
    """
    if _wrappers:  # otherwise skip the full collection, which scans every object of the process
        gc.collect()


def _buffer_option(settings: DistributedSection) -> dict[str, Any]:
    """Return the argument that turns the broadcast of buffers off; {} if they are broadcast, torch's default."""
    if settings.broadcast_buffers:
        return {}
    # Newer releases of torch warn about the older name.
    names = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers": False}


def data_parallel(model: nn.Module) -> nn.Module:
    """Return `model` wrapped in DataParallel over all visible GPUs; `model` itself if there is at most one."""
    return DataParallel(model) if torch.cuda.device_count() > 1 else model
