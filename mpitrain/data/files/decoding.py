"""Decoding of stored numbers: packing, fill values and valid ranges, by the rules of NetCDF and CF.

CF conventions, sections 8.1 "Packed data" and 2.5.1 "Missing data, valid and actual range of data". Fill values and
ranges refer to stored numbers, unless a range has the type of the unpacked data (NetCDF user's guide, "Attribute
conventions").
"""

from __future__ import annotations

import base64
import binascii
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.absolute_time import days_of, is_absolute
from mpitrain.data.files.variable import FieldFile, Slices, VariableInfo
from mpitrain.data.units import is_of_time

# A fill value of 1e29 or more is also a limit: |x| from there on is missing (NetCDF user's guide, "Attribute
# conventions"). The limit lies slightly below, because 1e30 rounded to float32 differs from the double 1e30.
_LARGE_MARKER, _BELOW_MARKER = 1e29, 1.0 - 1e-6
# CICE writes 1e30 on land; files of other programs contain it without declaring it as fill value.
_UNMARKED = (1e30, float(np.float32(1e30)))

Array = npt.NDArray[Any]
_NOT_A_TIME = -(2**63)
_OF_NUMBERS = ("_FillValue", "missing_value", "scale_factor", "add_offset", "valid_min", "valid_max", "valid_range")
_SEPARATOR = re.compile(r"[\s,;]+")
# Numbers as text, as people and ncdump write them: -999, -999., 1.e20f, 7s.
_NUMBER = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan)[fFdDlLsSbB]?", re.IGNORECASE)
_WHOLE = re.compile(r"[-+]?\d+")
# Integers of up to two bytes are exact in float32; wider ones need float64.
_EXACT_IN_FLOAT32_BYTES = 2


def decode(stored: Array, info: VariableInfo) -> Array:
    """Return the decoded values in native floats, of the same shape, NaN where missing; never changes `stored`.

    Absolute times, such as 20981115.5, become days since 1970-01-01.

    Missing values are: _FillValue and missing_value; values outside valid_min, valid_max or valid_range; NaN and
    infinity; |x| >= a fill value of 1e29 or more; 1e30 in NetCDF without any fill value (CICE's land); the missing
    values of the settings; and -2**63 in int64 times and durations, which is numpy's NaT as written by xarray. float32
    and float64 keep their type; packed values become float64, so that nothing is rounded before the caller casts.
    Returns `stored` itself if nothing had to be changed.
    """
    return Decoder(info).decode(stored)


@dataclass(frozen=True)
class DecodingRule:
    """Rule by which `Decoder.decode` decodes numbers of one type; all its numbers are exact in float64.

    `stored` is the intended type, in the file's byte order. `markers` are stored numbers that mean missing; `lower`
    and `upper` are stored numbers if `limits_are_packed`, unpacked values otherwise; |x| >= `largest` is missing.
    `packing` is scale_factor and add_offset.
    """

    stored: np.dtype[Any]
    markers: tuple[float, ...]
    lower: float
    upper: float
    limits_are_packed: bool
    largest: float
    packing: tuple[float, float] | None


