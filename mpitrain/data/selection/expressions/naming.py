"""Resolution of names in the settings: ranges of levels, derived variables, and quantities of the decoded time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from mpitrain.data.describe.cf import is_latitude, is_longitude, is_time
from mpitrain.data.describe.names import (
    ICE_FRACTION,
    LATITUDE,
    LONGITUDE,
    OCEAN_MASK,
    find_variable,
    is_absent,
    is_called,
)
from mpitrain.data.files.arrays import ArrayFile
from mpitrain.data.files.variable import FieldFile, VariableInfo
from mpitrain.data.selection.expressions.clock import CLOCK_NAMES, is_clock
from mpitrain.data.selection.expressions.expression import Expression, MaskExpression
from mpitrain.data.selection.expressions.levels import expand
from mpitrain.data.selection.expressions.reference import BRACKETED, parse_reference
from mpitrain.errors import ConfigError, DataError

_NAMES_OTHERS = ("coordinates", "bounds", "climatology", "grid_mapping", "ancillary_variables", "formula_terms")
_STRUCTURE = ("sample_dimension", "instance_dimension", "cf_role", "grid_mapping_name")
_ROLES = (LATITUDE, LONGITUDE, OCEAN_MASK, ICE_FRACTION)
_MARKS = frozenset("[]()+-*/<>=!&|~,")


@dataclass(frozen=True)
class Naming:
    """The meaning of the names of inputs, targets and masks.

    `derived` are expressions by name, `clocks` the names of quantities computed from the decoded time.
    """

    derived: Mapping[str, Expression] = field(default_factory=dict)
    clocks: frozenset[str] = frozenset()

    def references(self, name: str) -> tuple[str, ...]:
        """Return the references to variables that a name needs: itself, or those of its expression."""
        expression = self.derived.get(name)
        names = (name,) if expression is None else expression.names
        return tuple(one for one in names if one not in self.clocks)


def spell_out(names: Sequence[str], file: FieldFile, key: str) -> tuple[tuple[str, ...], dict[str, Expression]]:
    """Return the names, with one name for each level of a range, and the expressions among them by name.

    `key` is the setting that holds the names. Raises ConfigError if a name cannot be parsed, DataError if the file
    lacks a level.
    """
    spelled: list[str] = []
    derived: dict[str, Expression] = {}
    for name in names:
        if is_plain(name, file):
            spelled.append(name)
        elif BRACKETED.fullmatch(name.strip()):
            spelled += _levels(name.strip(), file, key)
        else:
            texts = _texts(name, file, key)
            derived |= {text: Expression(text, key) for text in texts}
            spelled += texts
    return tuple(spelled), derived


def clocks_of(names: Sequence[str], file: FieldFile) -> frozenset[str]:
    """Return those of the references that stand for quantities computed from the decoded time."""
    return frozenset(name for name in names if is_clock(name, file))


def names_needed(names: Sequence[str], file: FieldFile) -> list[str]:
    """Return the references to variables that names need: themselves, or those of their expressions."""
    return [one for name in names for one in ((name,) if is_plain(name, file) else Expression(name, "variables").names)]


def variables_needed(names: Sequence[str], mask: str | None, file: FieldFile) -> set[str]:
    """Return the variables that names and a condition need, without levels and lags. Raises ConfigError.

    Quantities computed from the decoded time are not among them.
    """
    needed = [*names_needed(names, file), *(() if mask is None else MaskExpression(mask, "domain.mask").names)]
    plain = (one if one in file.variables else parse_reference(one, "variables").name for one in needed)
    return {name for name in plain if name not in CLOCK_NAMES}


def is_plain(name: str, file: FieldFile) -> bool:
    """Return whether a name is that of a variable, without brackets or operators; any name that the file has is."""
    return name in CLOCK_NAMES or not _MARKS & set(name) or not is_absent(name, file)


def _levels(text: str, file: FieldFile, key: str) -> list[str]:
    reference = parse_reference(text, key)
    if not reference.is_run:
        return [text]
    return expand(reference, text, file.variables[find_variable(reference.name, file)], file)


def _texts(text: str, file: FieldFile, key: str) -> list[str]:
    """Return the texts of an expression, one for each level of the ranges in it."""
    runs = {name: _levels(name, file, key) for name in Expression(text, key).names if parse_reference(name, key).is_run}
    counts = {len(levels) for levels in runs.values()}
    if len(counts) > 1:
        sizes = " and ".join(f"{name} has {len(levels)} levels" for name, levels in runs.items())
        raise ConfigError(f"{key}: '{text}': {sizes}; select the same number of levels of each")
    spelled = lambda number: BRACKETED.sub(lambda found: _of(runs, " ".join(found[0].split()), number), text)  # noqa: E731
    return [spelled(number) for number in range(counts.pop())] if counts else [text.strip()]


def _of(runs: Mapping[str, Sequence[str]], name: str, number: int) -> str:
    return runs[name][number] if name in runs else name


@dataclass(frozen=True)
class Asked:
    """The variables in the settings.

    Attributes
    ----------
    names : tuple of str or None
        Required names, as the settings spell them, also expressions; None (default) if the settings do not name all
        inputs and targets.
    mask : str or None
        The condition `domain.mask`; None (default): no condition.
    others : tuple of str
        Names that the data may lack.
    """

    names: tuple[str, ...] | None = None
    mask: str | None = None
    others: tuple[str, ...] = ()

    def among(self, infos: Sequence[VariableInfo]) -> set[str]:
        """Return the names of the variables that the settings need, with their coordinates and times.

        Parameters
        ----------
        infos : sequence of VariableInfo
            All variables of the data.

        Returns
        -------
        set of str
            All names if `names` is None, or if one of the settings' names cannot be resolved.
        """
        every = {info.name for info in infos}
        if self.names is None:
            return every
        file = ArrayFile(Path("data"), infos, _no_values)
        try:
            needed = variables_needed(self.names, self.mask, file)
            others = {one for name in self.others for one in variables_needed([name], None, file)}
            found = {
                find_variable(name, file) for name in {*needed, *(one for one in others if not is_absent(one, file))}
            }
        except (DataError, ConfigError):
            return every
        mentioned = " ".join(info.text(key) for info in infos for key in _NAMES_OTHERS).replace(":", " ").split()
        return found | {info.name for info in infos if info.name in mentioned or _is_of_structure(info)}


def _no_values(number: int) -> npt.NDArray[Any]:
    raise NotImplementedError("only names are known")


def _is_of_structure(info: VariableInfo) -> bool:
    """Return whether a variable holds coordinates, times, the structure of profiles, an ocean mask or ice cover."""
    is_place_or_time = is_time(info) or is_latitude(info) or is_longitude(info)
    return is_place_or_time or any(map(info.text, _STRUCTURE)) or any(is_called(info, one) for one in _ROLES)
