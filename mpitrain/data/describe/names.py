"""Lookup of a variable by the name that a user gives: exact names, usual short names, CF standard names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mpitrain.config.model import CICE_SUFFIX, ICE_NAMES, ICE_STANDARD_NAMES
from mpitrain.data.describe.cf import bounds_of, is_latitude, is_longitude, named_coordinates
from mpitrain.data.files.variable import FieldFile, VariableInfo, Variables
from mpitrain.data.units import is_same
from mpitrain.errors import DataError

PlacePair = tuple[VariableInfo, VariableInfo]
_PLACE_IN_NAME = re.compile(r"lat(itude)?|lon(gitude|g)?")
# The default variables: those of a CICE history file (CICE user guide, "History").
CICE_LATITUDE, CICE_LONGITUDE, CICE_OCEAN_MASK = "ULAT", "ULON", "umask"
CICE_TARGET = "aice_h"
CICE_INPUTS = ("Tair_h", "Tsfc_h", "sst_h", "sss_h", "hs_h", "hi_h", "sice_h")
# Quantities that the rules for selecting points need.
LATITUDE, LONGITUDE, OCEAN_MASK, ICE_FRACTION = "lat", "lon", "mask", "aice"


@dataclass(frozen=True)
class Quantity:
    """A quantity with different names in files: short names in order of preference, CF standard names, usual units."""

    names: tuple[str, ...]
    standard_names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()


_CELSIUS = (
    "C",
    "degC",
    "deg C",
    "deg_C",
    "celsius",
    "degree_Celsius",
    "degrees_Celsius",
    "degrees C",
    "K",
    "kelvin",
    "degK",
)
_SALINITY = ("ppt", "psu", "g kg-1", "g/kg", "1e-3", "1", "PSS-78")
_METRES, _SPEED = ("m", "meter", "meters", "metre", "metres"), ("m/s", "m s-1", "m s^-1", "m.s-1")
_FLUX, _FRACTION = ("W/m^2", "W m-2", "W/m2", "W m^-2", "W.m-2"), ("1", "", "none", "fraction", "%", "percent")

# Names in CICE histories without their suffix (CICE user guide, "History"), in other models, and CF standard names.
QUANTITIES: dict[str, Quantity] = {
    "sst": Quantity(("sst", "tos", "sea_surface_temp"), ("sea_surface_temperature",), _CELSIUS),
    "sss": Quantity(("sss", "sos"), ("sea_surface_salinity",), _SALINITY),
    "tair": Quantity(("tair", "tas", "t2m", "t2"), ("air_temperature",), _CELSIUS),
    "tsfc": Quantity(
        ("tsfc", "tsfcn", "sitemptop", "ts"), ("sea_ice_surface_temperature", "surface_temperature"), _CELSIUS
    ),
    "hi": Quantity(("hi", "sivol", "sithick"), ("sea_ice_thickness",), _METRES),
    "hs": Quantity(("hs", "snwd", "sisnthick", "snd"), ("surface_snow_thickness",), _METRES),
    "sice": Quantity(("sice", "sisali"), ("sea_ice_salinity",), _SALINITY),
    "uocn": Quantity(("uocn", "uos", "ssu"), ("surface_sea_water_x_velocity", "sea_water_x_velocity"), _SPEED),
    "vocn": Quantity(("vocn", "vos", "ssv"), ("surface_sea_water_y_velocity", "sea_water_y_velocity"), _SPEED),
    "uatm": Quantity(("uatm", "uas", "u10", "u10m"), ("x_wind", "eastward_wind"), _SPEED),
    "vatm": Quantity(("vatm", "vas", "v10", "v10m"), ("y_wind", "northward_wind"), _SPEED),
    "qref": Quantity(("qref", "huss", "q2m", "q2"), ("specific_humidity",), ("kg/kg", "kg kg-1", "1", "g/kg")),
    "flwdn": Quantity(("flwdn", "rlds", "dlwrf"), ("surface_downwelling_longwave_flux_in_air",), _FLUX),
    "fswdn": Quantity(("fswdn", "rsds", "dswrf"), ("surface_downwelling_shortwave_flux_in_air",), _FLUX),
    ICE_FRACTION: Quantity(ICE_NAMES, ICE_STANDARD_NAMES, _FRACTION),
    LATITUDE: Quantity(
        ("ulat", "lat", "latitude", "nav_lat", "tlat", "geolat", "yt_ocean", "clat", "lat2d", "latcell",
         "grid_center_lat"), ("latitude",),
    ),
    LONGITUDE: Quantity(
        ("ulon", "lon", "longitude", "nav_lon", "tlon", "geolon", "xt_ocean", "clon", "lon2d", "loncell", "ulong",
         "tlong", "grid_center_lon"), ("longitude",),
    ),
    OCEAN_MASK: Quantity(
        ("umask", "mask", "tmask", "ocean_mask", "wet", "mask_rho"), ("sea_binary_mask", "sea_area_fraction")
    ),
}  # fmt: skip
_ROLES = {
    LATITUDE: "latitude",
    LONGITUDE: "longitude",
    OCEAN_MASK: "ocean mask",
    ICE_FRACTION: "ice concentration",
}

_OTHERWISE = {
    LATITUDE: ", or with units degrees_north; give its name as data.coordinates.latitude",
    LONGITUDE: ", or with units degrees_east; give its name as data.coordinates.longitude",
}


def find_variable(request: str, file: FieldFile, first_of_several: bool = False) -> str:
    """Return the name in `file` of the variable that a user calls `request`.

    An exact name is preferred (also "group/name"), then the only variable of that name in any group or in upper or
    lower case, then the only one with a short name of the table of quantities, then with a CF standard name. If several
    match, `first_of_several` selects the first instead of raising (for coordinates, because files hold several grids).
    Raises DataError, with the names of the variables, if none or several match.
    """
    if request in file.variables:
        return request
    if request in file.refused:
        raise DataError(f"{file.path}: variable '{request}' is not read: {file.refused[request]}")
    for candidates in _candidates(request, file.variables):
        if len(candidates) == 1 or (candidates and first_of_several):
            return candidates[0]
        if candidates:
            raise DataError(f"{file.path}: '{request}' may be any of {', '.join(candidates)}; give one of these names")
    raise DataError(f"{file.path}: no variable '{request}'; {describe_variables(request, file)}")


def describe_variables(request: str, file: FieldFile) -> str:
    """Return text for a message: the variable with the most similar name, if there is one, and the names of all."""
    called = {name.lower(): name for name in file.variables}
    near = difflib.get_close_matches(request.lower(), called, n=1, cutoff=0.81)
    proposal = f"did you mean '{called[near[0]]}'? " if near else ""
    return f"{proposal}this one has {list_names(file.variables) or 'none'}"


def no_such_role(quantity: str, file: FieldFile) -> DataError:
    """Return the error for a file without a quantity that the rule for points needs and no setting names."""
    known = QUANTITIES[quantity]
    return DataError(
        f"{file.path}: has no {_ROLES[quantity]} (a variable such as {', '.join(known.names[:3])}, or with "
        f"standard_name {' or '.join(known.standard_names)}{_OTHERWISE.get(quantity, '')}); this one has "
        f"{list_names(file.variables) or 'none'}"
    )


def is_cice_history(file: FieldFile) -> bool:
    """Tell whether a file has grid variables with the names of a CICE history; POP's longitudes have other names."""
    names = set(file.variables)
    is_pop = bool({"ULONG", "TLONG"} & names) and not {CICE_LONGITUDE, "TLON"} & names
    return bool({CICE_LATITUDE, "TLAT"} & names) and not is_pop


