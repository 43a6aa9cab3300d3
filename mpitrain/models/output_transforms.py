"""Inverse of the target transforms, the last part of a model: from transformed targets to physical units.

b  samples      O  outputs
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# No `from __future__ import annotations`: TorchScript needs the types of the attributes, not their names.
import torch
from torch import nn

from mpitrain.config import TargetTransform


class OutputInverse(nn.Module):
    """Inverse transform of each output: e^y, logistic(y), max(y, 0)^(1 / exponent), or y itself without a transform.

    `is_applied` is False during training, because losses are computed on transformed targets. It is True in files.
    """

    def __init__(self, transforms: Sequence[TargetTransform | None]) -> None:
        super().__init__()
        self.transforms = [(one.kind, one.exponent) if one is not None else ("", 1.0) for one in transforms]
        self.is_applied = True

    def extra_repr(self) -> str:
        """Return the transforms, so that the text of a model includes them."""
        return str(self.transforms)

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return `outputs` (b, O, ...) in physical units; unchanged while `is_applied` is False."""
        if not self.is_applied:
            return outputs
        columns: list[torch.Tensor] = []
        for number, (kind, exponent) in enumerate(self.transforms):
            column = outputs.select(1, number)
            if kind == "log":
                column = torch.exp(column)
            elif kind == "logit":
                column = torch.sigmoid(column)
            elif kind == "power":
                column = torch.clamp(column, min=0.0) ** (1.0 / exponent)
            columns.append(column)
        return torch.stack(columns, dim=1)


def find_inverse(model: nn.Module) -> OutputInverse | None:
    """Return the model's inverse of the target transforms; None if no target is transformed."""
    inverse = getattr(model, "inverse", None)
    return inverse if isinstance(inverse, OutputInverse) else None


def transforms_of(model: nn.Module) -> list[TargetTransform | None]:
    """Return the transform of each target, None for no transform; [] if no target is transformed."""
    inverse = find_inverse(model)
    pairs = [] if inverse is None else inverse.transforms
    return [TargetTransform(kind, exponent) if kind else None for kind, exponent in pairs]  # type: ignore[arg-type]


def output_transformed_targets(model: nn.Module) -> None:
    """Make the model return transformed targets, for training."""
    _apply(model, False)


def output_physical_units(model: nn.Module) -> None:
    """Make the model return physical units, as in its files."""
    _apply(model, True)


def physical_targets(model: nn.Module, targets: torch.Tensor) -> torch.Tensor:
    """Convert transformed targets (b, O, ...) to physical units."""
    inverse = find_inverse(model)
    if inverse is None:
        return targets
    with physical_outputs(model):
        physical: torch.Tensor = inverse(targets)
    return physical


@contextmanager
def physical_outputs(model: nn.Module) -> Iterator[None]:
    """Make the model return physical units within the context, and restore its state afterwards.

    Parameters
    ----------
    model : torch.nn.Module
        A model in training returns transformed targets (`model.output_transforms`). Nothing changes if no target is
        transformed.
    """
    inverse = find_inverse(model)
    before = inverse is None or inverse.is_applied
    _apply(model, True)
    try:
        yield
    finally:
        _apply(model, before)


def _apply(model: nn.Module, is_applied: bool) -> None:
    inverse = find_inverse(model)
    if inverse is not None:
        inverse.is_applied = is_applied
