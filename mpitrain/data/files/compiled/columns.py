"""Decoding of tables of samples in one compiled pass: fill values, valid ranges, packing, units and type.

N, F  rows and columns of a table
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.compiled.build import KERNELS
from mpitrain.data.files.decoding import DecodingRule

Array = npt.NDArray[Any]
_MOST_MARKERS = 8
_KINDS = ("i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8")  # `Kind` in kernels.cpp


@dataclass(frozen=True)
class StoredColumn:
    """A column of a table: `stored` (n,) as in the file, or decoded values if `rule` is None.

    `conversion` is the scale and offset from the file's units to the wanted units.
    """

    stored: Array
    rule: DecodingRule | None = None
    conversion: tuple[float, float] | None = None


class _Column(ctypes.Structure):
    _fields_ = (
        ("stored", ctypes.c_void_p),
        ("kind", ctypes.c_int64),
        ("is_swapped", ctypes.c_int64),
        ("is_packed", ctypes.c_int64),
        ("limits_are_packed", ctypes.c_int64),
        ("num_markers", ctypes.c_int64),
        ("markers", ctypes.c_double * _MOST_MARKERS),
        ("lower", ctypes.c_double),
        ("upper", ctypes.c_double),
        ("largest", ctypes.c_double),
        ("scale", ctypes.c_double),
        ("offset", ctypes.c_double),
        ("is_converted", ctypes.c_int64),
        ("conversion_scale", ctypes.c_double),
        ("conversion_offset", ctypes.c_double),
    )


def fill_table(table: Array, columns: Sequence[StoredColumn], rows: npt.NDArray[np.int64] | None) -> bool:
    """Set `table` (N, F) to the decoded columns at `rows` (N,), or at all n = N rows if `rows` is None.

    Returns False, without changing the table, if there is no compiled library or it does not support a column.
    """
    library = KERNELS.after(table.nbytes)
    if library is None or table.dtype not in (np.float32, np.float64) or not table.flags.c_contiguous:
        return False
    given = [_column_of(one) for one in columns]
    known = [one for one in given if one is not None]
    if len(known) < len(columns) or not table.size:
        return False
    decode = library.decode_float if table.dtype == np.float32 else library.decode_double
    address = None if rows is None else rows.ctypes.data
    decode((_Column * len(known))(*known), len(known), address, len(table), table.ctypes.data)
    return True


def _column_of(column: StoredColumn) -> _Column | None:
    stored = column.stored
    # Decoded values need no markers: |x| >= NaN is always false.
    rule = column.rule or DecodingRule(stored.dtype, (), -np.inf, np.inf, True, np.nan, None)
    kind = rule.stored.str[1:]
    is_flat = stored.flags.c_contiguous and stored.flags.aligned
    if kind not in _KINDS or len(rule.markers) > _MOST_MARKERS or not is_flat:
        return None
    packing, conversion = rule.packing or (1.0, 0.0), column.conversion or (1.0, 0.0)
    return _Column(
        stored.ctypes.data, _KINDS.index(kind), not rule.stored.isnative, rule.packing is not None,
        rule.limits_are_packed, len(rule.markers), rule.markers + (0.0,) * (_MOST_MARKERS - len(rule.markers)),
        rule.lower, rule.upper, rule.largest, *packing, column.conversion is not None, *conversion,
    )  # fmt: skip
