"""What could be learnt from a file that no setting describes: inputs, a target, places and times, and a command.

N  positions that are looked at
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
# What says that a variable is of a mesh (UGRID) or of the places of reports (CF, chapter 9), not of what was measured.
_STRUCTURE = ("cf_role", "sample_dimension", "instance_dimension")
_FLAGS = ("flag_values", "flag_meanings", "flag_masks")
_CALLED_FLAG = re.compile(r"(.*[_.])?(qc|flags?|quality|mask)(_.*)?", re.IGNORECASE)
_HEIGHTS = ("altitude", "elevation", "surface_altitude", "station elevation")
_DAY = 0.99
_SAME_DAYS = 1.5  # a date is a day later in leap years
_MOST_LEVELS = 100
# An input that leaves fewer of the samples that have a target is not worth what it takes.
_FEWEST_COMPLETE = 0.5


@dataclass(frozen=True)
class Suggestion:
    """Names that could be inputs and targets of a run, and those that are too often missing beside them."""

    inputs: tuple[str, ...]
    targets: tuple[str, ...]
    left_out: tuple[str, ...] = ()

    def command(self, files: Sequence[str]) -> str:
        """Return the command that trains with these names, for a shell."""
        names = (
            f"variables.input_variables=[{as_list(self.inputs)}]",
            f"variables.output_variables=[{as_list(self.targets)}]",
        )
        start = shlex.join(["mpitrain", "train", "--data", *files, "--output", "RUN"])
        # Names are in single quotes where they need any; a shell would read more into these.
        return " ".join([start, *(shlex.quote(one) if set(one) & set('"$`\\!') else f'"{one}"' for one in names)])


def describes_itself(file: FieldFile) -> bool:
    """Tell whether a file can be trained with without names: a CICE history, or a table of inputs and targets."""
    is_table = INPUTS in file.variables or TARGETS in file.variables
    is_cice = is_cice_history(file) or not any(is_absent(name, file) for name in (CICE_TARGET, *CICE_INPUTS))
    return is_table or is_cice


def suggest(file: FieldFile, usable: Mapping[str, bool]) -> Suggestion | None:
    """Return names for a first run: variables of the grid that has most of them and is large.

    `usable` tells of each variable whether it has values that differ. None where the file has no such variable.
    """
    # Of as many and as large ones, those with units: without them are masks, indices and flags.
    rank = lambda infos: (len(infos) * np.log(np.prod(infos[0].shape)), bool(infos[0].units))  # noqa: E731
    groups = sorted(_by_grid(file, usable).values(), key=rank, reverse=True)
    return next(filter(None, (_suggest_of(group, file, usable) for group in groups)), None)


def _suggest_of(group: Sequence[VariableInfo], file: FieldFile, usable: Mapping[str, bool]) -> Suggestion | None:
    """Return names among variables of one grid; None where there is nothing to learn from."""
    found = [one for one in (measured(info, file) for info in group) if one is not None]
    if not found:
        return None
    # Of a table the last column is what the others are for, as a rule; of a grid's variables the first is the main one.
    is_table = not any(group[0].dimensions)
    target = found[-1] if is_table else next((one for one in found if one.info.units), found[0])
    others = [one for one in found if one is not target and one.values.shape == target.values.shape]
    inputs = [one.name for one in complete_together(target, others, _MOST_INPUTS)]
    left_out = [one.name for one in others if one.name not in inputs] if len(inputs) < _MOST_INPUTS else []
    inputs = inputs or _earlier(target, file) or _where_and_when(target.info, file, usable)
    return Suggestion(tuple(inputs), (target.name,), tuple(left_out)) if inputs else None


def _by_grid(file: FieldFile, usable: Mapping[str, bool]) -> dict[tuple[str, ...], list[VariableInfo]]:
    """Return what was measured, by its dimensions. Heights of places are what was measured where nothing else is."""
    bounds = bounds_of(file.variables)
    found: dict[tuple[str, ...], list[VariableInfo]] = {}
    heights: dict[tuple[str, ...], list[VariableInfo]] = {}
    for info in file.variables.values():
        is_own = info.is_numeric and info.shape and info.short_name not in bounds and not _is_coordinate(info, file)
        if is_own and usable.get(info.name, False) and not _is_flag(info):
            # The elevation of a station, which its reports repeat.
            is_height = info.text("standard_name") in _HEIGHTS or info.text("long_name").lower() in _HEIGHTS
            groups = heights if is_height else found
            groups.setdefault(info.dimensions, []).append(info)
    return found or heights


def _earlier(target: Measured, file: FieldFile) -> list[str]:
    """Return the names by which a series at one place is predicted from its past: its level before, and the season."""
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
    """Return which variables say where and when samples are, from where to where, by what they are."""
    found, facts = open_coordinates(source), {}
    of_levels = places_of_levels(source)
    for column, (name, shown) in enumerate((("lat", "latitude"), ("lon", "longitude"))):
        if name in found.stored:
            values = found.grids.get(name) if of_levels is None else of_levels[:, column]
            values = found.moving_grid(name, 0) if values is None else values
            has_some = np.isfinite(values).any()
            span = f", {np.nanmin(values):.6g} to {np.nanmax(values):.6g}" if has_some else ", of which all are missing"
            facts[shown] = f"{found.stored[name].info.name}{span}"
        elif source.layout.is_grid and 1 not in source.grid_shape:
            facts[shown] = f"not known; data.coordinates={{{shown}: {_place_called(name, source)}}} names it"
    if found.times is not None:
        facts["times"] = _times(found.times, found.attributes["time"])
    return facts


def _place_called(start: str, source: SampleSource) -> str:
    """Return the name of the one variable on the grid of the samples that is called as a place is; NAME without one."""
    variables = source.handles.get(source.files[0]).variables.values()
    held = source.files[0].variables
    main = held[next(iter(source.leading_references or held))].info
    on_grid = [one for one in variables if one.is_numeric and one.dimensions[-2:] == main.dimensions[-2:]]
    found = [one.name for one in on_grid if start in one.short_name.lower()]
    return found[0] if len(found) == 1 else "NAME"


def _times(times: Any, attributes: Mapping[str, str]) -> str:
    """Return the first and the last time as dates, and the calendar; as numbers where the units give no dates."""
    ends, calendar = times[[0, -1]], attributes.get("calendar", "")
    try:
        first, last = (str(date) for date in dates_of(ends, attributes["units"], calendar))
    except (ValueError, TypeError, OverflowError) as error:
        advice = "units such as 'days since 2000-01-01' do"
        return f"{ends[0]:.6g} to {ends[1]:.6g} {attributes['units']}, which give no dates ({error}); {advice}"
    return f"{len(times)}, {first} to {last}, calendar {calendar}"


def _is_coordinate(info: VariableInfo, file: FieldFile) -> bool:
    is_own_dimension = info.dimensions == (info.short_name,)
    is_time = len(info.shape) == 1 and axis_of(info) not in (None, OTHER)
    is_of_mesh = any(map(info.text, _STRUCTURE))
    return is_own_dimension or is_time or is_of_mesh or _is_place(info)


def _is_flag(info: VariableInfo) -> bool:
    """Tell whether a variable is a flag, such as of quality (CF 3.5): what was found about others, not measured."""
    is_said = any(name in info.attributes for name in _FLAGS) or "flag" in info.text("standard_name")
    return is_said or (not info.units and _CALLED_FLAG.fullmatch(info.short_name) is not None)


def _is_place(info: VariableInfo) -> bool:
    names = (quantity_of(LATITUDE), quantity_of(LONGITUDE))
    return is_latitude(info) or is_longitude(info) or quantity_of(info.short_name) in names


def _where_and_when(info: VariableInfo, file: FieldFile, usable: Mapping[str, bool]) -> list[str]:
    """Return the names of latitude and longitude of a variable, and of its times; without them its axes' own.

    An axis of levels is none of these: the target is one of its levels.
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
    return axes or dates  # the times of reports lie along an axis without a variable of its own


