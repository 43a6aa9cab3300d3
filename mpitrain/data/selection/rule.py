"""The conditions of the section `domain`, which select the points of a grid that are samples.

With `mask_mode: null`, `pole` and `clean_data` select the points of a CICE history (see `select_points`); all points of
other files are selected, or with `clean_data: false` those beyond 60 degrees. Other modes do not use `clean_data`:

all      every point of the grid
ocean    points where the file's ocean mask (umask, mask, sea_binary_mask) is 1; without a mask, points where all
         targets have a value (for predictions without targets: all inputs)
both     as `ocean`
sea_ice  as `ocean`, where the ice concentration is above 0 and at most 1

`min_ice_concentration` replaces the bound 0 of sea_ice; with ocean it selects the points of lower concentration.

In these modes, and for files of which all points are selected, `pole` selects a hemisphere, which needs only the
latitude; null: both hemispheres. `mask`, `latitude_range` and `longitude_range` apply in addition, in every mode.
Ranges include their ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.config import DomainSection
from mpitrain.data.describe.names import ICE_FRACTION, LATITUDE, LONGITUDE, OCEAN_MASK
from mpitrain.data.selection.expressions.expression import BoolArray, MaskExpression, Values
from mpitrain.errors import ConfigError, DataError

Array = npt.NDArray[Any]
# Returns the name of the file's variable for a quantity of `QUANTITIES`; raises DataError if there is none.
FindRole = Callable[[str], str]


CLEAN_LATITUDE_DEGREES = 40.0
ANY_LATITUDE_DEGREES = 60.0


@dataclass(frozen=True)
class Condition:
    """A predefined condition on the variable `name`: the function `TESTS[test]` with the keyword arguments `limits`.

    `scale` converts coordinates stored in radians to degrees. All attributes are plain data, so that a rule can be
    sent between ranks.
    """

    name: str
    test: str
    limits: Mapping[str, str | float] = field(default_factory=dict)
    scale: float = 1.0

    @property
    def names(self) -> tuple[str, ...]:
        """The variable that the condition needs."""
        return (self.name,)

    def evaluate(self, values: Values) -> BoolArray:
        """Return a mask of where the condition holds; `values` returns the array of a name, NaN where missing."""
        with np.errstate(invalid="ignore"):
            found = values(self.name)
            return TESTS[self.test](found if self.scale == 1.0 else found * self.scale, **self.limits)


def is_poleward(latitude: Array, pole: str, limit: float) -> BoolArray:
    """Return which latitudes lie beyond `limit` degrees on the side of `pole`: "north", "south" or "both"."""
    poleward = {"north": lambda: latitude, "south": lambda: -latitude, "both": lambda: np.abs(latitude)}[pole]()
    return np.asarray(poleward > limit)


def is_ocean(mask: Array) -> BoolArray:
    """Return where an ocean mask is 1."""
    return np.asarray(mask == 1)


def is_icier(aice: Array, than: float = 0.0) -> BoolArray:
    """Return where a concentration is above `than` and at most 1; False for NaN."""
    return np.asarray((aice > than) & (aice <= 1))


def has_less_ice(aice: Array, than: float) -> BoolArray:
    """Return where a concentration is below `than`; False for NaN."""
    return np.asarray(aice < than)


def is_within(values: Array, low: float, high: float) -> BoolArray:
    """Return which values lie from `low` to `high`, both included."""
    return np.asarray((values >= low) & (values <= high))


def is_between_meridians(longitude: Array, west: float, east: float) -> BoolArray:
    """Return which longitudes lie eastward from `west` to `east`, both included, in degrees modulo 360."""
    width, east_of_west = east - west, np.mod(longitude.astype(np.float64) - west, 360.0)
    return np.isfinite(east_of_west) if width >= 360.0 else east_of_west <= width % 360.0


def is_present(values: Array) -> BoolArray:
    """Return where values are measurements, not NaN."""
    return ~np.isnan(values)


OF_PLACES = ("poleward", "within", "between meridians")
"""The tests with limits in degrees."""
TESTS: Mapping[str, Callable[..., BoolArray]] = {
    "poleward": is_poleward, "ocean": is_ocean, "icier": is_icier, "less ice": has_less_ice, "within": is_within,
    "between meridians": is_between_meridians, "present": is_present,
}  # fmt: skip


def select_points(latitude: Array, mask: Array, aice: Array, pole: str, is_clean: bool) -> BoolArray:
    """Return which points `domain.pole` and `domain.clean_data` select; the arrays are broadcast together.

    If `is_clean`, these are ocean points beyond 40 degrees with 0 < aice <= 1; otherwise all points beyond 60 degrees.
    """
    if not is_clean:
        return is_poleward(latitude, pole, ANY_LATITUDE_DEGREES)
    return np.asarray(is_ocean(mask) & is_poleward(latitude, pole, CLEAN_LATITUDE_DEGREES) & is_icier(aice))


@dataclass(frozen=True)
class PointRule:
    """A rule that selects the points where all conditions hold; `description` names it in messages."""

    conditions: tuple[Condition | MaskExpression, ...]
    description: str

    @property
    def names(self) -> tuple[str, ...]:
        """The variables that the conditions need."""
        return tuple(dict.fromkeys(name for condition in self.conditions for name in condition.names))


def uses_ice(domain: DomainSection, is_cice: bool = True) -> bool:
    """Return whether the rule of `domain` uses the ice concentration of a file."""
    if domain.mask_mode is None:
        return is_cice and domain.clean_data
    return domain.mask_mode == "sea_ice" or (domain.mask_mode == "ocean" and domain.min_ice_concentration is not None)


def ice_condition(domain: DomainSection) -> str:
    """Return a description of the condition of `domain` on the ice concentration, with its setting."""
    mode, bound = domain.mask_mode, domain.min_ice_concentration
    if mode is None:
        return "0 < aice <= 1 (domain.clean_data)"
    condition = f"aice < {bound:g}" if mode == "ocean" and bound is not None else f"{bound or 0:g} < aice <= 1"
    return f"{condition} (domain.mask_mode={mode})"


def build_point_rule(
    domain: DomainSection, leading_names: tuple[str, ...], find_role: FindRole, with_ice: bool = True,
    is_cice: bool = True,
) -> PointRule:  # fmt: skip
    """Return the rule of `domain` for a file; `find_role("lat")` returns the name of the file's variable of a quantity.

    `leading_names` are the targets, or the inputs if there are no targets: in a file without an ocean mask, the ocean
    is where all of them have a value. `is_cice`: the file is a CICE history. `with_ice=False` omits conditions on the
    ice concentration, for a file without it.
    Raises ConfigError if a mask is not allowed or a range is empty, DataError if the file lacks a variable that the
    rule needs.
    """
    conditions, descriptions = _conditions_of_mode(domain, leading_names, find_role, with_ice, is_cice)
    if domain.mask is not None:
        conditions.append(MaskExpression(domain.mask, "domain.mask"))
        descriptions.append(f"domain.mask={domain.mask}")
    if domain.latitude_range is not None:
        south, north = _checked_latitudes(domain.latitude_range)
        conditions.append(Condition(find_role(LATITUDE), "within", {"low": south, "high": north}))
        descriptions.append(f"domain.latitude_range={domain.latitude_range}")
    if domain.longitude_range is not None:
        west, east = domain.longitude_range
        conditions.append(Condition(find_role(LONGITUDE), "between meridians", {"west": west, "east": east}))
        descriptions.append(f"domain.longitude_range={domain.longitude_range}")
    if not conditions and not descriptions:
        descriptions = ["every point (the file is not a CICE history; domain.mask_mode or domain.pole select fewer)"]
    return PointRule(tuple(conditions), ", ".join(descriptions))


def _conditions_of_mode(
    domain: DomainSection, leading_names: tuple[str, ...], find_role: FindRole, with_ice: bool, is_cice: bool
) -> tuple[list[Condition | MaskExpression], list[str]]:
    if domain.mask_mode is None and (is_cice or not domain.clean_data):
        try:
            return _conditions_of_pole(domain, find_role, with_ice)
        except DataError as error:
            raise DataError(
                f"{error}; domain.pole and domain.clean_data need it: set domain.mask_mode to all, ocean or sea_ice"
            ) from error
    hemisphere, descriptions = _hemisphere(domain, find_role)
    descriptions = [*([f"domain.mask_mode={domain.mask_mode}"] if domain.mask_mode else []), *descriptions]
    if domain.mask_mode in (None, "all"):
        return [*hemisphere], descriptions
    ice = [_condition_of_ice(domain, find_role)] if with_ice and uses_ice(domain) else []
    if ice and domain.min_ice_concentration is not None:
        descriptions.append(f"domain.min_ice_concentration={domain.min_ice_concentration:g}")
    return [*hemisphere, *_ocean(leading_names, find_role), *ice], descriptions


def _condition_of_ice(domain: DomainSection, find_role: FindRole) -> Condition:
    """Return the condition of `domain.mask_mode`, sea_ice or ocean, on the ice concentration."""
    test, bound = "icier" if domain.mask_mode == "sea_ice" else "less ice", domain.min_ice_concentration
    return Condition(find_role(ICE_FRACTION), test, {"than": bound or 0.0})


def _hemisphere(domain: DomainSection, find_role: FindRole) -> tuple[list[Condition], list[str]]:
    """Return the condition of `domain.pole` and its description; no condition if it is both or null."""
    if domain.pole is None:
        return [], []
    if domain.pole == "both":
        return [], ["domain.pole=both"]
    side = "above" if domain.pole == "north" else "below"
    try:
        condition = Condition(find_role(LATITUDE), "poleward", {"pole": domain.pole, "limit": 0.0})
    except DataError as error:
        raise DataError(f"{error}; domain.pole needs it") from error
    return [condition], [f"domain.pole={domain.pole} (latitudes {side} 0)"]


def _conditions_of_pole(
    domain: DomainSection, find_role: FindRole, with_ice: bool
) -> tuple[list[Condition | MaskExpression], list[str]]:
    clean, pole = domain.clean_data, domain.pole or "north"
    limit = CLEAN_LATITUDE_DEGREES if clean else ANY_LATITUDE_DEGREES
    conditions: list[Condition | MaskExpression] = [
        Condition(find_role(LATITUDE), "poleward", {"pole": pole, "limit": limit})
    ]
    if clean:
        conditions.append(Condition(find_role(OCEAN_MASK), "ocean"))
    if clean and with_ice:
        conditions.append(Condition(find_role(ICE_FRACTION), "icier"))
    icy = " with 0 < aice <= 1" if with_ice else ""
    rule = f"ocean (umask 1) beyond 40 degrees{icy}" if clean else "beyond 60 degrees"
    return conditions, [f"domain.pole={pole}, domain.clean_data={str(clean).lower()} ({rule})"]


def _ocean(leading_names: tuple[str, ...], find_role: FindRole) -> list[Condition]:
    try:
        return [Condition(find_role(OCEAN_MASK), "ocean")]
    except DataError:
        return [Condition(name, "present") for name in leading_names]


def _checked_latitudes(latitudes: list[float]) -> tuple[float, float]:
    south, north = latitudes
    if south > north:
        raise ConfigError(
            f"domain.latitude_range=[{south}, {north}]: the southern limit comes first, as in [{north}, {south}]"
        )
    return south, north
