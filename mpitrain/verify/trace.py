"""Traces: all numbers of a run, by name, in the order in which the run computes them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.errors import DataError

Array = npt.NDArray[Any]

_FIXED_STAGES = (
    ("selected samples", r"selected_index"),
    ("partition", r"partition_.*"),
    ("statistics", r"input_(mean|std)"),
    ("initial weights", r"initial\..*"),
    ("forward", r"forward_step1"),
)
_LAST_STAGES = (
    ("losses", r"loss"),
    ("final weights", r"weights_final\..*"),
    ("prediction", r"prediction"),
    ("Jacobian", r"jacobian"),
)


@dataclass
class Trace:
    """Named arrays of one run; `attributes` are facts about it, such as the machines of its ranks."""

    arrays: dict[str, Array] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)


def stage_of(name: str) -> tuple[int, str]:
    """Return the position and the name of the stage in which the variable `name` is computed."""
    for position, (stage, pattern) in enumerate(_FIXED_STAGES):
        if re.fullmatch(pattern, name):
            return position, stage
    step = re.fullmatch(r"(loss|gradient|weights)_step(\d+)(\..*)?", name)
    if step:
        kind, number = step[1], int(step[2])
        return 100 + 10 * number + ("loss", "gradient", "weights").index(kind), f"{kind} at step {number}"
    for position, (stage, pattern) in enumerate(_LAST_STAGES):
        if re.fullmatch(pattern, name):
            return 10**9 + position, stage
    return 10**10, "unknown"


def in_order(names: set[str]) -> list[str]:
    """Return variable names in the order in which a run computes them."""
    parameters = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")

    def key(name: str) -> tuple[int, int, str]:
        tail = next((number for number, parameter in enumerate(parameters) if name.endswith(parameter)), -1)
        return stage_of(name)[0], tail, name

    return sorted(names, key=key)


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace as NetCDF, one variable per array; dimensions are named by their length."""
    import netCDF4

    with netCDF4.Dataset(str(path), "w") as dataset:
        dataset.setncatts(trace.attributes)
        for name, values in trace.arrays.items():
            for length in values.shape:
                if f"length_{length}" not in dataset.dimensions:
                    dataset.createDimension(f"length_{length}", length)
            variable = dataset.createVariable(
                name, values.dtype, tuple(f"length_{length}" for length in values.shape), fill_value=False
            )
            variable[...] = values


def read_trace(path: Path) -> Trace:
    """Read a trace that either program wrote. Raises DataError if it cannot be read.

    The first entry of `loss` is also returned as `loss_step1`, since it is computed before the first gradient.
    """
    import netCDF4

    try:
        with netCDF4.Dataset(str(path)) as dataset:
            dataset.set_auto_maskandscale(False)
            arrays = {name: np.asarray(variable[...]) for name, variable in dataset.variables.items()}
            attributes = {name: dataset.getncattr(name) for name in dataset.ncattrs()}
    except OSError as error:
        raise DataError(f"{path}: cannot be read as a trace ({error})") from error
    if "loss" in arrays:
        arrays["loss_step1"] = arrays["loss"][:1]
    return Trace(arrays, attributes)