class Decoder:
    """Decoder of one variable: the same as `decode`, with the attributes read once for all parts of the variable."""

    def __init__(self, info: VariableInfo) -> None:
        """Read the attributes of the variable."""
        self._is_meant_unsigned = info.text("_Unsigned").lower() == "true"
        self._markers = markers_of(info)
        # The default fill value applies to integers unless there is a _FillValue, also as text, or a numeric
        # missing_value.
        replaces = "_FillValue" in info.attributes or not isinstance(info.attributes.get("missing_value", ""), str)
        self._default_fill = None if replaces else info.default_fill
        self._has_nat = is_of_time(info.units)
        self._calendar = info.text("calendar") if is_absolute(info.text("units")) else None
        scale, offset = _numbers(info, "scale_factor"), _numbers(info, "add_offset")
        self._is_packed = bool(scale or offset)
        self._scale, self._offset = (scale or [1.0])[0], (offset or [0.0])[0]
        self._lower, self._upper = _valid_range(info)
        limits = [limit for limit in (self._lower, self._upper) if limit is not None]
        self._limits_are_packed = not self._is_packed or all(isinstance(limit, int) for limit in limits)
        self._user_missing, self._user_largest = info.missing, info.largest
        self._default_of_floats = None if "_FillValue" in info.attributes else info.default_fill
        self._largest = _largest(info, self._markers, self._default_of_floats)
        self._has_unmarked = info.default_fill is not None and not self._markers
        self._rules: dict[np.dtype[Any], DecodingRule | None] = {}

    def decode(self, stored: Array) -> Array:
        """Return the decoded values (see the function `decode`)."""
        stored = self._as_meant(stored)
        values = self._unpacked(stored)
        limited = stored if self._limits_are_packed else values
        invalid = [stored == marker for marker in self._markers_in(stored.dtype)]
        if self._lower is not None:
            invalid.append(limited < _in_type(self._lower, limited.dtype))
        if self._upper is not None:
            invalid.append(limited > _in_type(self._upper, limited.dtype))
        if _has_huge(values, self._largest_of(stored.dtype)):
            invalid.append(np.abs(values) >= self._largest_of(stored.dtype))
        found = np.logical_or.reduce(invalid) if invalid else np.False_
        if not np.any(found):
            return values
        if values is stored or not values.shape:  # arithmetic on 0-d arrays gives scalars
            values = np.array(values)
        values[found] = np.nan
        return values

    def rule(self, dtype: np.dtype[Any]) -> DecodingRule | None:
        """Return the rule for numbers stored as `dtype`; None for absolute times, 64-bit integers and float16."""
        if dtype not in self._rules:
            self._rules[dtype] = self._make_rule(dtype)
        return self._rules[dtype]

    def _make_rule(self, dtype: np.dtype[Any]) -> DecodingRule | None:
        if (
            self._calendar is not None
            or dtype.kind not in "iuf"
            or dtype.itemsize > (8 if dtype.kind == "f" else 4)
            or dtype == np.float16
        ):
            return None
        if dtype.kind == "i" and self._is_meant_unsigned:
            dtype = np.dtype(f"{dtype.byteorder}u{dtype.itemsize}")
        native = dtype.newbyteorder("=")
        values = self._unpacked(np.empty(0, native)).dtype
        limited = native if self._limits_are_packed else values
        lower, upper = (None if one is None else float(_in_type(one, limited)) for one in (self._lower, self._upper))
        return DecodingRule(
            stored=dtype,
            markers=tuple(float(marker) for marker in self._markers_in(native)),
            lower=-np.inf if lower is None else lower,
            upper=np.inf if upper is None else upper,
            limits_are_packed=self._limits_are_packed,
            largest=float(values.type(self._largest_of(native))),
            packing=(self._scale, self._offset) if self._is_packed else None,
        )

    def _as_meant(self, stored: Array) -> Array:
        """Return the array in native byte order; signed integers as unsigned if `_Unsigned` is true."""
        if not stored.dtype.isnative:
            stored = stored.astype(stored.dtype.newbyteorder("="))
        if stored.dtype.kind == "i" and self._is_meant_unsigned:
            return np.ascontiguousarray(stored).view(f"u{stored.dtype.itemsize}")
        return stored

    def _markers_in(self, dtype: np.dtype[Any]) -> list[Any]:
        if dtype.kind != "f":
            default = [] if self._default_fill is None else [self._default_fill]
            nat = [_NOT_A_TIME] if self._has_nat and dtype == np.int64 else []
            user_missing = [one for one in self._user_missing if one >= 0 or dtype.kind == "i"]
            return [_in_type(marker, dtype) for marker in (*self._markers, *default, *nat, *user_missing)]
        of_floats = () if self._default_of_floats is None else (self._default_of_floats,)
        markers = (*self._markers, *of_floats, *self._user_missing, *(_UNMARKED if self._has_unmarked else ()))
        # Larger markers are found by the limit, and NaN needs no marker.
        largest = self._largest_of(dtype)
        return list(dict.fromkeys(_in_type(marker, dtype) for marker in markers if abs(marker) < largest))

    def _largest_of(self, dtype: np.dtype[Any]) -> float:
        """Return the |x| from which values are missing; for packed and integer values only the settings' limit."""
        return self._largest if dtype.kind == "f" and not self._is_packed else self._user_largest

    def _unpacked(self, stored: Array) -> Array:
        if self._calendar is not None:
            return days_of(stored, self._calendar)
        if self._is_packed:
            return stored.astype(np.float64) * self._scale + self._offset
        if stored.dtype.kind == "f" and stored.dtype.itemsize >= 4:
            return stored
        return stored.astype(np.float32 if stored.dtype.itemsize <= _EXACT_IN_FLOAT32_BYTES else np.float64)


