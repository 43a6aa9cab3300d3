"""Suggested inputs and target for a file without settings, its coordinates and times, and a command that trains.

N  positions of the first part of a variable
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data import CICE_INPUTS, CICE_TARGET, FieldFile, SampleSource, open_coordinates, places_of_levels
from mpitrain.data.describe.cf import OTHER, axis_of, bounds_of, find_time, is_latitude, is_longitude, is_time
from mpitrain.data.describe.names import (
    LATITUDE,
    LONGITUDE,
    as_list,
    is_absent,
    is_cice_history,
    quantity_of,
    setting_name,
)
from mpitrain.data.describe.roles import coordinate_of, further_axes
from mpitrain.data.describe.times import dates_of, read_times
from mpitrain.data.files.decoding import read
from mpitrain.data.files.variable import VariableInfo, first_part
from mpitrain.data.selection.cyclic import DAYS_A_YEAR, HOURS_A_DAY, closes, cosine_and_sine, turn_of
from mpitrain.data.selection.expressions.clock import clock_values
from mpitrain.data.selection.expressions.levels import labels_of
from mpitrain.data.selection.table import INPUTS, TARGETS
from mpitrain.errors import DataError

Array = npt.NDArray[np.floating]
_MOST_INPUTS = 12
# Attributes of variables that describe a mesh (UGRID) or a discrete sampling geometry (CF, chapter 9): not data.
_STRUCTURE = ("cf_role", "sample_dimension", "instance_dimension")
_FLAGS = ("flag_values", "flag_meanings", "flag_masks")
_CALLED_FLAG = re.compile(r"(.*[_.])?(qc|flags?|quality|mask)(_.*)?", re.IGNORECASE)
_HEIGHTS = ("altitude", "elevation", "surface_altitude", "station elevation")
_DAY = 0.99
_SAME_DAYS = 1.5  # tolerance in days: a date is a day later in leap years
_MOST_LEVELS = 100
# Least fraction of the samples with a target that must stay complete with an input, otherwise the input is left out.
_FEWEST_COMPLETE = 0.5


@dataclass(frozen=True)
class Suggestion:
    """Suggested names of inputs and targets, and of variables left out because they are missing too often."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def command(self, files: Sequence[str]) -> str:
        """Return a shell command that trains with these names."""
        names = (
            f"variables.input_variables=[{as_list(self.inputs)}]",
            f"variables.output_variables=[{as_list(self.targets)}]",
        )
        start = shlex.join(["mpitrain", "train", "--data", *files, "--output", "RUN"])
        # Double quotes suffice, since quotes inside names are single; shlex.quote is needed if a shell would expand a
        # character.
        return " ".join([start, *(shlex.quote(one) if set(one) & set('"$`\\!') else f'"{one}"' for one in names)])


def describes_itself(file: FieldFile) -> bool:
    """Return whether a file can be trained on without names: a CICE history, or a table of inputs and targets."""
    is_table = INPUTS in file.variables or TARGETS in file.variables
    is_cice = is_cice_history(file) or not any(is_absent(name, file) for name in (CICE_TARGET, *CICE_INPUTS))
    return is_table or is_cice


def suggest(file: FieldFile, usable: Mapping[str, bool]) -> Suggestion | None:
    """Return names for a first run: variables of the grid with the most variables and points; None if there are none.

    `usable` maps the name of each variable to whether its values vary.
    """
    # If equal, a grid whose variables have units comes first: masks, indices and flags have none.
    rank = lambda infos: (len(infos) * np.log(np.prod(infos[0].shape)), bool(infos[0].units))  # noqa: E731
    groups = sorted(_by_grid(file, usable).values(), key=rank, reverse=True)
    return next(filter(None, (_suggest_of(group, file, usable) for group in groups)), None)


def _suggest_of(group: Sequence[VariableInfo], file: FieldFile, usable: Mapping[str, bool]) -> Suggestion | None:
    """Return names among variables of one grid; None if there is no target or no input."""
    found = [one for one in (measured(info, file) for info in group) if one is not None]
    if not found:
        return None
    # The target: in a table usually the last column, on a grid the first variable with units.
    is_table = not any(group[0].dimensions)
    target = found[-1] if is_table else next((one for one in found if one.info.units), found[0])
    others = [one for one in found if one is not target and one.values.shape == target.values.shape]
    inputs = [one.name for one in complete_together(target, others, _MOST_INPUTS)]
    left_out = [one.name for one in others if one.name not in inputs] if len(inputs) < _MOST_INPUTS else []
    inputs = inputs or _earlier(target, file) or _where_and_when(target.info, file, usable)
    return Suggestion(tuple(inputs), (target.name,), tuple(left_out)) if inputs else None


