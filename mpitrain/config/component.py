"""Components: exchangeable parts of a run, each one class, which owns its settings and all facts about it.

A room is a package whose `__init__` holds a table of names to class paths, `TABLE`; `CODE`, the class for code named
`package.module:name`; `DEFAULT`, the name where none is given, or None; and, where the name may be null, `UNNAMED`, the
class for that. Classes are imported when a configuration names them, never with this module. Nothing here imports the
code that a configuration names.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema

from mpitrain.config.section import CROSS_CHECK, Problem, Section

CODE_PATTERN = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"
CodeName = Annotated[
    str, Field(pattern=CODE_PATTERN, json_schema_extra={"allowed": "a library's or your own as package.module:name"})
]
Options = Annotated[
    dict[str, Any], Field(json_schema_extra={"allowed": "a mapping of the arguments' names to values, such as {a: 1}"})
]


class Component(Section):
    """One exchangeable part of a run. Its fields are its settings; the field `name_field` is its name in the table.

    It imports torch, and whatever else takes long to load, in `build` alone.
    """

    name_field: ClassVar[str] = "type"
    in_reference: ClassVar[frozenset[str] | None] = None
    """The options that `semantics: reference` has too; None where it does not have the component."""
    ignored: ClassVar[frozenset[str]] = frozenset()
    """Options of other components that are of no effect here and yet accepted, in a strict room."""
    described_as: ClassVar[str | None] = None
    """What `describe` returns; None: its name."""

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """Its name in the settings."""

    def problems(self) -> Iterator[tuple[str, object, str]]:
        """Yield options that do not go together: option, value, and what is wrong and what to do."""
        yield from ()

    def obstacle(self, request: Any) -> str | None:
        """Return why the component cannot serve for `request`, and what to do; None where it can."""
        return None

    def check(self) -> None:
        """Import the code that the settings name, if any. Raises ConfigError where it cannot serve."""

    def describe(self) -> str:
        """Return its name in a sentence of the report."""
        return self.name if self.described_as is None else self.described_as


class TypedComponent(Component):
    """A component whose name is its field `type`."""

    @property
    def name(self) -> str:
        """Its name in the settings."""
        return str(getattr(self, "type"))  # noqa: B009  # each component narrows the field


@dataclass(frozen=True)
class Room:
    """The components of one kind: annotates the field of a section that holds one of them.

    `key` is the field's dotted key. `is_name`: a component without options is written as its name alone. `is_strict`:
    an option of another component is refused, unless it has its default.
    """

    key: str
    package: str
    is_name: bool = False
    is_strict: bool = False

    @property
    def _module(self) -> Any:
        return importlib.import_module(self.package)

    @property
    def name_field(self) -> str:
        """The option that holds a component's name."""
        return _class_at(self._module.CODE).name_field

    @property
    def type_key(self) -> str:
        """The dotted key under which a component's name is given."""
        return self.key if self.is_name else f"{self.key}.{self.name_field}"

    @property
    def table(self) -> dict[str, str]:
        """Names to class paths."""
        return dict(self._module.TABLE)

    @property
    def default(self) -> str | None:
        """The name where none is given; None where it must be given, or may be null."""
        name: str | None = self._module.DEFAULT
        return name

    @property
    def may_be_unnamed(self) -> bool:
        """Whether a component's name may be null."""
        return hasattr(self._module, "UNNAMED")

    def component(self, name: str | None) -> type[Component]:
        """Return the class of a name. Raises KeyError for a name without a colon that is not in the table."""
        if name is None:
            return _class_at(getattr(self._module, "UNNAMED", None) or self.table[""])
        return _class_at(self._module.CODE if ":" in name else self.table[name])

    def components(self) -> list[type[Component]]:
        """Return all classes of the room; that for named code and that without a name come last."""
        unnamed = [self._module.UNNAMED] if self.may_be_unnamed else []
        return [_class_at(path) for path in (*self.table.values(), self._module.CODE, *unnamed)]

    def owners(self, option: str) -> list[str]:
        """Return the names of the components that have an option."""
        return [name for name, path in self.table.items() if option in _class_at(path).model_fields]

    def texts(self, option: str) -> dict[str, list[str]]:
        """Return the descriptions of an option, each with the names of the components that give it."""
        found: dict[str, list[str]] = {}
        for name in self.owners(option):
            schema = _class_at(self.table[name]).model_json_schema()
            found.setdefault(schema["properties"][option].get("description", ""), []).append(name)
        return found

    def validate(self, value: Any) -> Any:
        """Return the component that `value` describes: a name, or a mapping with its type and options.

        Options of other components of the room are checked and left out. None stays None in a room without a default.
        Raises ValidationError.
        """
        is_none = value is None and self.default is None and not self.may_be_unnamed
        if isinstance(value, Component) or is_none:
            return value
        values = {self.name_field: value} if isinstance(value, str) else {} if value is None else value
        if not isinstance(values, Mapping):
            raise PydanticCustomError("dict_type", "not a mapping")
        name = values.get(self.name_field, self.default)
        if name is None and not self.may_be_unnamed:
            raise _error("literal_error" if self.name_field in values else "missing", self.name_field, name)
        try:
            cls = self.component(name)
        except (KeyError, TypeError):
            raise _error("literal_error", self.name_field, name) from None
        left_out = [option for option in values if self.is_foreign(cls, name, option, values[option])]
        for option in left_out:
            self._check_foreign(cls, name, option, values[option])
        options = {option: one for option, one in values.items() if option not in left_out}
        return cls.model_validate({**options, self.name_field: name})

    def is_foreign(self, cls: type[Component], name: str | None, option: str, value: Any) -> bool:
        """Tell whether an option is one of other components only, and of no effect for the component `name`.

        Named code refuses what it does not have, but for other components' defaults, which older files spell out.
        """
        if option in cls.model_fields:
            return False
        is_known = any(option in other.model_fields for other in self.components())
        return is_known and (self.is_strict or ":" not in (name or "") or self.is_default(option, value))

    def _check_foreign(self, cls: type[Component], name: str | None, option: str, value: Any) -> None:
        """Raise for a wrong value of an option of other components, and in a strict room for any but the default."""
        owners = self.owners(option)
        if owners:
            self.component(owners[0]).model_validate({self.name_field: owners[0], option: value})
        if self.is_strict and option not in cls.ignored and not self.is_default(option, value):
            problem = Problem(f"{self.key}.{option}", value, self._foreign_advice(name, owners))
            raise cross_check([problem])

    def _foreign_advice(self, name: str | None, owners: list[str]) -> str:
        if ":" in (name or ""):
            return f"of no effect on named code; remove the key, and give your own arguments as {self.key}.options"
        advice = f"remove the key or give {self.type_key}={' or '.join(owners or ['package.module:name'])}"
        return f"{name} has no such option; {advice}"

    def is_default(self, option: str, value: Any) -> bool:
        """Tell whether `value` is the default of some component's option."""
        fields = [cls.model_fields[option] for cls in self.components() if option in cls.model_fields]
        return any(field.get_default(call_default_factory=True) == value for field in fields)

    def dump(self, component: Any) -> Any:
        """Return the component as plain values, as `validate` reads them."""
        if not isinstance(component, Component):  # None, where the field allows it
            return component
        if self.is_name and not component.model_dump(exclude={self.name_field}, exclude_defaults=True):
            return component.name
        return component.model_dump(mode="json")

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        serialization = core_schema.plain_serializer_function_ser_schema(self.dump)
        return core_schema.no_info_plain_validator_function(self.validate, serialization=serialization)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        alternatives = [cls.model_json_schema() for cls in self.components()]
        names = [{"type": "string"}] if self.is_name else []
        null = [{"type": "null"}] if self.default is None else []
        return {"anyOf": [*alternatives, *names, *null]}


def _error(kind: str, field: str, value: Any) -> ValidationError:
    """Return the error of a component's name."""
    error = InitErrorDetails(type=PydanticCustomError(kind, "not a component"), loc=(field,), input=value)
    return ValidationError.from_exception_data("Component", [error])


def cross_check(problems: Sequence[Problem]) -> PydanticCustomError:
    """Return the error of settings that do not go together."""
    return PydanticCustomError(CROSS_CHECK, "{text}", {"text": str(problems[0]), "problems": tuple(problems)})


@cache
def _class_at(path: str) -> type[Component]:
    cls: type[Component] = object_at(path)
    return cls


def object_at(path: str) -> Any:
    """Return the class or function of this package at `package.module:name`. Imports the module."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def rooms_in(section: type[BaseModel]) -> Iterator[Room]:
    """Yield the rooms of a section's fields, and of the sections in it."""
    for field in section.model_fields.values():
        yield from (one for one in field.metadata if isinstance(one, Room))
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from rooms_in(field.annotation)
