"""Components: exchangeable parts of a run, such as networks and optimisers. A component is a class with its settings.

A room is the registry of one kind of components: a package that defines `TABLE`, class paths by name; `CODE`, the class
for code named `package.module:name`; `DEFAULT`, the default name or None; and, if the name may be null, `UNNAMED`, the
class for that case. Classes are imported when a configuration names them, not with this module. Code named by a
configuration is never imported here.
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
"""Type of a setting that names code of a library or of the user, as `package.module:name`."""
Options = Annotated[
    dict[str, Any], Field(json_schema_extra={"allowed": "a mapping of the arguments' names to values, such as {a: 1}"})
]


class Component(Section):
    """One exchangeable part of a run. Its fields are its settings; the field `name_field` is its name in the table.

    Torch and other packages that take long to load are imported only in `build`.
    """

    name_field: ClassVar[str] = "type"
    in_reference: ClassVar[frozenset[str] | None] = None
    """The options supported in `semantics: reference`; None if the component is not supported there."""
    ignored: ClassVar[frozenset[str]] = frozenset()
    """Options of other components that have no effect here but are accepted in a strict room."""
    described_as: ClassVar[str | None] = None
    """The text returned by `describe`; None: the name."""

    if TYPE_CHECKING:

        @property
        def name(self) -> str:
            """Its name in the settings."""

    def problems(self) -> Iterator[tuple[str, object, str]]:
        """Yield conflicting options; the base class yields none.

        Yields
        ------
        tuple of (str, object, str)
            Name of the option, its value, and a message with the problem and advice.
        """
        yield from ()

    def check(self) -> None:
        """Import the code that the settings name, if any.

        Raises
        ------
        ConfigError
            The code cannot be imported or used.
        """

    def describe(self) -> str:
        """Return the name of the component for sentences of the report.

        Returns
        -------
        str
            `described_as`; if that is None, the name in the settings.
        """
        return self.name if self.described_as is None else self.described_as


class TypedComponent(Component):
    """A component whose name is its field `type`, which each subclass declares.

    Base class of optimisers, schedules, losses, file formats, export formats and trackers.
    """

    @property
    def name(self) -> str:
        """Its name in the settings."""
        return str(getattr(self, "type"))  # noqa: B009  # each component narrows the field


@dataclass(frozen=True)
class Room:
    """The registry of one kind of components; it annotates the field of a section that has one of them as value.

    `key` is the field's dotted key. With `is_name` a component without options is written as its name only. With
    `is_strict` an option of another component is an error unless it has its default value.
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
        """The option for the name of the component."""
        return _class_at(self._module.CODE).name_field

    @property
    def type_key(self) -> str:
        """The dotted key of the component's name."""
        return self.key if self.is_name else f"{self.key}.{self.name_field}"

    @property
    def table(self) -> dict[str, str]:
        """Class paths by name."""
        return dict(self._module.TABLE)

    @property
    def default(self) -> str | None:
        """The default name; None if a name is required or may be null."""
        name: str | None = self._module.DEFAULT
        return name

    @property
    def may_be_unnamed(self) -> bool:
        """Whether a component's name may be null."""
        return hasattr(self._module, "UNNAMED")

    def component(self, name: str | None) -> type[Component]:
        """Return the class for a name. Raises KeyError for a name without a colon that is not in the table."""
        if name is None:
            return _class_at(getattr(self._module, "UNNAMED", None) or self.table[""])
        return _class_at(self._module.CODE if ":" in name else self.table[name])

    def components(self) -> list[type[Component]]:
        """Return all classes of the room; the classes for named code and for no name come last."""
        unnamed = [self._module.UNNAMED] if self.may_be_unnamed else []
        return [_class_at(path) for path in (*self.table.values(), self._module.CODE, *unnamed)]

    def owners(self, option: str) -> list[str]:
        """Return the names of the components that have the option."""
        return [name for name, path in self.table.items() if option in _class_at(path).model_fields]

    def texts(self, option: str) -> dict[str, list[str]]:
        """Return the descriptions of an option, each with the names of the components that have it."""
        found: dict[str, list[str]] = {}
        for name in self.owners(option):
            schema = _class_at(self.table[name]).model_json_schema()
            found.setdefault(schema["properties"][option].get("description", ""), []).append(name)
        return found

    def validate(self, value: Any) -> Any:
        """Return the component described by `value`: a name, or a mapping with its name and options.

        Options of other components of the room are validated and left out. None is returned unchanged in a room without
        a default. Raises ValidationError.
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
        """Return whether an option belongs to other components only and has no effect on the component `name`.

        For named code, unless the room is strict, this holds only for default values, which older files contain.
        """
        if option in cls.model_fields:
            return False
        is_known = any(option in other.model_fields for other in self.components())
        return is_known and (self.is_strict or ":" not in (name or "") or self.is_default(option, value))

    def _check_foreign(self, cls: type[Component], name: str | None, option: str, value: Any) -> None:
        """Raise for an invalid value of an option of other components; in a strict room, for any but the default."""
        owners = self.owners(option)
        if owners:
            self.component(owners[0]).model_validate({self.name_field: owners[0], option: value})
        if self.is_strict and option not in cls.ignored and not self.is_default(option, value):
            problem = Problem(f"{self.key}.{option}", value, self._foreign_advice(name, owners))
            raise cross_check([problem])

    def _foreign_advice(self, name: str | None, owners: list[str]) -> str:
        if ":" in (name or ""):
            return f"has no effect on named code; remove the key, and give your own arguments as {self.key}.options"
        advice = f"remove the key or give {self.type_key}={' or '.join(owners or ['package.module:name'])}"
        return f"{name} has no such option; {advice}"

    def is_default(self, option: str, value: Any) -> bool:
        """Return whether `value` is the default of the option in any component."""
        fields = [cls.model_fields[option] for cls in self.components() if option in cls.model_fields]
        return any(field.get_default(call_default_factory=True) == value for field in fields)

    def dump(self, component: Any) -> Any:
        """Return the component as plain values that `validate` accepts."""
        if not isinstance(component, Component):  # None, if the field allows it
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
    """Return the error for an invalid or missing name of a component."""
    error = InitErrorDetails(type=PydanticCustomError(kind, "not a component"), loc=(field,), input=value)
    return ValidationError.from_exception_data("Component", [error])


def cross_check(problems: Sequence[Problem]) -> PydanticCustomError:
    """Return the error for conflicting settings."""
    return PydanticCustomError(CROSS_CHECK, "{text}", {"text": str(problems[0]), "problems": tuple(problems)})


@cache
def _class_at(path: str) -> type[Component]:
    cls: type[Component] = object_at(path)
    return cls


def object_at(path: str) -> Any:
    """Import and return the class or function of mpitrain at `package.module:name`.

    Parameters
    ----------
    path : str
        An entry of a table of the package, never the user's own code.

    Returns
    -------
    object
        The class or function. ImportError and AttributeError of a wrong path are not caught.
    """
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def rooms_in(section: type[BaseModel]) -> Iterator[Room]:
    """Yield the rooms of the fields of a section, and of the sections in it."""
    for field in section.model_fields.values():
        yield from (one for one in field.metadata if isinstance(one, Room))
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from rooms_in(field.annotation)
