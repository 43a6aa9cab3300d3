"""The content of a prediction file: names, units and attributes by the CF conventions (cfconventions.org, 1.8)."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from mpitrain.data import CICE_INPUTS, CICE_TARGET, Coordinates, SampleSource
from mpitrain.data.describe.cf import TIME
from mpitrain.data.units import is_same
from mpitrain.errors import writing
from mpitrain.inference.ensemble import StoredEnsemble
from mpitrain.inference.netcdf_output import Names, OutputVariable
from mpitrain.inference.other_formats import check_format_output
from mpitrain.inference.output_grid import OutputGrid
from mpitrain.inference.roles import ROLE_NAMES
from mpitrain.models import StoredNetwork
from mpitrain.version import __version__

_SIGNS = {"**": "_to_", "*": "_times_", "+": "_plus_", "-": "_minus_"}
PREDICTED, ERROR, GRID_INDEX, ROLE = "_predicted", "_error", "grid_index", "sample_role"
# The original C++ program's names of the derivatives, in the order of its inputs.
_ICENET_DERIVATIVES = ("dcdtair", "dcdtsfc", "dcdt", "dcds", "dcdhs", "dcdhi", "dcdsi")
# Units that CICE writes (CICE user guide, "History"), used if neither the data nor the model gives units.
_CICE_UNITS = dict(zip((*CICE_INPUTS, CICE_TARGET), ("C", "C", "C", "ppt", "m", "m", "ppt", "1"), strict=True))
_POINTS, _ROWS, _COLUMNS = "n", "row", "column"
_CELL_METHOD = re.compile(r"\b([A-Za-z]\w*):(?= )")


def variable_name(name: str) -> str:
    """Return a valid NetCDF variable name: names of levels, columns and expressions contain signs that are not."""
    for sign, text in _SIGNS.items():
        name = name.replace(sign, text)
    return "_".join(part for part in _plain(name).split("_") if part) if set(name) & set("[]()") else _plain(name)


def _plain(name: str) -> str:
    return "".join(letter if letter.isalpha() or letter.isdecimal() else "_" for letter in name).strip("_")


def variable_names(names: Iterable[str]) -> dict[str, str]:
    """Return valid NetCDF variable names by the names of inputs and targets; duplicates are numbered."""
    found = Names()
    # First the names that are valid: they stay, and an equal one is numbered.
    ordered = sorted(dict.fromkeys(names), key=lambda one: variable_name(one) != one)
    return {name: found.take(variable_name(name), is_numbered=True) for name in ordered}


def derivative_name(target: str, name: str) -> str:
    """Return the variable name of d target / d name; both arguments are names of variables."""
    return f"d{target}_d{name}"


def icenet_names(network: StoredNetwork, source: SampleSource) -> dict[str, str] | None:
    """Return the C++ program's variable names by this package's; None unless network and data are that program's."""
    is_its_own = source.layout.is_grid and (source.input_names, source.target_names) == (
        CICE_INPUTS,
        (CICE_TARGET,),
    )
    if not (network.is_icenet and is_its_own and source.kind == "points"):
        return None
    derivatives = (derivative_name(CICE_TARGET, name) for name in CICE_INPUTS)
    names = {"lon": "lon", "lat": "lat", CICE_TARGET: "aice", CICE_TARGET + PREDICTED: "aice_ffnn"}
    return names | dict(zip(derivatives, _ICENET_DERIVATIVES, strict=True))


def units_of(network: StoredNetwork, source: SampleSource) -> dict[str, str]:
    """Return the units of inputs and targets by name: from the data, otherwise the model, otherwise CICE's or ""."""
    known = network.description
    names = _names(source)
    of_model = dict(
        zip((*known.input_names, *known.target_names), (*known.input_units, *known.target_units), strict=False)
    )
    return {name: source.units.get(name) or of_model.get(name) or _CICE_UNITS.get(name, "") for name in names}


def _names(source: SampleSource) -> tuple[str, ...]:
    return (*source.input_names, *source.target_names)


def known_units(names: Sequence[str], units: Sequence[str]) -> list[str]:
    """Return the units of variables; if not given, CICE's units for its variable names, otherwise ""."""
    given = [*units, *[""] * (len(names) - len(units))]
    return [unit or _CICE_UNITS.get(name, "") for name, unit in zip(names, given, strict=True)]


def dimensions_of(source: SampleSource) -> dict[str, int]:
    """Return the dimensions of a file that is not on the data's grid, the unlimited one first."""
    if source.kind == "points":
        return {_POINTS: source.num_points}
    return {TIME: source.num_points, _ROWS: source.grid_shape[0], _COLUMNS: source.grid_shape[1]}


