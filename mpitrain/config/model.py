"""The section `model`, which is a component, and the types of its settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from mpitrain.config.component import Room
from mpitrain.config.section import PositiveNumber

Activation = Literal["none", "sigmoid", "tanh", "relu", "gelu", "silu"]
ICE_NAMES, ICE_STANDARD_NAMES = ("aice", "siconc", "icec", "sic"), ("sea_ice_area_fraction",)
# CICE's suffixes of history variables for the output frequency: hourly, daily, monthly, yearly, each step.
CICE_SUFFIX = re.compile(r"_(h|d|m|y|1|inst)$")
Probability = Annotated[float, Field(ge=0, lt=1)]
TransformSetting = Literal["log", "logit"] | Annotated[dict[Literal["power"], PositiveNumber], Field(min_length=1)]
OutputTransforms = Annotated[
    dict[str, TransformSetting],
    Field(json_schema_extra={"allowed": "a mapping of targets to log, logit or {power: 0.5}, such as {precip: log}"}),
]


NETWORKS = Room("model", "mpitrain.models.networks", is_strict=True)


def is_ice_concentration(name: str) -> bool:
    """Return whether a short or standard name of a variable is one of the sea ice concentration."""
    short = CICE_SUFFIX.sub("", name.rpartition("/")[2].lower())
    return short in ICE_NAMES or name in ICE_STANDARD_NAMES


@dataclass(frozen=True)
class TargetTransform:
    """Transform of a target y before training: log(y), logit(y) = log(y / (1 - y)), or y to the power `exponent`."""

    kind: Literal["log", "logit", "power"]
    """The function."""
    exponent: float = 1.0
    """The exponent of `power`, above 0; not used by the other kinds."""

    @property
    def setting(self) -> TransformSetting:
        """The transform as a value of `model.output_transforms`."""
        return {"power": self.exponent} if self.kind == "power" else self.kind

    @property
    def description(self) -> str:
        """The transform as written in the settings."""
        return f"{{power: {self.exponent:g}}}" if self.kind == "power" else self.kind


def transform_of(setting: TransformSetting) -> TargetTransform:
    """Return the transform for a value of `output_transforms`."""
    return TargetTransform(setting) if isinstance(setting, str) else TargetTransform("power", setting["power"])
