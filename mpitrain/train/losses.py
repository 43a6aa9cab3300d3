"""Loss functions, element by element, so that padding can be weighed out and sums taken in any fixed order."""

from __future__ import annotations

import torch
from torch.nn import functional


def element_losses(name: str, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of each element: mse (y - t)^2, mae |y - t|, huber with delta 1 (Huber, 1964); same shape."""
    if name == "mae":
        return functional.l1_loss(outputs, targets, reduction="none")
    if name == "huber":
        return functional.huber_loss(outputs, targets, reduction="none", delta=1.0)
    return functional.mse_loss(outputs, targets, reduction="none")
