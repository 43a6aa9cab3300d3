"""Copy coordinates of the data to predictions on its grid: dimension and scalar coordinates, bounds, projections.

Latitude, longitude and time are written by `output_grid`; this module copies all other coordinates of the targets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from mpitrain.data import Coordinates, FieldFile, SampleSource, VariableInfo
from mpitrain.data.describe.cf import named_coordinates
from mpitrain.data.describe.roles import coordinate_of
from mpitrain.data.files.absolute_time import days_of, is_absolute
from mpitrain.data.files.decoding import read
from mpitrain.data.selection.variable_access import FROM_RADIANS, is_radians
from mpitrain.inference.netcdf_output import Names, OutputVariable
from mpitrain.inference.output_grid import OutputGrid

Array = npt.NDArray[Any]
_LARGEST_BYTES = 64 * 2**20
# Attributes of packed numbers, which are written decoded, and references to variables that may not be copied.
_LEFT_OUT = (
    "_FillValue", "missing_value", "scale_factor", "add_offset", "valid_min", "valid_max", "valid_range", "_Unsigned",
    "bounds", "edges", "climatology", "coordinates", "formula_terms", "cell_measures",
)  # fmt: skip
_OF_AXIS = ("standard_name", "long_name", "units", "positive")


@dataclass
class Carried:
    """Variables to add to the file, by name in the order of writing, and attributes to add to its other variables.

    `coordinates`: names to add to the attribute `coordinates` of all data variables. `of_data`: their other new
    attributes. `bounds`: the names of bounds by the names of their coordinates.
    """

    variables: dict[str, OutputVariable] = field(default_factory=dict)
    coordinates: list[str] = field(default_factory=list)
    of_data: dict[str, str] = field(default_factory=dict)
    bounds: dict[str, str] = field(default_factory=dict)

    def named_by(self, one: OutputVariable) -> OutputVariable:
        """Return a data variable with the attributes that refer to the copied variables."""
        return replace(one, attributes={**one.attributes, **self.of_data}).with_coordinates(self.coordinates)

    def bounded(self, one: OutputVariable) -> OutputVariable:
        """Return a coordinate with the attribute `bounds`, if it has bounds."""
        bounds = {"bounds": self.bounds[one.name]} if one.name in self.bounds else {}
        return replace(one, attributes={**one.attributes, **bounds})


def carry(source: SampleSource, grid: OutputGrid | None, coordinates: Coordinates, names: Names) -> Carried:
    """Return the first target's coordinates in the first file, for predictions on its grid; nothing without a grid.

    Left out are coordinates that differ between several files, and those with a name that is already taken.
    """
    found = Carried()
    if grid is None or not source.leading_references:
        return found
    dimensions, written = grid.stored_dimensions, grid.stored_names(coordinates)
    info, shown_names = source.files[0].variables[source.leading_references[0]].info, dict(written)
    file = source.handles.get(source.files[0])
    is_carried = partial(_is_carried, source=source, dimensions=dimensions, taken=names.variables)
    for one in _coordinates(info, file):
        if one.name not in shown_names and one.short_name not in found.variables and is_carried(one, one.dimensions):
            new = _kept(one, file, dimensions, one.dimensions)
            found.variables[one.short_name], shown_names[one.name] = new, one.short_name
            if new.dimensions != (one.short_name,):
                found.coordinates.append(one.short_name)
    for stored, shown in shown_names.items():
        of = file.variables[stored]
        bounds = file.variables.get(of.text("bounds"))
        if bounds is None or bounds.dimensions[:-1] != of.dimensions:
            continue
        has_room = bounds.dimensions[-1] not in dimensions and names.has_room_for(
            bounds.dimensions[-1], bounds.shape[-1]
        )
        if has_room and is_carried(bounds, of.dimensions):
            new = _kept(bounds, file, dimensions, of.dimensions)
            values = _as_written(np.asarray(new.values), bounds, of, stored in written)
            found.variables[new.name] = replace(new, attributes={}, has_fill=False, values=values)
            found.bounds[shown], names.dimensions[bounds.dimensions[-1]] = new.name, bounds.shape[-1]
    mapping = file.variables.get(info.text("grid_mapping"))
    if mapping is not None and mapping.short_name not in names.variables:
        name = found.of_data["grid_mapping"] = mapping.short_name
        found.variables.setdefault(name, OutputVariable(name, (), "i4", attributes_of(mapping)))
    names.variables.update(found.variables)
    return found


def _is_carried(
    info: VariableInfo, along: tuple[str, ...], source: SampleSource, dimensions: Mapping[str, str],
    taken: Collection[str],
) -> bool:  # fmt: skip
    """Tell whether a variable with dimensions `along` fits into the output and is the same in all files."""
    is_small = prod(info.shape) * info.item_bytes <= _LARGEST_BYTES
    is_single = len(along) == 1 and info.shape[0] == 1  # the level of the targets, such as 2 m above ground
    if info.short_name in taken or not info.is_numeric or not is_small:
        return False
    if not (set(along) <= set(dimensions) or is_single):
        return False
    if len(source.files) == 1:
        return True
    known = source.files[0].variables.values()
    if set(along) & {one.info.dimensions[one.axes.time] for one in known if one.axes.time is not None}:
        return False
    values = [_values(source.handles.get(record), info.name) for record in source.files]
    known_values = [one for one in values if one is not None]
    is_same = all(np.array_equal(one, known_values[0], equal_nan=True) for one in known_values)
    return is_same and len(known_values) == len(source.files)


def _values(file: FieldFile, name: str) -> Array | None:
    info = file.variables.get(name)
    return None if info is None else read(file, name, (slice(None),) * len(info.shape))


def _coordinates(info: VariableInfo, file: FieldFile) -> Iterator[VariableInfo]:
    """Yield the coordinate variables of a variable's dimensions, then those in its attribute `coordinates`."""
    own = (coordinate_of(info, name, file.variables) for name in info.dimensions if name)
    yield from (one for one in own if one is not None and one.is_numeric)
    yield from (one for one in named_coordinates(info, file.variables) if one.is_numeric)


