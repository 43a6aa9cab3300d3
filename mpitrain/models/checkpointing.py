"""Gradient checkpointing: a block keeps its inputs only, and computes itself again in the backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mpitrain.models.normalized import NormalizedModel


def apply_gradient_checkpointing(model: nn.Module) -> None:
    """Make the model's blocks (the whole forward pass where it knows none) compute their activations twice.

    Names of parameters and results stay as they are; dropout draws the same numbers again.
    """
    for block in model.checkpoint_blocks() if isinstance(model, NormalizedModel) else [model]:
        if not isinstance(block.__dict__.get("forward"), _Checkpointed):
            block.forward = _Checkpointed(block.forward)


def remove_gradient_checkpointing(model: nn.Module) -> None:
    """Undo `apply_gradient_checkpointing`."""
    for module in model.modules():
        if isinstance(module.__dict__.get("forward"), _Checkpointed):
            del module.forward


class _Checkpointed:
    """A block's forward pass that forgets. Copies with its block: a deep copy's block is the copy's own."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*inputs, **options)
        return checkpoint(self._forward, *inputs, use_reentrant=False, **options)
