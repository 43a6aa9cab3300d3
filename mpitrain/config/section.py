"""What all sections of a run's configuration have in common; the text under a field is its documentation.

Values are checked strictly: no number is read from text, no boolean from a number, and no whole number from `64.0`.
`None` means "decide by the rules of the other settings", so that a resolved configuration reads back equal.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

LARGEST_WHOLE_NUMBER = 2**63 - 1
LARGEST_VIRTUAL_RANKS = 65536

Count = Annotated[int, Field(ge=1, le=LARGEST_WHOLE_NUMBER)]
CountOrZero = Annotated[int, Field(ge=0, le=LARGEST_WHOLE_NUMBER)]
PositiveNumber = Annotated[float, Field(gt=0)]
NumberOrZero = Annotated[float, Field(ge=0)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, Field(min_length=1)]
Names = Annotated[list[Text], Field(min_length=1)]


def _power_of_two(value: int) -> int:
    if value & (value - 1):
        raise ValueError("not a power of two")
    return value


PowerOfTwo = Annotated[
    int,
    Field(
        ge=1, le=LARGEST_VIRTUAL_RANKS, json_schema_extra={"allowed": f"a power of two, 1 to {LARGEST_VIRTUAL_RANKS}"}
    ),
    AfterValidator(_power_of_two),
]


class Section(BaseModel):
    """What every section has in common: frozen, strict, no unknown keys, no NaN or infinity."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        protected_namespaces=(),
        defer_build=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_means_defaults(cls, values: Any) -> Any:
        # A section without keys, `training:` with all its lines commented out, is null in YAML.
        return {} if values is None else values
