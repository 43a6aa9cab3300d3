"""From stored numbers to measurements: packing, fill values and valid ranges, by the rules of NetCDF and CF.

CF conventions, section 8.1 "Packed data" and 2.5.1 "Missing data, valid and actual range of data". Fill values and
ranges are in the stored type, unless a range has the type of the unpacked data (NetCDF user's guide, "Attribute
conventions").
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.history_file import LARGEST_VALID
from mpitrain.data.readers.protocol import VariableInfo

Array = npt.NDArray[Any]
# Integers of up to two bytes are exact in float32; wider ones need float64.
_EXACT_IN_FLOAT32_BYTES = 2


def decode(stored: Array, info: VariableInfo) -> Array:
    """Return measurements of the same shape, always a new or owned float array, NaN where there is none.

    No measurement: _FillValue, missing_value, outside of valid_min, valid_max or valid_range, NaN, infinity,
    |x| >= 1e29 (CICE writes 1e30 on land). float32 and float64 keep their type; packed values become float64, so that
    nothing is rounded before the caller casts.
    """
    stored = _as_meant(stored, info)
    invalid = _is_filled(stored, info) | _is_out_of_range(stored, info, packed=True)
    values = _unpacked(stored, info)
    # The comparison is false for NaN, which is NaN already.
    invalid = invalid | (np.abs(values) >= LARGEST_VALID) | _is_out_of_range(values, info, packed=False)
    if np.any(invalid):
        if values is stored:
            values = values.copy()
        values[np.broadcast_to(invalid, values.shape)] = np.nan
    return values


def _as_meant(stored: Array, info: VariableInfo) -> Array:
    """Return the array in the machine's byte order; integers that NetCDF-3 stores signed may be meant unsigned."""
    if not stored.dtype.isnative:
        stored = stored.astype(stored.dtype.newbyteorder("="))
    if stored.dtype.kind == "i" and info.text("_Unsigned").lower() == "true":
        return stored.view(f"u{stored.dtype.itemsize}")
    return stored


def _is_filled(stored: Array, info: VariableInfo) -> Array | np.bool_:
    filled: Array | np.bool_ = np.False_
    markers = [*_numbers(info, "_FillValue"), *_numbers(info, "missing_value")]
    if not markers and info.default_fill is not None and stored.dtype.kind in "iu":
        markers = [info.default_fill]
    for marker in markers:
        if abs(marker) < LARGEST_VALID or stored.dtype.kind in "iu":
            filled = filled | (stored == _in_stored_type(marker, stored.dtype))
    return filled


def _is_out_of_range(values: Array, info: VariableInfo, packed: bool) -> Array | np.bool_:
    lower, upper = _valid_range(info)
    if lower is None and upper is None:
        return np.False_
    limits_are_packed = not _is_packed(info) or all(
        isinstance(limit, int) for limit in (lower, upper) if limit is not None
    )
    if limits_are_packed != packed:
        return np.False_
    invalid: Array | np.bool_ = np.False_
    if lower is not None:
        invalid = invalid | (values < _in_stored_type(lower, values.dtype))
    if upper is not None:
        invalid = invalid | (values > _in_stored_type(upper, values.dtype))
    return invalid


def _valid_range(info: VariableInfo) -> tuple[float | None, float | None]:
    both = _numbers(info, "valid_range")
    if len(both) == 2:
        return both[0], both[1]
    lower, upper = _numbers(info, "valid_min"), _numbers(info, "valid_max")
    return (lower[0] if lower else None), (upper[0] if upper else None)


def _unpacked(stored: Array, info: VariableInfo) -> Array:
    if _is_packed(info):
        scale, offset = _numbers(info, "scale_factor"), _numbers(info, "add_offset")
        return stored.astype(np.float64) * (scale[0] if scale else 1.0) + (offset[0] if offset else 0.0)
    if stored.dtype.kind == "f" and stored.dtype.itemsize >= 4:
        return stored
    return stored.astype(np.float32 if stored.dtype.itemsize <= _EXACT_IN_FLOAT32_BYTES else np.float64)


def _is_packed(info: VariableInfo) -> bool:
    return bool(_numbers(info, "scale_factor") or _numbers(info, "add_offset"))


def _in_stored_type(marker: float, dtype: np.dtype[Any]) -> Any:
    """Return the marker as the type would hold it: a double 1.1 marks float32 values of 1.1 rounded."""
    if dtype.kind == "u" and marker < 0:
        marker += 2 ** (8 * dtype.itemsize)
    return dtype.type(marker) if dtype.kind == "f" else marker


def _numbers(info: VariableInfo, name: str) -> list[float]:
    value = info.attributes.get(name)
    if value is None or isinstance(value, str):
        return []
    return list(value) if isinstance(value, tuple) else [value]
