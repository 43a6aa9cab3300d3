"""A NetCDF file that is written in parts and appears under its name only when it is complete.

N  records so far
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.durable_files import put_in_place, sync_file, sync_folder, temporary_name
from mpitrain.errors import OutputError
from mpitrain.inference.other_formats import NETCDF, write_in_format

Array = npt.NDArray[Any]
Part = slice | tuple[slice, ...]
# netCDF's default fill values; for bytes it has none.
FILL: dict[str, Any] = {"f4": np.float32(9.969209968386869e36), "f8": 9.969209968386869e36, "i1": np.int8(-1)}
NO_PLACES: Mapping[str, tuple[str, int]] = MappingProxyType({})
_MOST_BLOCK_VALUES, _MOST_LEVEL_VALUES = 65_536, 1_048_576


@dataclass(frozen=True)
class OutputVariable:
    """A variable to be written: `dimensions` by name, `dtype` as f4, f8, i1 or i4; NaN becomes its fill value.

    `level`: the dimension along which one position is written at a time, "" if there is none. `has_fill`: whether it
    has a fill value; by CF coordinate variables and bounds have none. `values`: its values if they are known at the
    beginning, None if they are written later in parts.
    """

    name: str
    dimensions: tuple[str, ...]
    dtype: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    level: str = ""
    has_fill: bool = True
    values: Array | None = field(default=None, compare=False)

    def with_coordinates(self, names: Sequence[str]) -> OutputVariable:
        """Return the variable with these names added to its attribute `coordinates`."""
        named = " ".join([*str(self.attributes.get("coordinates", "")).split(), *names])
        return replace(self, attributes={**self.attributes, "coordinates": named}) if named else self


@dataclass
class Names:
    """Names that are taken in a file: variables, and dimensions with their sizes, the unlimited one first."""

    dimensions: dict[str, int] = field(default_factory=dict)
    variables: set[str] = field(default_factory=set)

    def __contains__(self, name: str) -> bool:
        """Tell whether a dimension or a variable has this name."""
        return name in self.variables or name in self.dimensions

    def has_room_for(self, dimension: str, size: int) -> bool:
        """Tell whether a variable may have a dimension of this name and size."""
        return dimension not in self.variables and self.dimensions.get(dimension, size) == size

    def take(self, name: str, size: int | None = None, is_numbered: bool = False) -> str:
        """Take the first free name for a variable, or a dimension of `size`: `name`, then `name_`, or `name_2`."""
        free, numbers = name, itertools.count(2)
        while free in self:
            free = f"{name}_{next(numbers)}" if is_numbered else f"{free}_"
        if size is None:
            self.variables.add(free)
        else:
            self.dimensions[free] = size
        return free


class GrowingFile:
    """A NetCDF file under a temporary name until `finish`, which may convert it to another format. For one rank.

    The first of `dimensions` (name: size) is unlimited, unless `is_fixed`; its size is the expected number of records.
    Values not written are fill values. Every method raises OutputError if the file cannot be written; the temporary
    file is then removed.
    """

    def __init__(
        self, path: Path, dimensions: Mapping[str, int], variables: Sequence[OutputVariable],
        attributes: Mapping[str, str], is_fixed: bool = False, places: Mapping[str, tuple[str, int]] = NO_PLACES,
    ) -> None:  # fmt: skip
        """Create the file. `places`: by the name of a record that is a level, its variable and position there."""
        self.num_records, self._places = 0, places
        self._path, self._variables = path, {one.name: replace(one, values=None) for one in variables}
        self._growing = None if is_fixed else next(iter(dimensions))
        self._temporary = temporary_name(path)
        self._dataset: Any = None
        try:
            self._guarded(lambda: self._create(dimensions, variables, attributes))
        except BaseException:
            self.abandon()
            raise

    def append(self, records: Mapping[str, Array]) -> None:
        """Write the next records (n, ...) of every variable along the unlimited dimension."""
        count = len(next(iter(records.values())))
        if count:
            self._guarded(lambda: self._write(records, slice(self.num_records, self.num_records + count)))
        self.num_records += count

    def put(self, values: Mapping[str, Array], where: Part = slice(None)) -> None:
        """Write variables, or the part `where` of each."""
        self._guarded(lambda: self._write(values, where))

    def describe(self, attributes: Mapping[str, str]) -> None:
        """Add global attributes."""
        self._guarded(lambda: self._dataset.setncatts(dict(attributes)))

    def finish(self) -> None:
        """Close the file, sync it to disk, and rename it to its final name."""
        self._guarded(self._finish)

    def abandon(self) -> None:
        """Close and remove the temporary file, if it exists. Raises nothing."""
        with suppress(Exception):
            if self._dataset is not None:
                self._dataset.close()
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)

    def _create(
        self, dimensions: Mapping[str, int], variables: Sequence[OutputVariable], attributes: Mapping[str, str]
    ) -> None:
        import netCDF4

        self._dataset = netCDF4.Dataset(str(self._temporary), "w", format="NETCDF4")
        self._dataset.setncatts(dict(attributes))
        for name, size in dimensions.items():
            self._dataset.createDimension(name, None if name == self._growing else size)
        for one in variables:
            fill = FILL.get(one.dtype) if one.has_fill and one.dimensions != (one.name,) else None
            variable = self._dataset.createVariable(
                one.name, one.dtype, one.dimensions, fill_value=fill,
                chunksizes=_block_shape(one, dimensions, self._growing),
            )  # fmt: skip
            variable.set_auto_maskandscale(False)
            variable.setncatts(dict(one.attributes))
        self._write({one.name: one.values for one in variables if one.values is not None}, slice(None))

    def _write(self, values: Mapping[str, Array], where: Part) -> None:
        for record, array in values.items():
            name, position = self._places.get(record, (record, None))
            one = self._variables[name]
            is_missing = np.isnan(array) if one.dtype in FILL and array.dtype.kind == "f" else np.zeros(1, dtype=bool)
            filled = np.where(is_missing, float(FILL[one.dtype]), array) if is_missing.any() else array
            stored = filled.astype(one.dtype)
            part = list(where) if isinstance(where, tuple) else [where]
            if position is not None:
                part.insert(one.dimensions.index(one.level), slice(position, position + 1))
                stored = np.expand_dims(stored, one.dimensions.index(one.level))
            self._dataset.variables[name][tuple(part) if one.dimensions else ...] = stored

    def _finish(self) -> None:
        dataset, self._dataset = self._dataset, None
        dataset.close()
        if self._path.suffix in NETCDF:
            sync_file(self._temporary)
            put_in_place(self._temporary, self._path)
        else:
            write_in_format(self._temporary, self._path)
            self._temporary.unlink()
        sync_folder(self._path.parent)

    def _guarded(self, action: Any) -> None:
        try:
            action()
        except (OSError, RuntimeError, ValueError) as error:  # netCDF4 raises the first two, pyarrow ValueError
            reason = getattr(error, "strerror", None) or error
            self.abandon()
            raise OutputError(
                f"{self._path}: cannot be written ({reason}); check the folder, its permissions and space"
            ) from error


def _block_shape(one: OutputVariable, dimensions: Mapping[str, int], growing: str | None) -> tuple[int, ...] | None:
    if growing not in one.dimensions:
        return None
    rest = [1 if name == one.level else dimensions[name] for name in one.dimensions[1:]]
    records = min(max(1, dimensions[one.dimensions[0]]), max(1, _MOST_BLOCK_VALUES // max(1, int(np.prod(rest)))))
    if len(rest) > 1:  # so that some rows can be written without the others
        rest[0] = min(rest[0], max(1, _MOST_LEVEL_VALUES // max(1, int(np.prod(rest[1:])))))
    return (records, *rest)
