"""A NetCDF file that is written part by part, and is whole or not there.

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
# netCDF's own default fill values; of bytes it has none.
FILL: dict[str, Any] = {"f4": np.float32(9.969209968386869e36), "f8": 9.969209968386869e36, "i1": np.int8(-1)}
NO_PLACES: Mapping[str, tuple[str, int]] = MappingProxyType({})
_MOST_BLOCK_VALUES, _MOST_LEVEL_VALUES = 65_536, 1_048_576


@dataclass(frozen=True)
class OutputVariable:
    """A variable to be written: `dimensions` by name, `dtype` as f4, f8, i1 or i8; NaN becomes its fill value.

    `level` is the dimension along which it is written one position after the other, "" where there is none. `has_fill`:
    it names its fill value, which CF wants neither of coordinate variables nor of bounds. `values` are what it holds
    from the beginning, None where they come part by part.
    """

    name: str
    dimensions: tuple[str, ...]
    dtype: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    level: str = ""
    has_fill: bool = True
    values: Array | None = field(default=None, compare=False)

    def with_coordinates(self, names: Sequence[str]) -> OutputVariable:
        """Return the variable whose attribute `coordinates` has these names too."""
        named = " ".join([*str(self.attributes.get("coordinates", "")).split(), *names])
        return replace(self, attributes={**self.attributes, "coordinates": named}) if named else self


@dataclass
class Names:
    """All names that a file has, or must not have: of variables, and of its dimensions with sizes, what grows first."""

    dimensions: dict[str, int] = field(default_factory=dict)
    variables: set[str] = field(default_factory=set)

    def __contains__(self, name: str) -> bool:
        """Tell whether a dimension or a variable is called so."""
        return name in self.variables or name in self.dimensions

    def has_room_for(self, dimension: str, size: int) -> bool:
        """Tell whether a variable may lie along a dimension of that size."""
        return dimension not in self.variables and self.dimensions.get(dimension, size) == size

    def take(self, name: str, size: int | None = None, is_numbered: bool = False) -> str:
        """Give a variable, or a dimension of a size, the first free name: `name`, then `name_`, or `name_2`."""
        free, numbers = name, itertools.count(2)
        while free in self:
            free = f"{name}_{next(numbers)}" if is_numbered else f"{free}_"
        if size is None:
            self.variables.add(free)
        else:
            self.dimensions[free] = size
        return free


class GrowingFile:
    """One NetCDF file under a temporary name until `finish`, which may make another format of it. Belongs to one rank.

    The first of `dimensions` (name: size) can grow, unless `is_fixed`; its size is the expected number of records. What
    is not written holds fill values. Every method raises OutputError where the file cannot be written, after which
    `abandon` leaves nothing behind.
    """

    def __init__(
        self, path: Path, dimensions: Mapping[str, int], variables: Sequence[OutputVariable],
        attributes: Mapping[str, str], is_fixed: bool = False, places: Mapping[str, tuple[str, int]] = NO_PLACES,
    ) -> None:  # fmt: skip
        """Begin the file; `places` are the variable and the position along its level axis of records by other names."""
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
        """Write the next records (n, ...) of every variable that grows."""
        count = len(next(iter(records.values())))
        if count:
            self._guarded(lambda: self._write(records, slice(self.num_records, self.num_records + count)))
        self.num_records += count

    def put(self, values: Mapping[str, Array], where: Part = slice(None)) -> None:
        """Write variables whole, or that part of each."""
        self._guarded(lambda: self._write(values, where))

    def describe(self, attributes: Mapping[str, str]) -> None:
        """Add attributes to what the file says of itself."""
        self._guarded(lambda: self._dataset.setncatts(dict(attributes)))

    def finish(self) -> None:
        """Close the file, wait for the disk, and give it its name."""
        self._guarded(self._finish)

    def abandon(self) -> None:
        """Leave nothing behind. Raises nothing."""
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
        except (OSError, RuntimeError, ValueError) as error:  # netCDF4 reports what HDF5 refuses as either; pyarrow
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
    if len(rest) > 1:  # so that a part of the rows is written without the others
        rest[0] = min(rest[0], max(1, _MOST_LEVEL_VALUES // max(1, int(np.prod(rest[1:])))))
    return (records, *rest)