def _largest(info: VariableInfo, markers: Sequence[float], default_fill: float | None) -> float:
    """Return the |x| from which floats are missing: just below the smallest fill value of 1e29 or more."""
    marks = [abs(one) for one in (*markers, *([] if default_fill is None else [default_fill]))]
    return min([info.largest, *(one * _BELOW_MARKER for one in marks if one >= _LARGE_MARKER)])


def _has_huge(values: Array, largest: float) -> bool:
    """Tell whether any |x| >= `largest`, in two passes without a temporary array, because nearly always none is."""
    if values.size == 0:
        return False
    # fmax and fmin ignore NaN.
    return bool(np.fmax.reduce(values, axis=None) >= largest or np.fmin.reduce(values, axis=None) <= -largest)


def _valid_range(info: VariableInfo) -> tuple[float | None, float | None]:
    if _numbers(info, "scale_factor") or _numbers(info, "add_offset"):  # a limit in text may be packed or not: ignored
        info = replace(info, attributes={key: one for key, one in info.attributes.items() if not isinstance(one, str)})
    both = _numbers(info, "valid_range")
    if len(both) == 2:
        return both[0], both[1]
    lower, upper = _numbers(info, "valid_min"), _numbers(info, "valid_max")
    return (lower[0] if lower else None), (upper[0] if upper else None)


def _in_type(marker: float, dtype: np.dtype[Any]) -> Any:
    """Return the marker in the type `dtype`: the double 1.1 marks float32 values of 1.1 rounded to float32."""
    if dtype.kind == "u" and marker < 0:
        marker += 2 ** (8 * dtype.itemsize)
    return dtype.type(marker) if dtype.kind == "f" else marker


def _numbers(info: VariableInfo, name: str) -> list[float]:
    value = info.attributes.get(name)
    if value is None:
        return []
    if isinstance(value, str):
        return _numbers_of_text(value, name) or []
    return list(value) if isinstance(value, tuple) else [value]


def _numbers_of_text(text: str, name: str) -> list[float] | None:
    """Return the numbers in an attribute's text; None if it is not a list of numbers."""
    matches = [_NUMBER.fullmatch(token) for token in _SEPARATOR.split(text.strip(" \t[](){},;"))]
    if all(matches):
        found = [match[1] for match in matches if match]
        return [int(token) if _WHOLE.fullmatch(token) else float(token) for token in found]
    return _coded_fill(text) if name == "_FillValue" else None


def _coded_fill(text: str) -> list[float] | None:
    """Return a fill value as xarray writes it to Zarr 3 for floats: base64 of a little-endian double; None if not."""
    try:
        return list(struct.unpack("<d", base64.b64decode(text, validate=True)))
    except (binascii.Error, struct.error, ValueError):
        return None


def markers_of(info: VariableInfo) -> list[float]:
    """Return the stored numbers that mark missing values: `_FillValue` and `missing_value`."""
    return [*_numbers(info, "_FillValue"), *_numbers(info, "missing_value")]


def unread_attributes(info: VariableInfo) -> Iterator[str]:
    """Yield the names of attributes that should be numeric but are text and are ignored.

    These are text without numbers, and limits of packed values: text has no type that tells whether they are packed.
    """
    is_packed = bool(_numbers(info, "scale_factor") or _numbers(info, "add_offset"))
    for name in _OF_NUMBERS if info.is_numeric else ():
        value = info.attributes.get(name)
        is_text = isinstance(value, str) and bool(value.strip())
        if is_text and (_numbers_of_text(str(value), name) is None or (is_packed and name.startswith("valid_"))):
            yield name


def read(file: FieldFile, name: str, slices: Slices) -> Array:
    """Return a part of a variable, decoded to float32 or float64, NaN where missing."""
    return decode(file.read_stored(name, slices), file.variables[name])


def read_column(file: FieldFile, info: VariableInfo) -> npt.NDArray[np.float64]:
    """Return all decoded values (N,) of a variable of one dimension, (1,) of a scalar, NaN where missing."""
    return read(file, info.name, (slice(None),) * len(info.shape)).astype(np.float64).reshape(-1)
