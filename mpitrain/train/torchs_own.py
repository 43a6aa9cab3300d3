"""Whether a class that the settings name belongs to PyTorch, so that it needs no trust beyond that in PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def is_torch_class(name: str) -> bool:
    """Return whether `package.module:name` is an optimiser, a schedule or a loss that torch itself defines.

    Decided by the class and by the file that defines it. Nothing is imported by this name: a module in the folder of
    the settings may have the name of one of torch's.
    """
    try:
        import torch
        from torch.nn.modules.loss import _Loss
    except ImportError:
        return False

    module_name, _, attribute = name.partition(":")
    found: Any = getattr(sys.modules.get(module_name), attribute, None)
    kinds = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, _Loss)
    if not (isinstance(found, type) and issubclass(found, kinds)):
        return False
    home = getattr(sys.modules.get(found.__module__), "__file__", None)
    return home is not None and Path(home).resolve().is_relative_to(Path(torch.__file__).resolve().parent)