def written_names(source: SampleSource, with_jacobian: bool, extra: Iterable[str]) -> list[str]:
    """Return the names of all variables written except coordinates and times."""
    return [*(name for name, _ in _values(source, dict.fromkeys(_names(source), ""), with_jacobian)), *extra]


def variables_of(
    network: StoredNetwork, source: SampleSource, coordinates: Coordinates, icenet: Mapping[str, str] | None,
    with_jacobian: bool, extra: Mapping[str, Mapping[str, str]] = MappingProxyType({}), grid: OutputGrid | None = None,
    with_roles: bool = False,
) -> tuple[list[OutputVariable], list[OutputVariable]]:  # fmt: skip
    """Return coordinate variables, and data variables; last the `extra` ones, given as attributes by name."""
    is_points = source.kind == "points"
    if grid is not None:
        along, places, auxiliary = tuple(grid.dimensions.values()), list(grid.coordinates.values()), grid.auxiliary
    else:
        along = (_POINTS,) if is_points else (TIME, _ROWS, _COLUMNS)
        places = _places(coordinates, is_points, icenet is not None)
        auxiliary = [one.name for one in places if one.name in ("lon", "lat") or (one.name == TIME and is_points)]
    variables = []
    if icenet is None and grid is None:
        meaning = "position in the data: (time level * rows + row) * columns + column" if is_points else "time level"
        # CF 1.8 has no 64-bit integers, and float64 is exact up to 2^53.
        dtype = "i4" if source.num_points <= 2**31 else "f8"
        variables.append(OutputVariable(GRID_INDEX, along[:1], dtype, {"long_name": meaning}))
    common = {"coordinates": " ".join(auxiliary)} if auxiliary else {}
    number = "f8" if network.dtype.itemsize == 8 and icenet is None else "f4"
    values = _values(source, units_of(network, source), with_jacobian, _shown_names(coordinates, grid))
    for name, attributes in (*values, *extra.items()):
        if icenet is None or name in icenet:
            shown = icenet[name] if icenet else name
            variables.append(OutputVariable(shown, along, number, {**attributes, **common}))
    if with_roles and icenet is None:
        has_levels = grid is None or grid.has_time_levels
        each = along if is_points else along[: int(has_levels)]
        variables.append(role_variable(each, common.get("coordinates", "") if is_points else ""))
    return places, variables


def check_prediction(path: Path, inputs: Iterable[Path], overwrite: bool) -> None:
    """Raise OutputError if a prediction must not replace the existing file (see `check_output`).

    Also for an ending of no known format; MissingDependencyError if the format needs a package that is missing.
    """
    with writing(path, "give another file"):
        check_format_output(path, "mpitrain [^,]*, model of SHA-256 ", inputs, overwrite)


def file_attributes(network: StoredNetwork, source: SampleSource, arithmetic: str) -> dict[str, str]:
    """Return the global attributes of the file."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    files = source.files[0].path.name + (f" and {len(source.files) - 1} more files" if len(source.files) > 1 else "")
    return {
        "Conventions": "CF-1.8",
        "title": f"Predictions of {', '.join(source.target_names)} by a neural network",
        "source": f"mpitrain {__version__}, model of SHA-256 {network.sha256}",
        "history": f"{now}: predicted by mpitrain {__version__} from {files}",
        "model_sha256": network.sha256,
        "arithmetic": arithmetic,
    }


def _places(coordinates: Coordinates, is_points: bool, is_icenet: bool) -> list[OutputVariable]:
    variables = []
    for name in ("lon", "lat", TIME):
        if name not in coordinates.attributes or (is_icenet and name == TIME):
            continue
        dimensions = (_POINTS,) if is_points else ((TIME,) if name == TIME else (_ROWS, _COLUMNS))
        if not is_points and name != TIME and name not in coordinates.grids:
            continue  # the coordinates of a moving grid are not fixed by row and column
        dtype = "f4" if is_icenet else coordinates.dtypes[name]
        values = None if is_points else coordinates.grids.get(name)
        variables.append(OutputVariable(name, dimensions, dtype, coordinates.attributes[name], values=values))
    return variables


def _values(
    source: SampleSource,
    units_by_name: Mapping[str, str],
    with_jacobian: bool,
    shown: Mapping[str, str] = MappingProxyType({}),
) -> Sequence[tuple[str, dict[str, str]]]:
    values, called = [], variable_names(_names(source))
    for target in source.target_names:
        units = units_by_name[target]
        own = ({"units": units} if units else {}) | _shared_attributes(source, target, shown)
        variable, meaning = called[target], meaning_of(source, target)
        truth = [(variable, {"long_name": f"{meaning}, from the data", **own})]
        of_difference = {key: text for key, text in own.items() if key != "standard_name"}
        error = {"long_name": f"{meaning}, predicted minus data", **of_difference}
        errors = [(variable + ERROR, error)]
        answer = (variable + PREDICTED, {"long_name": f"{meaning}, predicted", **own})
        values += [*truth, answer, *errors] if source.has_targets else [answer]
        for name in source.input_names if with_jacobian else ():
            per = _quotient(units, units_by_name[name])
            text = {"long_name": f"derivative of {meaning}, predicted, by {meaning_of(source, name)}"}
            values.append((derivative_name(variable, called[name]), {**text, **({"units": per} if per else {})}))
    return values


def role_variable(along: tuple[str, ...], auxiliary: str) -> OutputVariable:
    """Return the variable of each sample's role (unused, training, validation, test), on the dimensions `along`."""
    attributes: dict[str, Any] = {
        "long_name": "use of the sample in training the network",
        "flag_values": np.arange(len(ROLE_NAMES), dtype=np.int8),
        "flag_meanings": " ".join(ROLE_NAMES),
    }
    return OutputVariable(ROLE, along, "i1", attributes | ({"coordinates": auxiliary} if auxiliary else {}))


