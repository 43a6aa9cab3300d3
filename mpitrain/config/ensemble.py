"""The section `ensemble`: the networks that are trained in one launch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from mpitrain.config.section import Count, Section

Fraction = Annotated[int, Field(ge=2)]
_RANGE_KEYS = {"low", "high", "scale"}
# Settings that `grid` and `random` cannot vary: the ensemble sets them, or they decide where a member runs.
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
    """The members of an ensemble: seeds x settings x folds. Used only by `mpitrain ensemble`."""

    members: Count = 1
    """Number of seeds: `seed`, `seed` + 1, ... Each is combined with every setting and every fold."""
    folds: Fraction | None = None
    """Number of parts that the samples are divided into; each part is held out once. Null: held-out samples as in a
    single run."""
    grid: dict[str, Any] = Field(default_factory=dict)
    """Settings by dotted key, each with a list of values: every combination is trained."""
    random: dict[str, Any] = Field(default_factory=dict)
    """Settings drawn at random: a list to choose from, or {low, high, scale: linear or log}; if both ends are whole
    numbers, whole numbers are drawn."""
    draws: Count | None = None
    """Number of random draws of the settings of `random`, for each combination of the grid; null: 10."""
    ranks_per_member: Count | Literal["auto"] = "auto"
    """Ranks that train one member together; auto: the smallest number that keeps all ranks busy."""
    save_interval_s: Annotated[float, Field(ge=0)] = 60.0
    """Seconds of training between two checkpoints of a member; one more checkpoint is written at its end."""

    @field_validator("grid", "random", mode="before")
    @classmethod
    def _by_dotted_keys(cls, values: Any) -> Any:
        return dict(_flat(values)) if isinstance(values, Mapping) else values

    @property
    def num_draws(self) -> int:
        """Number of random draws for each combination of the grid; 1 if nothing is drawn."""
        return (self.draws or 10) if self.random else 1

    @property
    def num_members(self) -> int:
        """Number of networks: seeds x settings x folds."""
        return self.members * math.prod(map(len, self.grid.values())) * self.num_draws * (self.folds or 1)


def ensemble_problems(section: EnsembleSection) -> Iterator[tuple[str, object, str]]:
    """Yield invalid settings of the section: key, value, and the problem with advice."""
    for name in ("grid", "random"):
        for key, values in getattr(section, name).items():
            problem = _problem_of(name, key, values, section)
            if problem is not None:
                yield f"ensemble.{name}", key, f"{key} {problem}"
    if section.draws is not None and not section.random:
        yield "ensemble.draws", section.draws, "nothing is drawn; give settings in ensemble.random, or remove the key"


def _problem_of(name: str, key: str, values: Any, section: EnsembleSection) -> str | None:
    if any(key == fixed or key.startswith(f"{fixed}.") for fixed in _NOT_VARIED):
        return "belongs to the whole ensemble; leave it out (seeds: ensemble.members, folds: ensemble.folds)"
    if isinstance(values, list):
        if not values:
            return "has no values; give a list such as [16, 32]"
        twice = name == "random" and key in section.grid
        return "is also in ensemble.grid; keep one of them" if twice else None
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
    """Yield dotted keys and values: `model: {hidden_size: [8]}` and `model.hidden_size: [8]` are equivalent."""
    for key, value in values.items():
        dotted = f"{above}{key}"
        if isinstance(value, Mapping) and not set(value) & _RANGE_KEYS and value:
            yield from _flat(value, f"{dotted}.")
        else:
            yield dotted, value