def _as_place(info: VariableInfo, file: FieldFile) -> list[str]:
    """Return what of a place is an input: of longitudes around the globe cosine and sine, which have no seam."""
    turn = turn_of(info.name, file)
    return [info.name] if turn is None else cosine_and_sine(setting_name(info), turn)


def _dates(own: Sequence[VariableInfo], file: FieldFile) -> list[str]:
    """Return what of times is an input: day of the year and hour of the day, or the time where neither differs."""
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
    """A variable, or one level of it: the `name` by which settings call it, and its first values (N,)."""

    name: str
    info: VariableInfo
    values: Array


def measured(info: VariableInfo, file: FieldFile) -> Measured | None:
    """Return a variable with the first level along each further dimension whose values differ; None without one."""
    further = [axis for axis in further_axes(info, file.variables) if info.shape[axis] > 1 and info.dimensions[axis]]
    levels = itertools.product(*(range(info.shape[axis]) for axis in further))
    for positions in itertools.islice(levels, _MOST_LEVELS):
        fixed = dict(zip(further, positions, strict=True))
        found = Measured(_named(info, fixed, file), info, read(file, info.name, first_part(info, fixed)).reshape(-1))
        if _differs(found.values):
            return found
    return None


def complete_together(target: Measured, candidates: Sequence[Measured], most: int) -> list[Measured]:
    """Return the candidates (in their order) that have values where the target has, and differ there: `most` of them.

    Those that are missing least come first; one that would leave less than half of the samples is left out, and so is a
    copy of the target.
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