def meaning_of(source: SampleSource, name: str) -> str:
    """Return the long name of an input or target in the first file; the name itself if it has none.

    Also the name itself for an expression of several variables and for a lag, level or offset of a variable.
    """
    access = source.files[0].variables.get(name)
    return (access.info.text("long_name").strip() if access is not None and "[" not in name else "") or name


def _shown_names(coordinates: Coordinates, grid: OutputGrid | None) -> dict[str, str]:
    """Return the output's names of dimensions and coordinates by their names in the data."""
    if grid is not None:
        return {**grid.stored_dimensions, **grid.stored_names(coordinates)}
    shown = {access.info.short_name: name for name, access in coordinates.stored.items()}
    return shown | ({coordinates.time_name: TIME} if coordinates.times is not None else {})


def _shared_attributes(source: SampleSource, target: str, shown: Mapping[str, str]) -> dict[str, str]:
    """Return the attributes of a target that also hold for its prediction: standard name and cell methods.

    `shown`: the output's names of dimensions and coordinates by their names in the data.
    """
    access = source.files[0].variables.get(target)
    if access is None:
        return {}
    methods = _CELL_METHOD.sub(lambda found: f"{shown.get(found[1], found[1])}:", access.info.text("cell_methods"))
    attributes = {"standard_name": access.info.text("standard_name"), "cell_methods": methods}
    return {key: text for key, text in attributes.items() if text}


def extra_variables(network: StoredNetwork, source: SampleSource, with_jacobian: bool) -> dict[str, dict[str, str]]:
    """Return the attributes of an ensemble's further variables by name, in the column order; none for one network."""
    if not isinstance(network, StoredEnsemble):
        return {}
    units, found = units_of(network, source), dict[str, dict[str, str]]()
    called = variable_names(_names(source))
    targets = [(target, called[target]) for target in source.target_names]
    meaning = {name: meaning_of(source, name) for name in (*source.target_names, *source.input_names)}

    def add(name: str, text: str, unit: str) -> None:
        found[name] = {"long_name": text, **({"units": unit} if unit else {})}

    for target, name in targets:
        add(
            f"{name}_spread",
            f"{meaning[target]}, standard deviation over {len(network.members)} members",
            units[target],
        )
    for member in network.member_names:
        for target, name in targets:
            add(f"{name}_member_{member}", f"{meaning[target]}, predicted by member {member}", units[target])
    for target, name in targets if with_jacobian else ():
        for one in source.input_names:
            text = f"derivative of {meaning[target]} by {meaning[one]}, standard deviation over members"
            add(f"{derivative_name(name, called[one])}_spread", text, _quotient(units[target], units[one]))
    return found


def _quotient(target_units: str, input_units: str) -> str:
    """Return the units of a derivative; "" if either unit is unknown."""
    if not target_units or not input_units:
        return ""
    if is_same(target_units, input_units):
        return "1"
    if input_units == "1":
        return target_units
    return f"{target_units}/{input_units if input_units.isalnum() else f'({input_units})'}"
