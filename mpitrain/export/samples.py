"""Samples to compare answers for: the run's own data where it is still there.

b  samples      F  input features      H, W  rows and columns of a field
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm import host_array
from mpitrain.data import SampleSource, valid_rows
from mpitrain.errors import DataError
from mpitrain.inference.arithmetic import with_means
from mpitrain.models import grid_of

_MOST_SAMPLES = 4096
_DRAWN_FIELD = (32, 32)
Array = npt.NDArray[Any]


def sample_inputs(model: Any, source: SampleSource | None, kind: str) -> tuple[Array, str]:
    """Return inputs to compare answers for, and in words what they are.

    They are (b, F), or (b, F, H, W) where `kind` is "fields".
    """
    mean, std = (host_array(model.get_buffer(name)) for name in ("input_mean", "input_std"))
    found = _real_inputs(source, mean) if source is not None and len(source.input_names) == len(mean) else None
    if found is not None:
        return found, f"{len(found)} samples of the run's data"
    shape = (64, len(mean), *((grid_of(model) or _DRAWN_FIELD) if kind == "fields" else ()))
    axes = [-1] + [1] * (len(shape) - 2)
    drawn = np.random.default_rng(0).standard_normal(shape).astype(mean.dtype)
    return drawn * std.reshape(axes) + mean.reshape(axes), "64 drawn samples (the run's data is not to be had)"


def _real_inputs(source: SampleSource, mean: Array) -> Array | None:
    most = _MOST_SAMPLES if source.kind == "points" else 4
    parts: list[Array] = []
    try:
        for chunk in source.chunks:
            samples = source.read(chunk)
            parts.append(with_means(samples.inputs[np.flatnonzero(valid_rows(samples))].astype(mean.dtype), mean))
            if sum(map(len, parts)) >= most:
                break
    except DataError:
        return None
    finally:
        source.close()
    found = np.concatenate(parts)[:most] if parts else np.empty(0)
    return found if len(found) else None
