"""Transforms of targets, which the network learns instead: logarithm, logit or power, with the same bits on any CPU.

Sources: log and logit as in generalised linear models (McCullagh and Nelder, 1989), powers without the shift and scale
of Box and Cox (1964), which the normalisation would remove.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.config import TargetTransform
from mpitrain.data.portable_math import DoubleArray, exponential, logarithm

_LARGEST_EXPONENT = 708.0


def outside_domain(transform: TargetTransform, values: npt.NDArray[np.floating]) -> npt.NDArray[np.bool_]:
    """Tell which values are outside the domain of the transform; NaN (missing) is not. Same shape."""
    if transform.kind == "log":
        return np.asarray(values <= 0)
    if transform.kind == "logit":
        return np.asarray((values <= 0) | (values >= 1))
    return np.asarray(values < 0)


def transformed(transform: TargetTransform, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the transform of `values`, in their type; NaN for NaN and for values outside its domain."""
    given = values.astype(np.float64)
    usable = ~(np.isnan(given) | outside_domain(transform, given))
    learnt = np.full(given.shape, np.nan)
    learnt[usable] = _FORWARD[transform.kind](given[usable], transform.exponent)
    return learnt.astype(values.dtype)


def restored(transform: TargetTransform, learnt: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the inverse transform of a network's output and its derivative, in its type; both may be infinite."""
    given = learnt.astype(np.float64)
    if transform.kind == "power":
        values, slopes = _power_inverse(given, 1 / transform.exponent)
    else:
        values = _exponential(given) if transform.kind == "log" else 1 / (1 + _exponential(-given))
        slopes = values if transform.kind == "log" else values * (1 - values)
    with np.errstate(over="ignore"):
        return values.astype(learnt.dtype), slopes.astype(learnt.dtype)


def _power(x: DoubleArray, exponent: float) -> DoubleArray:
    if exponent == 0.5:
        return np.sqrt(x)
    if exponent == 2.0:
        return x * x
    powers = np.zeros_like(x)
    above = x >= np.finfo(np.float64).tiny
    powers[above] = _exponential(exponent * logarithm(x[above]))
    return powers


def _power_inverse(learnt: DoubleArray, exponent: float) -> tuple[DoubleArray, DoubleArray]:
    # A network's output may be below 0, which is outside the range of a power: use 0 instead.
    base = np.maximum(learnt, 0.0)
    slopes = np.where(learnt > 0, exponent * _power(base, exponent) / np.where(learnt > 0, base, 1.0), 0.0)
    return _power(base, exponent), slopes


def _exponential(x: DoubleArray) -> DoubleArray:
    inside = exponential(np.clip(np.where(np.isnan(x), 0.0, x), -_LARGEST_EXPONENT, _LARGEST_EXPONENT))
    with_ends = np.where(x > _LARGEST_EXPONENT, np.inf, np.where(x < -_LARGEST_EXPONENT, 0.0, inside))
    return np.where(np.isnan(x), np.nan, with_ends)


_FORWARD: dict[str, Callable[[DoubleArray, float], DoubleArray]] = {
    "log": lambda x, _: logarithm(x),
    "logit": lambda x, _: logarithm(x) - logarithm(1 - x),
    "power": _power,
}
