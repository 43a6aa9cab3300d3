"""Targets that are levels of a variable of the data: several of one come back on a level axis, one alone at its level.

L  levels of an axis
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data import FieldFile, SampleSource, VariableInfo
from mpitrain.data.describe.cf import named_coordinates
from mpitrain.data.describe.roles import coordinate_of
from mpitrain.data.files.decoding import read, read_column
from mpitrain.data.selection.variable_access import VariableAccess
from mpitrain.inference.carried import attributes_of
from mpitrain.inference.netcdf_output import OutputVariable

_KEPT_ATTRIBUTES = ("standard_name", "long_name", "units", "positive")


@dataclass(frozen=True)
class LevelAxis:
    """A dimension of the file along which levels lie, and the values (L,) of its coordinate variable, float64.

    `beside` are further coordinates (L,) and bounds (L, corners) along it, by their variables.
    """

    dimension: str
    values: npt.NDArray[np.float64]
    attributes: Mapping[str, str]
    beside: tuple[tuple[OutputVariable, npt.NDArray[Any]], ...] = ()

    @property
    def variable(self) -> OutputVariable:
        """The coordinate variable."""
        return OutputVariable(self.dimension, (self.dimension,), "f8", self.attributes)

    @property
    def coordinates(self) -> list[str]:
        """The names of the further coordinates."""
        return [one.name for one, values in self.beside if values.ndim == 1]


@dataclass(frozen=True)
class Level:
    """What a target is a level of: name and meaning of the `whole` variable, the axis, and the position along it."""

    whole: str
    meaning: str
    axis: LevelAxis
    position: int


def levels_of(source: SampleSource, taken: Iterable[str]) -> dict[str, Level]:
    """Return the level of each target by its name, for variables that have several levels.

    `taken` are names that dimensions must not have. Empty for a table of samples.
    """
    groups: dict[tuple[str, int], dict[str, int]] = {}
    for target in source.target_names if source.layout.is_grid else ():
        access = source.files[0].variables.get(target)
        if access is not None and len(access.axes.fixed) == 1 and access.lag is None:
            ((axis, position),) = access.axes.fixed
            if access.info.dimensions[axis]:
                groups.setdefault((access.info.name, axis), {})[target] = position
    axes: dict[tuple[str, tuple[int, ...]], LevelAxis] = {}
    found: dict[str, Level] = {}
    for (_, axis), positions in groups.items():
        if len(positions) < 2 or len(set(positions.values())) < len(positions):
            continue
        access = source.files[0].variables[next(iter(positions))]
        key = access.info.dimensions[axis], tuple(positions.values())
        if key not in axes:
            others = (name for one in axes.values() for name in (one.dimension, *(own.name for own, _ in one.beside)))
            axes[key] = _axis(source, access, axis, key[1], {*taken, *others})
        for number, target in enumerate(positions):
            meaning = access.info.text("long_name").strip() or access.info.short_name
            found[target] = Level(access.info.short_name, meaning, axes[key], number)
    return found


@dataclass
class SingleLevels:
    """The scalar coordinates of targets that lie at one level: variables, their values, and names by target."""

    variables: list[OutputVariable] = field(default_factory=list)
    values: dict[str, npt.NDArray[np.float64]] = field(default_factory=dict)
    of_target: dict[str, list[str]] = field(default_factory=dict)

    def named_by(self, variables: Sequence[OutputVariable], names: Mapping[str, str]) -> list[OutputVariable]:
        """Return the variables, those of a target with the names of its coordinates (`names` as in `on_level_axes`)."""
        return [self._named_by(one, _target_in(one.name, names), names) for one in variables]

    def _named_by(self, one: OutputVariable, own: str | None, names: Mapping[str, str]) -> OutputVariable:
        more = self.of_target.get(names[own], []) if own is not None else []
        return one.with_coordinates(more) if more else one

    def add(self, target: str, coordinate: VariableInfo, value: npt.NDArray[np.float64], taken: set[str]) -> None:
        """Add a coordinate of a target, under a name of its own where its variable has another value elsewhere."""
        name = coordinate.short_name
        while name in taken or self.values.get(name, value) != value:
            name += "_"
        if name not in self.values:
            self.values[name] = value
            attributes = {"long_name": coordinate.short_name, **attributes_of(coordinate)}
            self.variables.append(OutputVariable(name, (), "f8", attributes, has_fill=False))
        self.of_target.setdefault(target, []).append(name)


def single_levels(source: SampleSource, levels: Mapping[str, Level], taken: Iterable[str]) -> SingleLevels:
    """Return where the targets lie that are no level of an axis of `levels`; `taken` as in `levels_of`."""
    found, names = SingleLevels(), set(taken)
    for target in source.target_names if source.layout.is_grid else ():
        access = source.files[0].variables.get(target)
        if access is None or target in levels:
            continue
        file = source.handles.get(source.files[0])
        for axis, position in access.axes.fixed:
            coordinate = coordinate_of(access.info, access.info.dimensions[axis], file.variables)
            if coordinate is not None and coordinate.is_numeric:
                found.add(target, coordinate, np.asarray(read_column(file, coordinate)[position]), names)
    return found


def _axis(
    source: SampleSource, access: VariableAccess, axis: int, positions: tuple[int, ...], taken: set[str]
) -> LevelAxis:
    name = access.info.dimensions[axis]
    file = source.handles.get(source.files[0])
    coordinate = coordinate_of(access.info, name, file.variables)
    while name in taken:
        name += "_"
    if coordinate is None or not coordinate.is_numeric:
        return LevelAxis(
            name, np.array(positions, dtype=np.float64), {"long_name": f"position along {name}", "axis": "Z"}
        )
    kept = {key: coordinate.text(key) for key in _KEPT_ATTRIBUTES if coordinate.text(key)}
    values = read_column(file, coordinate)[list(positions)]
    beside = tuple(_beside(access.info, coordinate, file, name, list(positions), set(taken)))
    bounds = (
        {"bounds": coordinate.text("bounds")} if coordinate.text("bounds") in [one.name for one, _ in beside] else {}
    )
    return LevelAxis(name, values, {"long_name": coordinate.short_name, **kept, **bounds, "axis": "Z"}, beside)


def _beside(
    info: VariableInfo, own: VariableInfo, file: FieldFile, name: str, positions: list[int], taken: set[str]
) -> Iterator[tuple[OutputVariable, npt.NDArray[Any]]]:  # fmt: skip
    """Yield what else lies along an axis of levels, such as sigma, hybrid coefficients and their bounds.

    Of coordinates those that the variable names, and the terms of the axis' own formula (CF 4.3.3).
    """
    terms = [file.variables.get(term) for term in own.text("formula_terms").split() if not term.endswith(":")]
    others = [one for one in (*named_coordinates(info, file.variables), *terms) if one is not None]
    along = [one for one in others if one.dimensions == own.dimensions and one.is_numeric and one.name != own.name]
    for one in {own.short_name: own, **{one.short_name: one for one in along}}.values():
        bounds = file.variables.get(one.text("bounds"))
        has_bounds = bounds is not None and bounds.dimensions[:-1] == one.dimensions and bounds.short_name not in taken
        said = {"bounds": one.text("bounds")} if has_bounds else {}
        if one is not own and one.short_name not in taken:
            kept = {key: text for key, text in attributes_of(one).items() if key != "axis"}  # that of the dimension
            if one.text("formula_terms"):  # CF 4.3.3: without its terms the standard name says nothing
                kept.pop("standard_name", None)
            shown = OutputVariable(one.short_name, (name,), "f8", {**kept, **said})
            yield shown, read_column(file, one)[positions]
        if bounds is not None and has_bounds:
            values = read(file, bounds.name, (slice(None), slice(None)))[positions]
            yield OutputVariable(bounds.short_name, (name, bounds.dimensions[-1]), "f8", has_fill=False), values


def on_level_axes(
    variables: Sequence[OutputVariable], names: Mapping[str, str], levels: Mapping[str, Level], leading: str
) -> tuple[list[OutputVariable], dict[str, tuple[str, int]]]:
    """Return the variables with one in the place of all levels of it, and where each of these is: (variable, position).

    `names` are the targets by the names from which those of `variables` are made, such as "T_z_0" for "T_z_0_error" and
    "dT_z_0_dx". The axis comes after the dimension `leading`, or first.
    """
    merged: dict[str, OutputVariable] = {}
    places: dict[str, tuple[str, int]] = {}
    for one in variables:
        own = _target_in(one.name, names)
        level = levels.get(names[own]) if own is not None else None
        if own is None or level is None:
            merged[one.name] = one
            continue
        whole, first = one.name.replace(own, level.whole, 1), int(one.dimensions[:1] == (leading,))
        along = (*one.dimensions[:first], level.axis.dimension, *one.dimensions[first:])
        text = str(one.attributes.get("long_name", "")).replace(names[own], level.meaning)
        said = {**one.attributes, "long_name": text}
        places[one.name] = whole, level.position
        shown = replace(one, name=whole, dimensions=along, level=along[first], attributes=said)
        merged.setdefault(whole, shown.with_coordinates(level.axis.coordinates))
    return list(merged.values()), places


def _target_in(name: str, names: Mapping[str, str]) -> str | None:
    """Return the longest of `names` that a variable is called after."""
    for own in sorted(names, key=len, reverse=True):
        if any(name == start or name.startswith(f"{start}_") for start in (own, f"d{own}")):
            return own
    return None
