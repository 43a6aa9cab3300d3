"""Which variables of a grid have values together, and values that differ: what a first run could learn from.

N  positions that are looked at
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mpitrain.data import FieldFile
from mpitrain.data.describe.names import setting_name
from mpitrain.data.describe.roles import coordinate_of, further_axes
from mpitrain.data.files.decoding import read, read_column
from mpitrain.data.files.variable import VariableInfo, first_part

Array = npt.NDArray[np.floating]
_MOST_LEVELS = 100
# An input that leaves fewer of the samples that have a target is not worth what it takes.
_FEWEST_COMPLETE = 0.5


@dataclass(frozen=True)
class Measured:
    """A variable, or one level of it: the `name` by which settings call it, and its first values (N,)."""

    name: str
    info: VariableInfo
    values: Array

    @property
    def differs(self) -> bool:
        """Whether there are two values that are not the same."""
        return _differs(self.values)


def measured(info: VariableInfo, file: FieldFile) -> Measured | None:
    """Return a variable with the first level along each further dimension whose values differ; None without one."""
    further = [axis for axis in further_axes(info, file.variables) if info.shape[axis] > 1 and info.dimensions[axis]]
    levels = itertools.product(*(range(info.shape[axis]) for axis in further))
    for positions in itertools.islice(levels, _MOST_LEVELS):
        fixed = dict(zip(further, positions, strict=True))
        found = Measured(_named(info, fixed, file), info, read(file, info.name, first_part(info, fixed)).reshape(-1))
        if found.differs:
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
    levels = ", ".join(
        f"{info.dimensions[axis]}={_level(info, axis, position, file)}" for axis, position in fixed.items()
    )
    return f"{setting_name(info)}[{levels}]" if levels else info.name


def _level(info: VariableInfo, axis: int, position: int, file: FieldFile) -> str:
    coordinate = coordinate_of(info, info.dimensions[axis], file.variables)
    if coordinate is None or not coordinate.is_numeric:
        return str(position)
    return f"{read_column(file, coordinate)[position]:.7g}"
