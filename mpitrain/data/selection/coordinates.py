"""Coordinates of samples: longitude, latitude and time by a sample's position in its source.

T  time levels of all files      J, I  rows and columns      N  samples
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.names import LATITUDE, LONGITUDE
from mpitrain.data.describe.times import (
    dates_of,
    in_calendar,
    numbers_of,
    plain_calendar,
    ranks_of_stored_times,
    read_stored_times,
)
from mpitrain.data.files.decoding import read_column
from mpitrain.data.files.variable import VariableInfo
from mpitrain.data.selection.matching import on_samples
from mpitrain.data.selection.source import SampleSource, SourceFile
from mpitrain.data.selection.variable_access import VariableAccess, find_access, find_main, read_part
from mpitrain.data.units import counts_from_a_date
from mpitrain.errors import DataError

Array = npt.NDArray[Any]
TIME = "time"
_EVERYTHING = slice(None)


@dataclass(frozen=True)
class Coordinates:
    """Longitude, latitude and time of the files of a source; to be used only by the process that opened it.

    Mappings are by name ("lon", "lat", "time") and contain only the coordinates that the files have.

    Attributes
    ----------
    source : SampleSource
        The source, from which moving coordinates are read when they are needed.
    attributes : mapping of str to mapping of str to str
        CF attributes; the units are degrees_east, degrees_north, and those of `times`.
    dtypes : mapping of str to str
        numpy's name of the type in native byte order, "f4" or "f8".
    grids : mapping of str to ndarray, shape (J, I)
        Longitude and latitude in degrees, if they are constant.
    moving : mapping of str to sequence of VariableAccess, one per file
        Longitude and latitude that differ between time levels or files.
    times : ndarray of float64, shape (T,), or None
        Times in the units and the calendar of the first file, NaN where missing; None if a file has no times.
    stored : mapping of str to VariableAccess
        Access to longitude and latitude in the first file.
    time_name : str
        Name of the time variable of the first file; "" without times.
    """

    source: SampleSource
    attributes: Mapping[str, Mapping[str, str]]
    dtypes: Mapping[str, str]
    grids: Mapping[str, Array] = field(default_factory=dict)
    moving: Mapping[str, Sequence[VariableAccess]] = field(default_factory=dict)
    times: npt.NDArray[np.float64] | None = None
    stored: Mapping[str, VariableAccess] = field(default_factory=dict)
    time_name: str = ""

    def at(self, grid_index: npt.NDArray[np.int64]) -> dict[str, Array]:
        """Return the coordinates of point samples.

        Parameters
        ----------
        grid_index : ndarray of int64, shape (N,)
            Positions of the samples in the source.

        Returns
        -------
        dict of str to ndarray, shape (N,)
            "lon" and "lat" in degrees, "time" in the units of `times`; those that the files have, in type `dtypes`.

        Raises
        ------
        DataError
            A file cannot be read.
        """
        num_rows, num_columns = self.source.grid_shape
        level, inside = np.divmod(grid_index, num_rows * num_columns)
        found = {name: grid.reshape(-1)[inside] for name, grid in self.grids.items()}
        for name in self.moving:
            found[name] = np.empty(len(grid_index), dtype=self.dtypes[name])
            if self.source.grid_shape == (1, 1):
                self._read_places(name, level, found[name])
                continue
            for one in np.unique(level):
                here = level == one
                found[name][here] = self.moving_grid(name, int(one)).reshape(-1)[inside[here]]
        if self.times is not None:
            found[TIME] = self.times[level]
        return found

    def _read_places(self, name: str, levels: npt.NDArray[np.int64], found: Array) -> None:
        """Read the coordinate `name` of reports at time levels (N,) into `found` (N,), once from each file."""
        firsts = [record.first_time for record in self.source.files]
        for number in np.unique(np.searchsorted(firsts, levels, side="right")) - 1:
            record, access = self.source.files[number], self.moving[name][number]
            times = levels - record.first_time
            here = (times >= 0) & (times < record.num_times)
            span = slice(int(times[here].min()), int(times[here].max()) + 1)
            stored = read_part(self.source.handles.get(record), access, span, _EVERYTHING)
            values = np.broadcast_to(access.decode(stored).reshape(-1), (span.stop - span.start,))
            found[here] = values[times[here] - span.start]

    def moving_grid(self, name: str, level: int) -> Array:
        """Return a moving coordinate at one time level.

        Parameters
        ----------
        name : str
            A name in `moving`.
        level : int
            Time level of the source, from 0.

        Returns
        -------
        ndarray of float32 or float64, shape (J, I)
            Longitude or latitude in degrees.

        Raises
        ------
        DataError
            The file cannot be read.
        """
        number = bisect_right([record.first_time for record in self.source.files], level) - 1
        record, access = self.source.files[number], self.moving[name][number]
        time = level - record.first_time
        stored = read_part(self.source.handles.get(record), access, slice(time, time + 1), _EVERYTHING)
        return _grid(access.decode(stored), self.source.grid_shape)


def open_coordinates(source: SampleSource) -> Coordinates:
    """Read the coordinates of a source's files.

    One rank only.

    Parameters
    ----------
    source : SampleSource
        An open source.

    Returns
    -------
    Coordinates
        Without any coordinate for a table of samples.

    Raises
    ------
    DataError
        A file cannot be read, its times cannot be converted to the units of the first file's times, or a variable that
        `data.coordinates` names is not on the grid.
    """
    found = _open_places(source)
    if not source.layout.is_grid:
        return found
    times, time_attributes, time_name = _read_times(source)
    if times is None:
        return found
    attributes, dtypes = {**found.attributes, TIME: time_attributes}, {**found.dtypes, TIME: "f8"}
    return replace(found, attributes=attributes, dtypes=dtypes, times=times, time_name=time_name)


def _open_places(source: SampleSource) -> Coordinates:
    attributes: dict[str, dict[str, str]] = {}
    dtypes: dict[str, str] = {}
    if not source.layout.is_grid:
        return Coordinates(source, attributes, dtypes)
    grids: dict[str, Array] = {}
    moving: dict[str, Sequence[VariableAccess]] = {}
    stored: dict[str, VariableAccess] = {}
    for name, role in (("lon", LONGITUDE), ("lat", LATITUDE)):
        found = [_place(role, record, source) for record in source.files]
        access = [one for one in found if one is not None]
        if found[0] is None:
            continue
        stored[name], attributes[name] = found[0], _place_attributes(name, found[0].info)
        if len(access) == len(found) and _moves(access, source):
            moving[name], dtypes[name] = access, "f8"
        else:
            values = _whole(found[0], source.files[0], source)
            grids[name], dtypes[name] = _grid(values, source.grid_shape), values.dtype.str[1:]
    return Coordinates(source, attributes, dtypes, grids, moving, stored=stored)


def known_ranks(source: SampleSource) -> npt.NDArray[np.int64] | None:
    """Return the rank of each time level's time among the distinct times of all files.

    One rank only.

    Parameters
    ----------
    source : SampleSource
        An open source.

    Returns
    -------
    ndarray of int64, shape (T,), or None
        Numbers from 0 in order of time, equal for equal times; -1 for a level without a time. None for a table of
        samples, if a file has no times, if all are missing, or if those of different files cannot be compared.

    Raises
    ------
    DataError
        A file cannot be read.
    """
    if not source.layout.is_grid:
        return None
    found = [one.stamps or read_stored_times(one.time, source.handles.get(one)) for one in source.files]
    return ranks_of_stored_times(found, [record.num_times for record in source.files])


def dates_of_levels(source: SampleSource, levels: npt.NDArray[np.int64]) -> list[str]:
    """Return the times of levels as text.

    One rank only.

    Parameters
    ----------
    source : SampleSource
        An open source.
    levels : ndarray of int64, shape (N,)
        Time levels of the source, from 0.

    Returns
    -------
    list of str, length N or 0
        "2010-03-01" if all levels have the same time of day, otherwise "2010-03-01 12:00" or "2010-03-01 12:00:00".
        Empty if no dates are known or a file cannot be read.
    """
    try:
        times, attributes, _ = _read_times(source)
        if times is None:
            return []
        dates = dates_of(times[levels], attributes["units"], attributes.get("calendar", ""))
    except (DataError, TypeError, ValueError, OverflowError):  # dates are optional here
        return []
    texts = [str(one).partition(" ") for one in dates]
    clocks = {clock for _, _, clock in texts}
    if len(clocks) == 1:
        return [day for day, _, _ in texts]
    length = len("00:00") if all(clock.endswith(":00") for clock in clocks) else len("00:00:00")
    return [f"{day} {clock[:length]}" for day, _, clock in texts]


def places_of_levels(source: SampleSource) -> Array | None:
    """Return the locations of time levels that have one location each, as reports and profiles have.

    One rank only.

    Parameters
    ----------
    source : SampleSource
        An open source.

    Returns
    -------
    ndarray of float32 or float64, shape (T, 2), or None
        Latitude and longitude in degrees. None if a level has several locations, if locations are unknown, or if all
        levels have the same location.

    Raises
    ------
    DataError
        A file cannot be read, or a variable that `data.coordinates` names is not on the grid.
    """
    names = {"lat": LATITUDE, "lon": LONGITUDE}
    for role in names.values() if source.layout.is_grid else ():
        one = _place(role, source.files[0], source)
        if one is None or one.shape[1:] != (1, 1):
            return None
    found = _open_places(source)
    moving = [one for name in names for one in found.moving.get(name, ())]
    if not moving or any(one.shape[1:] != (1, 1) for one in moving):
        return None
    num_levels = sum(record.num_times for record in source.files)
    columns = []
    for name in names:
        pairs = zip(found.moving.get(name, ()), source.files, strict=False)
        parts = [np.broadcast_to(_whole(*one, source).reshape(-1), one[1].num_times) for one in pairs]
        columns.append(np.concatenate(parts) if parts else np.full(num_levels, found.grids[name].reshape(-1)[0]))
    return np.stack(columns, axis=1)


def places_of_reports(found: Coordinates) -> Array | None:
    """Return latitude and longitude (N, 2) of samples in a sequence, each at one location; None for other samples."""
    names, source = ("lat", "lon"), found.source
    if source.grid_shape == (1, 1):
        return places_of_levels(source)
    is_line = 1 in source.grid_shape and max(source.grid_shape) == source.num_points
    if not is_line or found.moving or not set(names) <= set(found.stored):
        return None
    return np.stack([found.grids[name].reshape(-1) for name in names], axis=1)


def _grid(values: Array, grid_shape: tuple[int, int]) -> Array:
    return np.broadcast_to(values[0], grid_shape)


def _place(role: str, record: SourceFile, source: SampleSource) -> VariableAccess | None:
    """Return the longitude or the latitude of a file; None if it has none on the grid of the samples."""
    selection, leading = source.selection, source.leading_references or tuple(record.variables)
    description, others = selection.describe(source.handles.get(record)), [record.variables[name] for name in leading]
    try:
        access = find_access(description, description.find_quantity(role, find_main(description, leading)), True)
    except DataError:
        return None
    matched = on_samples(description, access, others) if selection.has_named_dimensions else access
    full = record.num_times, *source.grid_shape
    shape = (0, 0, 0) if matched is None or not matched.info.is_numeric else matched.shape
    if all(size in (1, whole) for size, whole in zip(shape, full, strict=True)):
        return matched
    if role in selection.coordinates:
        main = others[0].info
        raise DataError(
            f"{record.path}: variable '{access.info.name}' ({access.info.sizes}), which data.coordinates names, is not "
            f"on the grid of '{main.name}' ({main.sizes}); name one that is"
        )
    return None


def _moves(access: Sequence[VariableAccess], source: SampleSource) -> bool:
    """Return whether a coordinate differs between time levels or files."""
    if any(one.shape[0] > 1 for one in access):
        return True
    first = _whole(access[0], source.files[0], source)
    others = zip(access[1:], source.files[1:], strict=True)
    return not all(np.array_equal(first, _whole(one, record, source), equal_nan=True) for one, record in others)


def _whole(access: VariableAccess, record: SourceFile, source: SampleSource) -> Array:
    return access.decode(read_part(source.handles.get(record), access, _EVERYTHING, _EVERYTHING))


def _place_attributes(name: str, info: VariableInfo) -> dict[str, str]:
    long_name, units = ("longitude", "degrees_east") if name == "lon" else ("latitude", "degrees_north")
    return {"standard_name": long_name, "long_name": info.text("long_name") or long_name, "units": units}


def _read_times(source: SampleSource) -> tuple[npt.NDArray[np.float64] | None, dict[str, str], str]:
    attributes: dict[str, str] = {}
    name = ""
    parts: list[npt.NDArray[np.float64]] = []
    for record in source.files:
        info = record.time
        if info is None or not info.units:
            return None, {}, ""
        values = read_column(source.handles.get(record), info) if record.stamps is None else record.stamps.values
        own, name = _time_attributes(info), name or info.name
        attributes = attributes or own
        calendar, wanted = (plain_calendar(one.get("calendar", "")) for one in (own, attributes))
        is_same = own["units"] == attributes["units"] and calendar == wanted
        parts.append(values if is_same else _converted(values, own, attributes, record))
    return np.concatenate(parts), attributes, name


def _time_attributes(info: VariableInfo) -> dict[str, str]:
    """Return the attributes of a time variable; its own ones if the settings name another quantity, such as a depth."""
    if not counts_from_a_date(info.units):
        own = {key: info.text(key) for key in ("standard_name", "long_name", "positive", "axis") if info.text(key)}
        return {**own, "units": info.units}
    return {
        "standard_name": info.text("standard_name") or "time",
        "long_name": info.text("long_name") or "time",
        "units": info.units,
        "calendar": info.text("calendar") or "standard",
    }


def _converted(
    values: npt.NDArray[np.float64], own: Mapping[str, str], wanted: Mapping[str, str], record: SourceFile
) -> npt.NDArray[np.float64]:
    calendar, wanted_calendar = own.get("calendar", ""), wanted.get("calendar", "")
    try:
        dates = in_calendar(dates_of(values, own["units"], calendar), wanted_calendar)
        return numbers_of(dates, wanted["units"], wanted_calendar)
    except (ValueError, TypeError, OverflowError) as error:
        raise DataError(
            f"{record.path}: its times, '{own['units']}', calendar '{calendar}', cannot be converted to "
            f"'{wanted['units']}', calendar '{wanted_calendar}' ({error}); use files with the same units and calendar"
        ) from error