def is_absent(request: str, file: FieldFile) -> bool:
    """Tell whether no variable of a file matches `request`."""
    return (
        request not in file.variables and request not in file.refused and not any(_candidates(request, file.variables))
    )


def quantity_of(request: str) -> Quantity | None:
    """Return the quantity with a short name or standard name; None if it is not in the table."""
    plain = _plain(request)
    return next((one for one in QUANTITIES.values() if plain in one.names or request in one.standard_names), None)


def is_called(info: VariableInfo, quantity: str) -> bool:
    """Tell whether a variable is a quantity, by its name, its standard name or, for latitude and longitude, units."""
    known = QUANTITIES[quantity]
    by_units = {LATITUDE: is_latitude, LONGITUDE: is_longitude}.get(quantity)
    is_it = quantity_of(info.name) is known or info.text("standard_name") in known.standard_names
    return is_it or (by_units is not None and by_units(info))


def coordinate_pairs(info: VariableInfo, variables: Variables) -> list[PlacePair]:
    """Return pairs of a latitude and a longitude along the same dimensions, all of them dimensions of `info`.

    Pairs that its attribute `coordinates` names come first, then pairs of equal stem, such as TLAT and TLONG.
    """
    bounds, within = bounds_of(variables), set(info.dimensions) - {""}
    named = [one.name for one in named_coordinates(info, variables)]
    latitudes, longitudes = (
        [
            variables[name] for name in variables.numeric_by(_place_of).get(quantity, ())
            if variables[name].shape and set(variables[name].dimensions) <= within
            and variables[name].short_name not in bounds
        ]
        for quantity in (LATITUDE, LONGITUDE)
    )  # fmt: skip
    rank = lambda one: one.name not in named  # noqa: E731
    latitudes, longitudes = sorted(latitudes, key=rank), sorted(longitudes, key=rank)
    of_stem = {(one.dimensions, _stem(one)): one for one in reversed(longitudes)}
    of_dimensions = {one.dimensions: one for one in reversed(longitudes)}
    twins = [(one, of_stem.get((one.dimensions, _stem(one)))) for one in latitudes]
    pairs = [(one, twin or of_dimensions[one.dimensions]) for one, twin in twins if one.dimensions in of_dimensions]
    return sorted(pairs, key=lambda pair: (rank(pair[0]) or rank(pair[1]), _stem(pair[0]) != _stem(pair[1])))