def _by_grid(file: FieldFile, usable: Mapping[str, bool]) -> dict[tuple[str, ...], list[VariableInfo]]:
    """Return the data variables, grouped by their dimensions; heights of places only if there are no others."""
    bounds = bounds_of(file.variables)
    found: dict[tuple[str, ...], list[VariableInfo]] = {}
    heights: dict[tuple[str, ...], list[VariableInfo]] = {}
    for info in file.variables.values():
        is_own = info.is_numeric and info.shape and info.short_name not in bounds and not _is_coordinate(info, file)
        if is_own and usable.get(info.name, False) and not _is_flag(info):
            # for example the elevation of a station, repeated in each of its reports
            is_height = info.text("standard_name") in _HEIGHTS or info.text("long_name").lower() in _HEIGHTS
            groups = heights if is_height else found
            groups.setdefault(info.dimensions, []).append(info)
    return found or heights


def _earlier(target: Measured, file: FieldFile) -> list[str]:
    """Return the inputs of a time series at one place: its previous time level, and the season; [] for other data."""
    axes = [axis for axis, size in enumerate(target.info.shape) if size > 1]
    if len(axes) != 1:
        return []
    along = target.info.dimensions[axes[0]]
    own = coordinate_of(target.info, along, file.variables) if along else None
    if own is None or not is_time(own):
        own = find_time(along, target.info, file.variables)
    if own is None:
        return []
    season = [name for name in _dates([own], file) if name != "time"]
    return [f"{setting_name(target.info)}[time-1]", *season]


def places_and_times(source: SampleSource) -> dict[str, Any]:
    """Return the variables of latitude, longitude and time with their ranges, as text by kind."""
    found, facts = open_coordinates(source), {}
    of_levels = places_of_levels(source)
    for column, (name, shown) in enumerate((("lat", "latitude"), ("lon", "longitude"))):
        if name in found.stored:
            values = found.grids.get(name) if of_levels is None else of_levels[:, column]
            values = found.moving_grid(name, 0) if values is None else values
            has_some = np.isfinite(values).any()
            span = f", {np.nanmin(values):.6g} to {np.nanmax(values):.6g}" if has_some else ", all values missing"
            facts[shown] = f"{found.stored[name].info.name}{span}"
        elif source.layout.is_grid and 1 not in source.grid_shape:
            facts[shown] = f"unknown; set data.coordinates={{{shown}: {_place_called(name, source)}}}"
    if found.times is not None:
        facts["times"] = _times(found.times, found.attributes["time"])
    return facts


def _place_called(start: str, source: SampleSource) -> str:
    """Return the variable on the samples' grid with `start` in its name, or "NAME" unless there is exactly one."""
    variables = source.handles.get(source.files[0]).variables.values()
    held = source.files[0].variables
    main = held[next(iter(source.leading_references or held))].info
    on_grid = [one for one in variables if one.is_numeric and one.dimensions[-2:] == main.dimensions[-2:]]
    found = [one.name for one in on_grid if start in one.short_name.lower()]
    return found[0] if len(found) == 1 else "NAME"


def _times(times: Any, attributes: Mapping[str, str]) -> str:
    """Return the first and the last time as dates with the calendar, or as numbers if the units define no dates."""
    ends, calendar = times[[0, -1]], attributes.get("calendar", "")
    try:
        first, last = (str(date) for date in dates_of(ends, attributes["units"], calendar))
    except (ValueError, TypeError, OverflowError) as error:
        advice = "use units such as 'days since 2000-01-01'"
        return f"{ends[0]:.6g} to {ends[1]:.6g} {attributes['units']}, which define no dates ({error}); {advice}"
    return f"{len(times)}, {first} to {last}, calendar {calendar}"


def _is_coordinate(info: VariableInfo, file: FieldFile) -> bool:
    is_own_dimension = info.dimensions == (info.short_name,)
    is_time = len(info.shape) == 1 and axis_of(info) not in (None, OTHER)
    is_of_mesh = any(map(info.text, _STRUCTURE))
    return is_own_dimension or is_time or is_of_mesh or _is_place(info)


def _is_flag(info: VariableInfo) -> bool:
    """Return whether a variable is a flag, such as a quality flag (CF 3.5), by its attributes or its name."""
    is_declared = any(name in info.attributes for name in _FLAGS) or "flag" in info.text("standard_name")
    return is_declared or (not info.units and _CALLED_FLAG.fullmatch(info.short_name) is not None)


