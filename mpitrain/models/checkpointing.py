"""Gradient checkpointing: a block stores only its inputs; the backward pass recomputes its activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mpitrain.models.normalized import NormalizedModel


def apply_gradient_checkpointing(model: nn.Module) -> None:
    """Let the model's blocks recompute their activations in the backward pass; a model without blocks is one block.

    Parameter names and results do not change; dropout draws the same numbers in the recomputation.
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
    """Forward pass of a block without stored activations. A deep copy of a block refers to the copied block."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*inputs, **options)
        return checkpoint(self._forward, *inputs, use_reentrant=False, **options)
