"""Variables that a reader of the user's own returns, as a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt

from mpitrain.data.files.absolute_time import numbers_of_array
from mpitrain.data.files.arrays import ArrayFile
from mpitrain.data.files.variable import FieldFile, VariableInfo, plain_attributes
from mpitrain.errors import one_line


def file_of(path: Path, content: Any) -> FieldFile:
    """Return `content` as an open file: a mapping of names to arrays, or a `FieldFile`, which is returned as it is.

    An array may come as (dimensions, array) or (dimensions, array, attributes), as xarray takes it. Raises TypeError
    and ValueError for anything else.
    """
    if not isinstance(content, Mapping):
        if not all(hasattr(content, name) for name in ("variables", "refused", "read_stored", "close")):
            raise TypeError(f"returned {type(content).__name__}; return a mapping of names to arrays")
        file: FieldFile = content
        return file
    found = [_variable(one_line(str(name)), given) for name, given in content.items()]
    return ArrayFile(path, [info for info, _ in found], lambda number: found[number][1])


def _variable(name: str, given: Any) -> tuple[VariableInfo, npt.NDArray[Any]]:
    dimensions, values, attributes = None, given, {}
    if isinstance(given, tuple):
        dimensions, values, attributes = (*given, {})[:3]
    array, of_times = numbers_of_array(values)
    names = ("",) * array.ndim if dimensions is None else _names(dimensions)
    if len(names) != array.ndim:
        raise ValueError(f"'{name}' has {array.ndim} axes and {len(names)} names of dimensions; name each axis")
    known = plain_attributes({**dict(attributes), **of_times}.items())
    return VariableInfo(name, names, array.shape, array.dtype.str, known, chunk_shape=array.shape), array


def _names(dimensions: Any) -> tuple[str, ...]:
    return (dimensions,) if isinstance(dimensions, str) else tuple(map(str, dimensions))
