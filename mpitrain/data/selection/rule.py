"""Which points of a grid are samples: the conditions that the section `domain` stands for.

`mask_mode: null` keeps the rule of `pole` and `clean_data` (see `selection.select_points`). Otherwise these two are not
used, and every hemisphere counts:

all      every point of the grid
ocean    where the file's ocean mask (umask, mask, sea_binary_mask) is 1; without one, where every target has a value
         (to predict for a file without targets: every input)
sea_ice  as `ocean`, where the ice concentration is above 0 and at most 1

`mask`, `latitude_range` and `longitude_range` hold as well, whatever the mode. Ranges include their ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mpitrain.config.data import DomainSection
from mpitrain.data.selection.mask_expression import BoolArray, MaskExpression, Values
from mpitrain.data.selection.names import ICE_FRACTION, LATITUDE, LONGITUDE, OCEAN_MASK
from mpitrain.data.selection.selected_points import ANY_LATITUDE_DEGREES, CLEAN_LATITUDE_DEGREES
from mpitrain.errors import ConfigError, DataError

# Returns the name of a file's variable for a quantity of the table; raises DataError where there is none.
FindRole = Callable[[str], str]


@dataclass(frozen=True)
class LongitudeRange:
    """West to east, both included, over the meridian too; degrees."""

    name: str
    west: float
    east: float

    @property
    def names(self) -> tuple[str, ...]:
        """The variable that is needed."""
        return (self.name,)

    def evaluate(self, values: Values) -> BoolArray:
        """Return where the longitude is inside."""
        east_of_west = np.mod(values(self.name).astype(np.float64) - self.west, 360.0)
        width = self.east - self.west
        inside: BoolArray = np.isfinite(east_of_west) if width >= 360.0 else east_of_west <= width % 360.0
        return inside


Condition = MaskExpression | LongitudeRange


@dataclass(frozen=True)
class PointRule:
    """A point is a sample where all conditions hold. `words` say so to a user."""

    conditions: tuple[Condition, ...]
    words: str

    @property
    def names(self) -> tuple[str, ...]:
        """The variables that are needed."""
        return tuple(dict.fromkeys(name for condition in self.conditions for name in condition.names))


def uses_ice(domain: DomainSection) -> bool:
    """Tell whether the rule of `domain` asks for the ice concentration."""
    return domain.clean_data if domain.mask_mode is None else domain.mask_mode == "sea_ice"


def build_point_rule(
    domain: DomainSection, leading_names: tuple[str, ...], find_role: FindRole, with_ice: bool = True
) -> PointRule:
    """Return the rule that `domain` stands for in a file; `find_role("lat")` names the file's variable of a quantity.

    `leading_names` are the targets, or without them the inputs: the ocean of a file without an ocean mask is where all
    of them have a value. `with_ice=False` leaves out what asks for the ice concentration, which the file does not have.
    Raises ConfigError for a mask that is not allowed or a range that is empty, DataError where the file lacks what the
    rule needs.
    """
    texts, words = _texts_of_mode(domain, leading_names, find_role, with_ice)
    conditions: list[Condition] = [MaskExpression(text) for text in texts]
    if domain.mask is not None:
        conditions.append(MaskExpression(domain.mask))
        words.append(f"domain.mask={domain.mask}")
    if domain.latitude_range is not None:
        south, north = _checked_latitudes(domain.latitude_range)
        conditions.append(MaskExpression(f"{south!r} <= {_quoted(find_role(LATITUDE))} <= {north!r}"))
        words.append(f"domain.latitude_range={domain.latitude_range}")
    if domain.longitude_range is not None:
        west, east = domain.longitude_range
        conditions.append(LongitudeRange(find_role(LONGITUDE), west, east))
        words.append(f"domain.longitude_range={domain.longitude_range}")
    return PointRule(tuple(conditions), ", ".join(words))


def _texts_of_mode(
    domain: DomainSection, leading_names: tuple[str, ...], find_role: FindRole, with_ice: bool
) -> tuple[list[str], list[str]]:
    if domain.mask_mode is None:
        try:
            return _texts_of_pole(domain, find_role, with_ice)
        except DataError as error:
            raise DataError(
                f"{error}; domain.pole and domain.clean_data need it: set domain.mask_mode to all, ocean or sea_ice"
            ) from error
    words = [f"domain.mask_mode={domain.mask_mode}"]
    if domain.mask_mode == "all":
        return [], words
    texts = _ocean(leading_names, find_role)
    return (texts + _icy(find_role) if with_ice and uses_ice(domain) else texts), words


def _texts_of_pole(domain: DomainSection, find_role: FindRole, with_ice: bool) -> tuple[list[str], list[str]]:
    clean = domain.clean_data
    limit = CLEAN_LATITUDE_DEGREES if clean else ANY_LATITUDE_DEGREES
    latitude = _quoted(find_role(LATITUDE))
    poleward = {"north": latitude, "south": f"-{latitude}", "both": f"abs({latitude})"}[domain.pole]
    texts = [f"{poleward} > {limit!r}"]
    if clean:
        texts += [f"{_quoted(find_role(OCEAN_MASK))} == 1", *(_icy(find_role) if with_ice else [])]
    icy = " with 0 < aice <= 1" if with_ice else ""
    rule = f"ocean (umask 1) beyond 40 degrees{icy}" if clean else "beyond 60 degrees"
    return texts, [f"domain.pole={domain.pole}, domain.clean_data={str(clean).lower()} ({rule})"]


def _ocean(leading_names: tuple[str, ...], find_role: FindRole) -> list[str]:
    try:
        return [f"{_quoted(find_role(OCEAN_MASK))} == 1"]
    except DataError:
        return [f"not isnan({_quoted(name)})" for name in leading_names]


def _icy(find_role: FindRole) -> list[str]:
    aice = _quoted(find_role(ICE_FRACTION))
    return [f"0 < {aice} <= 1"]


def _checked_latitudes(latitudes: list[float]) -> tuple[float, float]:
    south, north = latitudes
    if south > north:
        raise ConfigError(
            f"domain.latitude_range=[{south}, {north}]: give the southernmost first, as in [{north}, {south}]"
        )
    return south, north


def _quoted(name: str) -> str:
    return f"var({json.dumps(name)})"
