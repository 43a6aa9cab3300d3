"""The section `ensemble`: which networks are trained in one world."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from mpitrain.config.section import Count, Section

Fraction = Annotated[int, Field(ge=2)]
_RANGE_KEYS = {"low", "high", "scale"}
# What a member may not choose for itself: it is the ensemble's, or decides where the member runs.
_NOT_VARIED = (
    "ensemble",
    "output",
    "prediction",
    "tracking",
    "compute",
    "seed",
    "data.fold",
    "data.folds",
    "data.split_seed",
)


class EnsembleSection(Section):
    """The members of an ensemble, read by `mpitrain ensemble` alone: seeds x settings x folds."""

    members: Count = 1
    """Number of seeds: `seed`, `seed` + 1, ... Each is trained with every setting and on every fold."""
    folds: Fraction | None = None
    """Number of parts that the samples are dealt into; each part is held out once. Null holds out as a run does."""
    grid: dict[str, Any] = Field(default_factory=dict)
    """Settings by their dotted keys, each with a list of values: every combination is trained."""
    random: dict[str, Any] = Field(default_factory=dict)
    """Settings that are drawn: a list to choose from, or {low, high, scale: linear or log}; whole ends give whole
    numbers."""
    draws: Count | None = None
    """How many times the settings of `random` are drawn, for each combination of the grid; null means 10."""
    ranks_per_member: Count | Literal["auto"] = "auto"
    """Ranks that train one member together; auto: as few as leave no rank without work."""
    save_interval_s: Annotated[float, Field(ge=0)] = 60.0
    """Seconds of one member's training between two of its checkpoints; each has one more at its end."""

    @field_validator("grid", "random", mode="before")
    @classmethod
    def _by_dotted_keys(cls, values: Any) -> Any:
        return dict(_flat(values)) if isinstance(values, Mapping) else values

    @property
    def num_draws(self) -> int:
        """How many settings are drawn for each combination of the grid; 1 where nothing is drawn."""
        return (self.draws or 10) if self.random else 1

    @property
    def num_members(self) -> int:
        """How many networks are trained: seeds x settings x folds."""
        return self.members * math.prod(map(len, self.grid.values())) * self.num_draws * (self.folds or 1)


def ensemble_problems(section: EnsembleSection) -> Iterator[tuple[str, object, str]]:
    """Yield settings of the section that cannot be varied so: key, value, and what to do."""
    for name in ("grid", "random"):
        for key, values in getattr(section, name).items():
            problem = _problem_of(name, key, values, section)
            if problem is not None:
                yield f"ensemble.{name}", key, f"{key} {problem}"
    if section.draws is not None and not section.random:
        yield "ensemble.draws", section.draws, "nothing is drawn; name settings in ensemble.random, or remove it"


def _problem_of(name: str, key: str, values: Any, section: EnsembleSection) -> str | None:
    if any(key == fixed or key.startswith(f"{fixed}.") for fixed in _NOT_VARIED):
        return "belongs to the whole ensemble; leave it out (seeds: ensemble.members, folds: ensemble.folds)"
    if isinstance(values, list):
        if not values:
            return "has no values; give a list such as [16, 32]"
        twice = name == "random" and key in section.grid
        return "is in the grid too; keep one of them" if twice else None
    if name == "grid":
        return "needs a list of values, such as [16, 32]"
    return _range_problem(values)


def _range_problem(values: Any) -> str | None:
    example = "{low: 0.0001, high: 0.01, scale: log}"
    if not isinstance(values, Mapping) or not {"low", "high"} <= set(values) <= _RANGE_KEYS:
        return f"needs a list of values, or a range such as {example}"
    low, high, scale = values["low"], values["high"], values.get("scale", "linear")
    if any(isinstance(end, bool) or not isinstance(end, int | float) for end in (low, high)) or not low < high:
        return f"needs numbers with low < high, such as {example}"
    if scale not in ("linear", "log"):
        return "has a scale that is neither linear nor log"
    return "is logarithmic: low must be above 0" if scale == "log" and low <= 0 else None


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys: `model: {hidden_size: [8]}` and `model.hidden_size: [8]` are the same."""
    for key, value in values.items():
        dotted = f"{above}{key}"
        if isinstance(value, Mapping) and not set(value) & _RANGE_KEYS and value:
            yield from _flat(value, f"{dotted}.")
        else:
            yield dotted, value