def _place_of(info: VariableInfo) -> str:
    """Return "lat" for a latitude, "lon" for a longitude, and "" for other variables."""
    return next((one for one in (LATITUDE, LONGITUDE) if is_called(info, one)), "")


def _stem(info: VariableInfo) -> str:
    return _PLACE_IN_NAME.sub("", info.short_name.lower())


def list_names(variables: Mapping[str, VariableInfo], most: int = 40) -> str:
    """Return the names of a file's variables for a message."""
    names = list(variables)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def odd_units(request: str, info: VariableInfo, path: Path) -> str | None:
    """Return a notice if a known quantity has unexpected units; None otherwise."""
    quantity = quantity_of(request) or quantity_of(info.short_name)
    if quantity is None or not quantity.units or "units" not in info.attributes:
        return None
    if any(is_same(info.units, unit) for unit in quantity.units):
        return None
    usual = ", ".join(unit for unit in quantity.units[:4] if unit)
    return f"{path}: variable '{info.name}' has units '{info.units}', expected {usual}; its values are used as they are"


def _candidates(request: str, variables: Variables) -> list[list[str]]:
    """Return lists of names that match `request`, one for each criterion, the strongest criterion first."""
    quantity = quantity_of(request)
    names = quantity.names if quantity else ()
    standard_names = (*(quantity.standard_names if quantity else ()), request)
    wanted = (request,), (request.lower(),), (*names, _plain(request)), standard_names
    by_names = [_of_keys(variables, key, some) for key, some in zip(_NAMES_OF, wanted, strict=True)]
    return [*by_names, _of_units(variables, request)]


def _of_units(variables: Variables, request: str) -> list[str]:
    """Return the latitudes or longitudes by their units, as in files of Ferret and WRF."""
    is_it = {LATITUDE: is_latitude, LONGITUDE: is_longitude}.get(request)
    if is_it is None:
        return []
    bounds = bounds_of(variables)
    return [name for name, info in variables.items() if info.short_name not in bounds and is_it(info)]


def _of_keys(variables: Variables, key: Callable[[VariableInfo], str], wanted: Iterable[str]) -> list[str]:
    groups = variables.numeric_by(key)
    return [name for one in dict.fromkeys(wanted) for name in groups.get(one, ())]


# Keys by which the variables of a file are grouped, once per file.
_NAMES_OF: tuple[Callable[[VariableInfo], str], ...] = (
    lambda info: info.short_name,
    lambda info: info.short_name.lower(),
    lambda info: _plain(info.short_name),
    lambda info: info.text("standard_name"),
)


def _plain(name: str) -> str:
    return CICE_SUFFIX.sub("", name.lower())


def setting_name(info: VariableInfo) -> str:
    """Return the name of a variable inside an expression of a setting, quoted with var() if necessary."""
    return info.name if info.name.isidentifier() else f'var("{info.name}")'


def as_list(names: Iterable[str]) -> str:
    """Return names as the items of a list in a setting, quoted if YAML requires it."""
    return ", ".join(f"'{name}'" if set(name) & set("[]:,\"'() ") else name for name in names)
