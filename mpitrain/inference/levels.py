"""Targets that are levels of a variable: several are written along a level axis, one with a scalar coordinate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mpitrain.data import FieldFile, SampleSource, VariableInfo
from mpitrain.data.describe.cf import named_coordinates
from mpitrain.data.describe.roles import coordinate_of
from mpitrain.data.files.decoding import read, read_column
from mpitrain.data.selection.variable_access import VariableAccess
from mpitrain.inference.carried import attributes_of
from mpitrain.inference.netcdf_output import Names, OutputVariable

Axis = tuple[str, tuple[int, ...]]
"""A dimension of the data, and positions along it."""


@dataclass(frozen=True)
class Level:
    """A target as a level: the variable, the axis of all its levels among the targets, and the index along it."""

    info: VariableInfo
    axis: Axis
    number: int


@dataclass
class Levels:
    """Levels of the targets, and the coordinates that their variables refer to.

    The keys of `targets`, `accesses`, `several` and `coordinates` are stems of variable names, such as "T_z_0" of
    "T_z_0_error" and "dT_z_0_dx". `several`: targets that are levels of one variable. `dimensions`: names by axis.
    """

    targets: Mapping[str, str]
    accesses: Mapping[str, VariableAccess]
    several: Mapping[str, Level]
    dimensions: dict[Axis, str] = field(default_factory=dict)
    coordinates: dict[str, list[str]] = field(default_factory=dict)

    def whole(self, name: str) -> str:
        """Return the name of the variable that merges the levels, by that of one level; other names are unchanged."""
        own = _target_in(name, self.targets)
        return name.replace(own, self.several[own].info.short_name, 1) if own in self.several else name

    def add_coordinates(self, file: FieldFile, names: Names) -> list[OutputVariable]:
        """Return level axes, the coordinates along them, and the scalar coordinates of targets at a single level."""
        infos: dict[Axis, VariableInfo] = {}
        for level in self.several.values():
            infos.setdefault(level.axis, level.info)
        found: dict[Axis, list[OutputVariable]] = {}
        for axis, info in infos.items():
            self.dimensions[axis] = names.take(axis[0], len(axis[1]))
            found[axis] = _along(info, axis, self.dimensions[axis], file, names)
        for own, level in self.several.items():
            self.coordinates[own] = [one.name for one in found[level.axis][1:] if len(one.dimensions) == 1]
        axes, others = (one[0] for one in found.values()), (more for one in found.values() for more in one[1:])
        return [*axes, *others, *self._single(file, names)]

    def _single(self, file: FieldFile, names: Names) -> list[OutputVariable]:
        """Return scalar coordinates, one for all targets at the same level."""
        found: dict[tuple[str, float], OutputVariable] = {}
        for own, access in self.accesses.items():
            for axis, position in access.axes.fixed if own not in self.several else ():
                one = coordinate_of(access.info, access.info.dimensions[axis], file.variables)
                if one is not None and one.is_numeric:
                    value = read_column(file, one)[position]
                    key, attrs = (one.short_name, float(value)), {"long_name": one.short_name, **attributes_of(one)}
                    if key not in found:
                        name = names.take(one.short_name)
                        found[key] = OutputVariable(name, (), "f8", attrs, has_fill=False, values=value)
                    self.coordinates.setdefault(own, []).append(found[key].name)
        return list(found.values())

    def merge(
        self, variables: Sequence[OutputVariable], leading: str
    ) -> tuple[list[OutputVariable], dict[str, tuple[str, int]]]:
        """Return the variables with levels merged into one, and the place of each level: name to (variable, position).

        The level axis comes after the dimension `leading`, or first if a variable does not begin with that dimension.
        """
        merged: dict[str, OutputVariable] = {}
        places: dict[str, tuple[str, int]] = {}
        for given in variables:
            own = _target_in(given.name, self.targets)
            one = given.with_coordinates(self.coordinates.get(own, []))
            if own in self.several:
                level, first = self.several[own], int(one.dimensions[:1] == (leading,))
                axis, name = self.dimensions[level.axis], self.whole(one.name)
                meaning = level.info.text("long_name").strip() or level.info.short_name
                text = str(one.attributes.get("long_name", "")).replace(self.targets[own], meaning)
                along = (*one.dimensions[:first], axis, *one.dimensions[first:])
                places[one.name], attrs = (name, level.number), {**one.attributes, "long_name": text}
                merged.setdefault(name, replace(one, name=name, dimensions=along, level=axis, attributes=attrs))
            else:
                merged[one.name] = one
        return list(merged.values()), places


def levels_of(source: SampleSource, targets: Mapping[str, str]) -> Levels:
    """Return the levels of `targets` (see `Levels`); none for a table of samples."""
    known = source.files[0].variables if source.layout.is_grid else {}
    accesses = {own: known[target] for own, target in targets.items() if target in known}
    groups: dict[tuple[str, int], dict[str, int]] = {}
    for own, access in accesses.items():
        if len(access.axes.fixed) == 1 and access.lag is None:
            ((axis, position),) = access.axes.fixed
            if access.info.dimensions[axis]:
                groups.setdefault((access.info.name, axis), {})[own] = position
    several = {}
    short_names = Counter(accesses[next(iter(positions))].info.short_name for positions in groups.values())
    # Variables of the same name in two groups of a file are not merged; each level is written separately.
    alone = {key: one for key, one in groups.items() if short_names[accesses[next(iter(one))].info.short_name] == 1}
    for (_, axis), positions in alone.items():
        for number, own in enumerate(positions if 2 <= len(positions) == len(set(positions.values())) else ()):
            info = accesses[own].info
            several[own] = Level(info, (info.dimensions[axis], tuple(positions.values())), number)
    return Levels(targets, accesses, several)


def _along(info: VariableInfo, axis: Axis, name: str, file: FieldFile, names: Names) -> list[OutputVariable]:
    """Return the coordinate variable of an axis of `info`, then others along it, such as sigma, and their bounds.

    The others are those in the variable's attribute `coordinates`, and the terms of the axis' formula (CF 4.3.3).
    """
    own, positions = coordinate_of(info, axis[0], file.variables), list(axis[1])
    if own is None or not own.is_numeric:
        attrs = {"long_name": f"position along {name}", "axis": "Z"}
        return [OutputVariable(name, (name,), "f8", attrs, values=np.array(positions, dtype=np.float64))]
    terms = [file.variables.get(term) for term in own.text("formula_terms").split() if not term.endswith(":")]
    others = [one for one in (*named_coordinates(info, file.variables), *terms) if one is not None]
    along = {one.short_name: one for one in others if one.dimensions == own.dimensions and one.is_numeric}
    found: dict[str, OutputVariable] = {}
    for one in (own, *(one for one in along.values() if one.name != own.name)):
        bounds = file.variables.get(one.text("bounds"))
        if bounds is not None and (
            bounds.dimensions[:-1] != one.dimensions
            or bounds.short_name in names
            or not names.has_room_for(bounds.dimensions[-1], bounds.shape[-1])
        ):
            bounds = None
        attrs = {} if bounds is None else {"bounds": bounds.short_name}
        if one is own:
            attrs = {"long_name": one.short_name, **attributes_of(one, "axis"), **attrs, "axis": "Z"}
            found[name] = OutputVariable(name, (name,), "f8", attrs, values=read_column(file, one)[positions])
        elif one.short_name not in names:
            attrs, values = {**attributes_of(one, "beside"), **attrs}, read_column(file, one)[positions]
            found[one.short_name] = OutputVariable(one.short_name, (name,), "f8", attrs, values=values)
        if bounds is not None:
            shown = name, bounds.dimensions[-1]
            values = read(file, bounds.name, (slice(None), slice(None)))[positions]
            found[bounds.short_name] = OutputVariable(bounds.short_name, shown, "f8", has_fill=False, values=values)
            names.dimensions.setdefault(bounds.dimensions[-1], bounds.shape[-1])
    names.variables.update(found)
    return list(found.values())


def _target_in(name: str, names: Iterable[str]) -> str:
    """Return the longest of `names` from which a variable name is formed, "" if there is none."""
    for own in sorted(names, key=len, reverse=True):
        if any(name == start or name.startswith(f"{start}_") for start in (own, f"d{own}")):
            return own
    return ""
