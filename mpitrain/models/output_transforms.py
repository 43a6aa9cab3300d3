"""From what a network has learnt in place of its targets back to physical units: the last part of a model.

b  samples      O  outputs
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

# Annotations are not postponed here: TorchScript wants the attributes' types, not their names.
import torch
from torch import nn

from mpitrain.config import TargetTransform


class OutputInverse(nn.Module):
    """Maps each output back: e^y, the logistic function of y, or max(y, 0)^(1 / exponent); others stay.

    While a run trains `is_applied` is false: losses are of what is learnt. Every file has it true.
    """

    def __init__(self, transforms: Sequence[TargetTransform | None]) -> None:
        super().__init__()
        self.transforms = [(one.kind, one.exponent) if one is not None else ("", 1.0) for one in transforms]
        self.is_applied = True

    def extra_repr(self) -> str:
        """Return what tells this inverse from others."""
        return str(self.transforms)

    def forward(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return physical outputs (b, O, ...) for learnt ones of this shape."""
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
    """Return the part of a model that maps its outputs back; None where they are learnt as they are."""
    inverse = getattr(model, "inverse", None)
    return inverse if isinstance(inverse, OutputInverse) else None


def transforms_of(model: nn.Module) -> list[TargetTransform | None]:
    """Return what a model learnt in place of each output, None for an output itself; [] where that is so for all."""
    inverse = find_inverse(model)
    pairs = [] if inverse is None else inverse.transforms
    return [TargetTransform(kind, exponent) if kind else None for kind, exponent in pairs]  # type: ignore[arg-type]


def answer_as_learnt(model: nn.Module) -> None:
    """Let a model answer what it learns, for training."""
    _apply(model, False)


def answer_physically(model: nn.Module) -> None:
    """Let a model answer in physical units, as every file of it does."""
    _apply(model, True)


def physical_targets(model: nn.Module, targets: torch.Tensor) -> torch.Tensor:
    """Return targets (b, O, ...) that were transformed to be learnt in their physical units."""
    inverse = find_inverse(model)
    if inverse is None:
        return targets
    with answering_physically(model):
        physical: torch.Tensor = inverse(targets)
    return physical


@contextmanager
def answering_physically(model: nn.Module) -> Iterator[None]:
    """Let a model answer in physical units meanwhile."""
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