def _kept(one: VariableInfo, file: FieldFile, dimensions: Mapping[str, str], along: tuple[str, ...]) -> OutputVariable:
    """Return a variable of the data as an output variable, at position 0 of a first dimension that the file lacks."""
    values = np.asarray(_values(file, one.name))
    shown = tuple(dimensions.get(name, name) for name in one.dimensions)
    if along and along[0] not in dimensions:
        values, shown = values[0], shown[1:]
    kind = "f4" if values.dtype == np.float32 else "f8"
    return OutputVariable(one.short_name, shown, kind, attributes_of(one), values=values)


def _as_written(values: Array, bounds: VariableInfo, of: VariableInfo, is_place_or_time: bool) -> Array:
    """Return bounds in the units in which their coordinate is written: degrees, or days for absolute times."""
    if is_place_or_time and is_radians(of.units):
        return values * FROM_RADIANS.scale
    return days_of(values, of.text("calendar")) if is_absolute(of.text("units")) and not bounds.units else values


def attributes_of(info: VariableInfo, kind: Literal["single", "axis", "beside"] = "single") -> dict[str, Any]:
    """Return the attributes of a coordinate that hold for its decoded values in another file.

    `axis`, the coordinate of a level dimension: only those that describe it. `beside`, an auxiliary coordinate along
    it: not `axis`, which belongs to the dimension, nor a standard name that needs formula terms (CF 4.3.3).
    """
    if kind == "axis":
        return {key: info.text(key) for key in _OF_AXIS if info.text(key)}
    units = {"units": info.units} if info.units else {}
    left_out = set(_LEFT_OUT)
    if kind == "beside":
        left_out |= {"axis", "standard_name"} if info.text("formula_terms") else {"axis"}
    return {key: value for key, value in info.attributes.items() if key not in left_out} | units
