"""What cf_xarray and xarray make of a file, beside what the package makes of it.

T  time levels
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import cftime
import numpy as np
import xarray as xr

from mpitrain.data.describe.axes import Axes
from mpitrain.data.describe.cf import COLUMNS, LEAD, OTHER, ROWS, TIME, axis_of_dimension, bounds_of, is_time
from mpitrain.data.describe.description import FileDescription
from mpitrain.data.describe.names import LATITUDE, LONGITUDE, is_cice_history
from mpitrain.data.describe.roles import further_axes
from mpitrain.data.describe.times import DecodedTimes, read_times
from mpitrain.data.files.variable import VariableInfo
from mpitrain.data.formats.open import open_field_file
from mpitrain.errors import DataError

# cf_xarray's words for what the package calls a role of a dimension.
ROLE_WORDS = {
    TIME: ("T", "time"), ROWS: ("Y", "latitude"), COLUMNS: ("X", "longitude"), OTHER: ("Z", "vertical"),
}  # fmt: skip
TOLERANCE_DAYS = 1e-6
NONE = "none"


class Difference(NamedTuple):
    """A variable, and what differs: `what: answer of cf_xarray | answer of the package`."""

    variable: str
    what: str


@dataclass
class Compared:
    """The differences of a file, and how many variables and time coordinates were compared."""

    differences: set[Difference]
    num_variables: int = 0
    num_times: int = 0


def compare(path: Path) -> Compared:
    """Compare all data variables, coordinate variables and times of a file."""
    file = open_field_file(path)
    engine = "zarr" if path.suffix == ".zarr" else "netcdf4"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of consolidated metadata, and of dates in the year 0
            with xr.open_dataset(path, engine=engine, decode_times=False) as dataset:
                return _compare(dataset, FileDescription(file))
    finally:
        file.close()


def _compare(dataset: xr.Dataset, description: FileDescription) -> Compared:
    found, times = Compared(set()), set()
    for name in _coordinate_variables(dataset, description):
        found.differences |= set(_differences_of_role(dataset, description, name))
    for name in _data_variables(dataset, description):
        info = description.variables[name]
        axes, time = _axes_and_time(description, info)
        found.differences |= set(_differences_of_variable(dataset, description, info, axes, time))
        found.num_variables += 1
        times |= {time.name} if time is not None and time.name in dataset.variables else set()
    for name in sorted(times):
        found.differences |= set(_differences_of_dates(dataset, description, description.variables[name]))
    found.num_times = len(times)
    return found


def _data_variables(dataset: xr.Dataset, description: FileDescription) -> list[str]:
    """Return the names of the numeric variables that are neither coordinates nor bounds for either."""
    bounds = bounds_of(description.variables)
    return [
        str(name)
        for name, one in dataset.data_vars.items()
        if one.dims and name in description.variables and name not in bounds and _is_data(description, str(name))
    ]


def _is_data(description: FileDescription, name: str) -> bool:
    info = description.variables[name]
    is_place = any(description.is_quantity(name, quantity) for quantity in (LATITUDE, LONGITUDE))
    return info.is_numeric and not is_place and not is_time(info)


def _coordinate_variables(dataset: xr.Dataset, description: FileDescription) -> list[str]:
    return [str(name) for name in dataset.dims if name in dataset.coords and name in description.variables]


def _axes_and_time(description: FileDescription, info: VariableInfo) -> tuple[Axes | None, VariableInfo | None]:
    """Return the axes of a variable, of which levels are taken at the first, and its time; None where refused."""
    try:
        axes = description.axes_of(info, dict.fromkeys(further_axes(info, description.variables), 0))
        return axes, description.time_of([(info, axes)])
    except DataError:
        return None, None


# What cf_xarray says


def _said(array: xr.DataArray) -> dict[str, set[str]]:
    """Return the names by cf_xarray's words.

    What xarray decodes as dates is a time too (CF 4.4): cf_xarray leaves that to its users.
    """
    said = {word: set(map(str, names)) for word, names in {**array.cf.axes, **array.cf.coordinates}.items()}
    named = set(array.encoding.get("coordinates", "").split()) & set(array.coords)
    dated = {str(one) for one in {*(named or array.coords), *array.indexes} if _is_dated(array[one])}
    return {**said, "time": said.get("time", set()) | said.get("T", set()) | dated}


def _is_dated(array: xr.DataArray) -> bool:
    units = array.attrs.get("units", "")
    return isinstance(units, str) and "since" in units


def _roles_said(array: xr.DataArray, dimension: str) -> set[str]:
    said = _said(array)
    return {role for role, words in ROLE_WORDS.items() if any(dimension in said.get(word, ()) for word in words)}


# Differences


def _differences_of_role(dataset: xr.Dataset, description: FileDescription, name: str) -> Iterator[Difference]:
    """Yield where the attributes of a coordinate variable mean another role."""
    said, own = _roles_said(dataset[name], name), axis_of_dimension(description.variables[name])
    role = {None: set(), LEAD: {LEAD}}.get(own, {str(own)})
    if said != role:
        yield Difference(name, f"role: {_shown(said)} | {_shown(role)}")


def _differences_of_variable(
    dataset: xr.Dataset, description: FileDescription, info: VariableInfo, axes: Axes | None, time: VariableInfo | None
) -> Iterator[Difference]:
    """Yield where latitude, longitude, time or the role of a dimension differ."""
    for word, quantity in (("latitude", LATITUDE), ("longitude", LONGITUDE)):
        yield from _difference_of_name(dataset, info.name, word, _place_of(description, info, quantity))
    if axes is None:
        yield Difference(info.name, "axes: any | refused")
        return
    yield from _difference_of_name(dataset, info.name, "time", None if time is None else time.name)
    for axis, dimension in enumerate(info.dimensions):
        roles, own = _roles_said(dataset[info.name], dimension), _role_of_axis(axes, axis)
        if roles and own not in roles:
            yield Difference(info.name, f"dimension {dimension}: {_shown(roles)} | {own}")


def _role_of_axis(axes: Axes, axis: int) -> str:
    return {axes.time: TIME, axes.rows: ROWS, axes.columns: COLUMNS}.get(axis, OTHER)


def _place_of(description: FileDescription, info: VariableInfo, quantity: str) -> str | None:
    """Return the latitude or longitude of a variable; of a CICE history, whose coordinates are those of its U grid."""
    own = description.coordinates_of(info)
    found = next((one.name for one in own if description.is_quantity(one.name, quantity)), None)
    return description.find_quantity(quantity, info) if found is None and is_cice_history(description.file) else found


def _difference_of_name(dataset: xr.Dataset, variable: str, word: str, own: str | None) -> Iterator[Difference]:
    """Yield where the package takes none of what cf_xarray names, or something where it names nothing.

    `unnamed` stands for what cf_xarray would name as well, were it a coordinate for xarray.
    """
    said = _said(dataset[variable]).get(word, set())
    if own in said or (not said and own is None):
        return
    if own is not None and own not in dataset.variables:
        own = f"{own}, made"
    elif own is not None and own in _said(_with_coordinate(dataset, variable, own)).get(word, ()):
        said |= {"unnamed"}
    yield Difference(variable, f"{word}: {_shown(said)} | {own or NONE}")


def _with_coordinate(dataset: xr.Dataset, variable: str, name: str) -> xr.DataArray:
    """Return a variable as if its attribute `coordinates` named one more."""
    array = dataset.set_coords(name)[variable]
    if "coordinates" in array.encoding:
        array.encoding = {**array.encoding, "coordinates": f"{array.encoding['coordinates']} {name}"}
    return array


def _shown(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or NONE


# Dates


def _differences_of_dates(
    dataset: xr.Dataset, description: FileDescription, info: VariableInfo
) -> Iterator[Difference]:
    """Yield where the days since 1970 or the calendar of a time coordinate differ, or one of the two reads none."""
    try:
        own: DecodedTimes | None = read_times(info, description.file)
    except DataError:
        own = None
    theirs = _days_of_xarray(dataset, info, own is not None and own.are_interval_middles)
    if theirs is None or own is None:
        if theirs is not own:
            yield Difference(info.name, f"dates: {'unread | read' if theirs is None else 'read | unread'}")
        return
    days, calendar = theirs
    if calendar != _start_of(own.calendar).calendar:
        yield Difference(info.name, f"calendar: {calendar} | {own.calendar}")
    if not np.allclose(days, own.days, rtol=0, atol=TOLERANCE_DAYS, equal_nan=True):
        (place, *_) = np.flatnonzero(~np.isclose(days, own.days, rtol=0, atol=TOLERANCE_DAYS, equal_nan=True))
        yield Difference(info.name, f"dates: {days[place]:.10g} | {own.days[place]:.10g}")


def _days_of_xarray(
    dataset: xr.Dataset, info: VariableInfo, are_interval_middles: bool
) -> tuple[np.ndarray, str] | None:
    """Return days (T,) since 1970 and the calendar as xarray decodes them, of bounds the middles; None where it fails.

    Bounds have the units and the calendar of what they bound (CF 7.1).
    """
    time = dataset[info.name].variable
    values = dataset[time.attrs.get("bounds") or time.attrs["climatology"]].variable if are_interval_middles else time
    attributes = {key: time.attrs[key] for key in ("units", "calendar") if key in time.attrs}
    given = xr.Dataset({"times": (values.dims, values.values, attributes)})
    try:
        decoded = xr.decode_cf(given, decode_times=xr.coders.CFDatetimeCoder(use_cftime=True))["times"]
    except (ValueError, TypeError, OverflowError):
        return None
    if decoded.dtype != object:
        return None
    days, (first, *_) = _days_since_1970(decoded.values), np.ravel(decoded.values)
    return np.atleast_1d(days.mean(axis=-1) if are_interval_middles else days), first.calendar


def _days_since_1970(dates: np.ndarray) -> np.ndarray:
    """Return days since 1970 in the calendar of the dates."""
    days = [(one - _start_of(one.calendar, one.has_year_zero)).total_seconds() / 86400.0 for one in np.ravel(dates)]
    return np.array(days).reshape(np.shape(dates))


def _start_of(calendar: str, has_year_zero: bool | None = None) -> cftime.datetime:
    zero = {} if has_year_zero is None else {"has_year_zero": has_year_zero}
    return cftime.datetime(1970, 1, 1, calendar=calendar, **zero)
