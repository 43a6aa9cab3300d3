"""Samples to compare answers for: the run's own data where it is still there.

b  samples      F  input features      H, W  rows and columns of a field
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from mpitrain.config import RunConfig
from mpitrain.data.samples import valid_rows
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import DataError

_MOST_SAMPLES = 4096
_DRAWN_FIELD = (32, 32)


def sample_inputs(model: nn.Module, source: SampleSource | None, config: RunConfig) -> tuple[torch.Tensor, str]:
    """Return inputs (b, F) or (b, F, H, W) to compare answers for, and in words what they are."""
    mean, std = (model.get_buffer(name) for name in ("input_mean", "input_std"))
    found = _real_inputs(source, mean) if source is not None and len(source.input_names) == len(mean) else None
    if found is not None:
        return found, f"{len(found)} samples of the run's data"
    shape = (64, len(mean), *(_DRAWN_FIELD if config.data.samples == "fields" else ()))
    axes = [-1] + [1] * (len(shape) - 2)
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(mean.dtype)
    return drawn * std.view(axes) + mean.view(axes), "64 drawn samples (the run's data is not to be had)"


def _real_inputs(source: SampleSource, mean: torch.Tensor) -> torch.Tensor | None:
    most = _MOST_SAMPLES if source.kind == "points" else 4
    parts: list[torch.Tensor] = []
    try:
        for chunk in source.chunks:
            samples = source.read(chunk)
            inputs = torch.from_numpy(samples.inputs[np.flatnonzero(valid_rows(samples))]).to(mean.dtype)
            parts.append(torch.where(torch.isfinite(inputs), inputs, mean.view([-1] + [1] * (inputs.dim() - 2))))
            if sum(map(len, parts)) >= most:
                break
    except DataError:
        return None
    finally:
        source.close()
    found = torch.cat(parts)[:most] if parts else torch.empty(0)
    return found if len(found) else None
