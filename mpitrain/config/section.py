"""Base class and field types of the sections of a run's configuration; the string below a field documents it.

Values are validated strictly: text is not converted to numbers, numbers not to booleans, and `64.0` not to an integer.
`None` means that the value follows from other settings, so that a resolved configuration reads back equal.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from mpitrain.config.yaml import show_value

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic.json_schema import JsonSchemaValue
    from pydantic_core import CoreSchema

LARGEST_WHOLE_NUMBER = 2**63 - 1
LARGEST_VIRTUAL_RANKS = 65536

Count = Annotated[int, Field(ge=1, le=LARGEST_WHOLE_NUMBER)]
"""Type of a setting: a whole number from 1 to 2**63 - 1."""
CountOrZero = Annotated[int, Field(ge=0, le=LARGEST_WHOLE_NUMBER)]
"""Type of a setting: a whole number from 0 to 2**63 - 1."""
PositiveNumber = Annotated[float, Field(gt=0)]
"""Type of a setting: a finite number above 0; `Section` rejects infinity and NaN."""
NumberOrZero = Annotated[float, Field(ge=0)]
"""Type of a setting: a finite number of at least 0; `Section` rejects infinity and NaN."""
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


ReferenceValues = Mapping[str, tuple[object, ...]]
Needs = Mapping[str, tuple[Callable[[Any], Any], str]]
CROSS_CHECK = "cross_check"
"""Type of the validation error that contains a list of `Problem`."""


@dataclass(frozen=True)
class Problem:
    """A conflict between settings: the key and value to report, and `what`: the reason and the advice."""

    key: str
    value: object
    what: str
    launch: bool = False
    """Whether the launch must change, not the settings: LaunchError instead of ConfigError."""

    def __str__(self) -> str:
        return f"{self.key}={show_value(self.value)}: {self.what}"


class Section(BaseModel):
    """Base class of all sections: frozen, strict, without unknown keys, NaN or infinity."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        protected_namespaces=(),
        defer_build=True,
    )

    reference_values: ClassVar[ReferenceValues] = {}
    """Keys restricted by `semantics: reference`, with the values allowed besides null; (): only the default."""
    needs: ClassVar[Needs] = {}
    """Keys that other settings can make ineffective: a function of the configuration that returns whether the key has
    an effect, and the message if it has none."""

    @model_validator(mode="before")
    @classmethod
    def _empty_means_defaults(cls, values: Any) -> Any:
        # A section without keys, for example `training:` with all its lines commented out, is null in YAML.
        return {} if values is None else values

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # Only the schema needs descriptions; with `use_attribute_docstrings` every rank would parse the sources.
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema)["properties"]
        for name, text in _texts_under_fields(cls):
            if name in properties and handler.resolve_ref_schema(properties[name]).get("description") != text:
                properties[name]["description"] = text
        return schema


def stated_values(section: Section) -> dict[str, Any]:
    """Return the values that were given, without defaults, by name; nested sections are dictionaries."""
    given = {name: getattr(section, name) for name in type(section).model_fields if name in section.model_fields_set}
    return {name: stated_values(value) if isinstance(value, Section) else value for name, value in given.items()}


def _texts_under_fields(section: type[Section]) -> Iterator[tuple[str, str]]:
    """Yield each field of a section class, inherited ones first, with the string below it."""
    for base in section.__bases__:
        if issubclass(base, Section) and base is not Section:
            yield from _texts_under_fields(base)
    (definition,) = ast.parse(inspect.getsource(section)).body
    assert isinstance(definition, ast.ClassDef)
    for field, below in pairwise(definition.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                yield name, inspect.cleandoc(text)