def _is_place(info: VariableInfo) -> bool:
    names = (quantity_of(LATITUDE), quantity_of(LONGITUDE))
    return is_latitude(info) or is_longitude(info) or quantity_of(info.short_name) in names


def _where_and_when(info: VariableInfo, file: FieldFile, usable: Mapping[str, bool]) -> list[str]:
    """Return the names of a variable's latitude, longitude and times, or, without a place, of its axes' coordinates.

    Axes of levels are excluded, because the target is a single level.
    """
    levels = {info.dimensions[axis] for axis in further_axes(info, file.variables)}
    names = [name for name in info.dimensions if name and name not in levels]
    own = [one for one in (coordinate_of(info, name, file.variables) for name in names) if one is not None]
    along = [
        one
        for one in file.variables.values()
        if one.shape and set(one.dimensions) <= set(names) and _is_coordinate(one, file) and one.is_numeric
    ]
    found = [one for one in along if _is_place(one)]
    dates = _dates([*own, *along], file)
    if found and all(usable.get(one.name, False) for one in found):
        return [*(name for one in found for name in _as_place(one, file)), *dates]
    axes = [one.name for one in own if one.is_numeric and one.shape[0] > 1 and usable.get(one.name, False)]
    return axes or dates  # times of reports lie along an axis without a coordinate variable


def _as_place(info: VariableInfo, file: FieldFile) -> list[str]:
    """Return the inputs for a coordinate of a place: cosine and sine for global longitudes, which are periodic."""
    turn = turn_of(info.name, file)
    return [info.name] if turn is None else cosine_and_sine(setting_name(info), turn)


def _dates(own: Sequence[VariableInfo], file: FieldFile) -> list[str]:
    """Return the inputs for times: day of the year and hour of the day, or the time if neither of them varies."""
    times = [one for one in own if is_time(one) and one.shape[0] > 1]
    if not times:
        return []
    try:
        known = read_times(times[0], file)[:2]
    except DataError:
        return []
    found: list[str] = []
    for name, turn, least in (("day_of_year", DAYS_A_YEAR, _SAME_DAYS), ("hour_of_day", HOURS_A_DAY, 0.0)):
        values = clock_values(name, *known)
        is_within_days = name != "hour_of_day" or np.median(np.diff(np.unique(known[0]))) < _DAY
        if np.nanmax(values) - np.nanmin(values) > least and is_within_days:
            found += cosine_and_sine(name, turn) if closes(values, turn) else [name]
    return found or ["time"]


@dataclass(frozen=True)
class Measured:
    """A variable, or one level of it: its `name` in settings, and its first values (N,)."""

    name: str
    info: VariableInfo
    values: Array


def measured(info: VariableInfo, file: FieldFile) -> Measured | None:
    """Return a variable at the first levels of its further dimensions at which its values vary; None without any."""
    further = [axis for axis in further_axes(info, file.variables) if info.shape[axis] > 1 and info.dimensions[axis]]
    levels = itertools.product(*(range(info.shape[axis]) for axis in further))
    for positions in itertools.islice(levels, _MOST_LEVELS):
        fixed = dict(zip(further, positions, strict=True))
        found = Measured(_named(info, fixed, file), info, read(file, info.name, first_part(info, fixed)).reshape(-1))
        if _differs(found.values):
            return found
    return None


def complete_together(target: Measured, candidates: Sequence[Measured], most: int) -> list[Measured]:
    """Return at most `most` candidates, in their order, that have varying values at positions where the target has one.

    Candidates with the fewest missing values are chosen first; one that would leave less than half of the target's
    positions complete is skipped, and so is a copy of the target.
    """
    has_target = np.isfinite(target.values)
    fewest, complete = max(2, _FEWEST_COMPLETE * int(has_target.sum())), has_target
    found: list[Measured] = []
    for one in sorted(candidates, key=lambda one: -int((np.isfinite(one.values) & has_target).sum())):
        if np.array_equal(one.values, target.values, equal_nan=True):
            continue
        together = complete & np.isfinite(one.values)
        kept = [*found, one]
        if together.sum() >= fewest and all(_differs(each.values[together]) for each in (target, *kept)):
            found, complete = kept, together
        if len(found) == most:
            break
    return [one for one in candidates if one in found]


def _differs(values: Array) -> bool:
    known = values[np.isfinite(values)]
    return bool(known.size and known.min() < known.max())


def _named(info: VariableInfo, fixed: Mapping[int, int], file: FieldFile) -> str:
    levels = ", ".join(one for axis, position in fixed.items() for one in labels_of(axis, [position], info, file))
    return f"{setting_name(info)}[{levels}]" if levels else info.name
