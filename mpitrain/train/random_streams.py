"""The random numbers of a training step: one stream for each virtual rank and step, all from one seed."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from mpitrain.comm import Device
from mpitrain.data.random_streams import Stream, keyed_words


def seed_stream(seed: int, epoch: int, step_in_epoch: int, virtual_rank: int, part: int = 0) -> None:
    """Seed torch's random state for one microbatch, for dropout for example: the same on any rank."""
    word = int(keyed_words((seed, Stream.STEP, epoch, step_in_epoch, virtual_rank, part), 1)[0])
    torch.manual_seed(word >> 1)  # torch's seeds have 63 bits


def kept_random_state(device: Device, is_changed: bool) -> AbstractContextManager[None]:
    """Return a context that restores torch's random state at its end, if `is_changed`; otherwise an empty one."""
    if not is_changed:
        return nullcontext()
    return torch.random.fork_rng([device] if device.type == "cuda" else [])
