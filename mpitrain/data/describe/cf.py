"""Roles of coordinate variables by the CF conventions: `standard_name`, `axis`, `units` and `positive`.

CF conventions 1.11, chapters 4 and 5. Programs without standard names, such as Ferret, mark coordinates by `units`
only; the criteria are those of cf_xarray and MetPy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mpitrain.data.files.variable import VariableInfo, Variables
from mpitrain.data.units import counts_from_a_date


class Role(str):
    """Role of a dimension, such as `TIME`; compares equal to that text. `reason` is the evidence for it."""

    __slots__ = ("reason",)
    reason: str

    def __new__(cls, role: str, reason: str) -> Role:
        """Create a role with its reason."""
        new = super().__new__(cls, role)
        new.reason = reason
        return new


def reason_of(role: str | None) -> str:
    """Return the evidence for a role; "" if there is none."""
    return role.reason if isinstance(role, Role) else ""


TIME, ROWS, COLUMNS, OTHER = "time", "rows", "columns", "other"
# Forecast period: the time axis if there is no other.
LEAD = "lead"
# The attribute of CF, then those of GFDL's models, GrADS and netCDF-Java.
_AXIS_ATTRIBUTES = ("axis", "cartesian_axis", "grads_dim", "_CoordinateAxisType")
_AXIS_VALUES = {
    "t": TIME, "time": TIME, "y": ROWS, "lat": ROWS, "geoy": ROWS, "x": COLUMNS, "lon": COLUMNS, "geox": COLUMNS,
    "z": OTHER, "geoz": OTHER, "height": OTHER, "pressure": OTHER, "ensemble": OTHER,
}  # fmt: skip
_STANDARD_NAMES = {
    **dict.fromkeys(("time", "forecast_reference_time"), TIME), "forecast_period": LEAD,
    **dict.fromkeys(("latitude", "grid_latitude"), ROWS),
    **dict.fromkeys(("longitude", "grid_longitude"), COLUMNS),
    **{f"projection_{axis}{word}_coordinate": kind
       for axis, kind in (("y", ROWS), ("x", COLUMNS)) for word in ("", "_angular")},
    **dict.fromkeys(("depth", "air_pressure", "model_level_number", "realization"), OTHER),
    # CF conventions, appendix D
    **{f"{levels}_coordinate": OTHER for levels in (
        "atmosphere_ln_pressure", "atmosphere_sigma", "atmosphere_hybrid_sigma_pressure", "atmosphere_hybrid_height",
        "atmosphere_sleve", "ocean_sigma", "ocean_s", "ocean_sigma_z", "ocean_double_sigma")},
    "ocean_s_coordinate_g1": OTHER, "ocean_s_coordinate_g2": OTHER,
}  # fmt: skip
# Vertical only for coordinate variables of the dimension: stations have heights as well.
_HEIGHTS = ("height", "altitude", "geopotential_height", "height_above_mean_sea_level",
            "height_above_reference_ellipsoid", "height_above_geopotential_datum")  # fmt: skip
_NORTH = re.compile(r"^degrees?_?n(orth)?$", re.IGNORECASE)
_EAST = re.compile(r"^degrees?_?e(ast)?$", re.IGNORECASE)
# CF conventions 4.3: coordinates with units of pressure, or the dimensionless units of COARDS, are vertical.
_OF_LEVELS = re.compile(
    r"^([hk]?pa|(hecto|kilo)?pascals?|(m|milli|d|deci)?bars?|mb|level|layer|sigma_level)$", re.IGNORECASE
)
# Attributes that name boundary variables, which have the units of the coordinate that names them.
_NAMING_BOUNDS = ("bounds", "edges", "climatology")


def axis_of(coordinate: VariableInfo) -> Role | None:
    """Return the axis of which a variable is the coordinate: time, lead, rows, columns or other; None if not known."""
    return next((_by(attribute, coordinate, role) for role, attribute in _evidence(coordinate) if role), None)


def _evidence(coordinate: VariableInfo) -> Iterator[tuple[str | None, str]]:
    """Yield the role that each attribute gives a variable, and the attribute, the strongest evidence first."""
    for name in _AXIS_ATTRIBUTES:
        yield _AXIS_VALUES.get(coordinate.text(name).lower()), name
    yield _STANDARD_NAMES.get(coordinate.text("standard_name")), "standard_name"
    yield (TIME if counts_from_a_date(coordinate.units) else None), "units"
    for pattern, role in ((_NORTH, ROWS), (_EAST, COLUMNS)):
        yield (role if pattern.match(coordinate.units) else None), "units"
    yield (OTHER if coordinate.text("positive").lower() in ("up", "down") else None), "positive"


def _by(attribute: str, coordinate: VariableInfo, role: str) -> Role:
    return Role(role, f"{attribute} '{coordinate.text(attribute)}' of {coordinate.short_name}")


def axis_of_dimension(coordinate: VariableInfo) -> Role | None:
    """Return the axis of the dimension whose coordinate variable this is; None if not known."""
    is_height = coordinate.text("standard_name") in _HEIGHTS
    return axis_of(coordinate) or (_by("standard_name", coordinate, OTHER) if is_height else None)


def probable_axis(coordinate: VariableInfo) -> Role | None:
    """Return the probable axis of a dimension, by units of pressure or `long_name` of its coordinate variable.

    This is weak evidence: measurements at a station may have these attributes as well.
    """
    if _OF_LEVELS.match(coordinate.units):
        return _by("units", coordinate, OTHER)
    name = coordinate.text("long_name").strip().lower().replace(" ", "_")
    role = OTHER if name in _HEIGHTS else _STANDARD_NAMES.get(name)
    return None if role is None else _by("long_name", coordinate, role)


def is_latitude(info: VariableInfo) -> bool:
    """Tell whether a variable is the true latitude, by its attributes."""
    return info.text("standard_name") == "latitude" or bool(_NORTH.match(info.units) and not _is_named_otherwise(info))


def is_longitude(info: VariableInfo) -> bool:
    """Tell whether a variable is the true longitude, by its attributes."""
    return info.text("standard_name") == "longitude" or bool(_EAST.match(info.units) and not _is_named_otherwise(info))


def is_time(info: VariableInfo) -> bool:
    """Tell whether a variable holds valid times of the data (not forecast reference times), in units since a date."""
    return info.is_numeric and counts_from_a_date(info.units) and info.text("standard_name") in ("", "time")


def named_coordinates(info: VariableInfo, variables: Mapping[str, VariableInfo]) -> Iterator[VariableInfo]:
    """Yield the variables that the attribute `coordinates` of `info` names, then its coordinates on a UGRID mesh."""
    for name in [*info.text("coordinates").split(), *_named_by_mesh(info, variables)]:
        found = _in_group_of(info, name, variables)
        if found is not None:
            yield found


def _named_by_mesh(info: VariableInfo, variables: Mapping[str, VariableInfo]) -> list[str]:
    """Return the names of the coordinates of the faces, edges or nodes of the UGRID mesh on which `info` is defined."""
    mesh = _in_group_of(info, info.text("mesh"), variables)
    return [] if mesh is None else mesh.text(f"{info.text('location')}_coordinates").split()


def _in_group_of(info: VariableInfo, name: str, variables: Mapping[str, VariableInfo]) -> VariableInfo | None:
    """Return the variable that an attribute of `info` names, in the same group or in the root group."""
    in_group = f"{info.name.rpartition('/')[0]}/{name}".lstrip("/")
    return variables.get(in_group, variables.get(name))


def bounds_of(variables: Variables) -> set[str]:
    """Return the names of the boundary variables, which are not coordinates themselves."""
    return set(variables.numeric_by(_bounds_named_by)) - {""}


def axis_along(dimension: str, variables: Variables) -> Role | None:
    """Return the axis of a dimension, by auxiliary coordinates along it; None if not known."""
    along = _along(dimension, variables)
    bounds = bounds_of(variables) if along else set()
    roles = {role for one in along if one.short_name not in bounds and (role := axis_of(one)) is not None}
    roles = roles - {OTHER, LEAD} or roles  # records may have a time and a depth or lead each
    return roles.pop() if len(roles) == 1 else None


def find_time(dimension: str, info: VariableInfo, variables: Variables) -> VariableInfo | None:
    """Return a variable with the times of the levels along a dimension of `info`; None if there is none.

    Variables that its attribute `coordinates` names are preferred, then those with a standard name.
    """
    bounds = bounds_of(variables)
    along = [one for one in _along(dimension, variables) if one.short_name not in bounds]
    if not dimension:  # dimensions without names: any time of the same length
        along = [variables[name] for name in variables.numeric_by(_is_time_word).get("yes", ())]
        along = [one for one in along if len(one.shape) == 1 and one.shape == info.shape]
    named = {one.name for one in named_coordinates(info, variables)}
    times = sorted(filter(is_time, along), key=lambda one: (one.name not in named, not one.text("standard_name")))
    return times[0] if times else None


def scalar_time(info: VariableInfo, variables: Mapping[str, VariableInfo]) -> VariableInfo | None:
    """Return the scalar time that the attribute `coordinates` of a variable names; None if it names none."""
    return next((one for one in named_coordinates(info, variables) if one.shape == () and is_time(one)), None)


def _along(dimension: str, variables: Variables) -> list[VariableInfo]:
    return [variables[name] for name in variables.numeric_by(_only_dimension).get(dimension, ())] if dimension else []


# Keys by which the variables of a file are grouped, once per file.


def _bounds_named_by(info: VariableInfo) -> str:
    return next(filter(None, map(info.text, _NAMING_BOUNDS)), "")


def _is_time_word(info: VariableInfo) -> str:
    return "yes" if is_time(info) else ""


def _only_dimension(info: VariableInfo) -> str:
    return info.dimensions[0] if len(info.dimensions) == 1 else ""


def _is_named_otherwise(info: VariableInfo) -> bool:
    return info.text("standard_name") not in ("", "latitude", "longitude")
