"""The options of code that settings name as `package.module:name`, for `mpitrain config explain run.yaml`."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from typing import Any

from mpitrain.config.advice.explain import indented
from mpitrain.config.messages import describe_values
from mpitrain.config.named_code import CodeComponent
from mpitrain.config.yaml import show_value
from mpitrain.errors import one_line


def explain_code(component: CodeComponent) -> str:
    """Return a paragraph on named code, and one on each of its options. Imports the code.

    Raises ConfigError where the code cannot serve, but not for options that it lacks: these are what is looked up.
    """
    if not component.missing_options():
        component.check()
    typed = component.code.typed_class(component.kind)
    options = _of_arguments(component) if typed is None else _of_fields(component, typed)
    text = inspect.cleandoc(component.code.load().__doc__ or "")  # not that of a base class
    first = indented(one_line(" ".join(text.partition("\n\n")[0].split())))
    paragraphs = [[f"{component.setting}={component.name}", *first], *options]
    return "\n".join("\n".join([*lines, ""]) for lines in paragraphs)


def _of_arguments(component: CodeComponent) -> Iterator[list[str]]:
    for name, argument in (component.arguments() or {}).items():
        has_default = argument.default is not argument.empty
        default = f"Default: {argument.default!r}." if has_default else "It must be given."
        yield [_key(component, name), f"  {default}{_here(component, name)}"]


def _of_fields(component: CodeComponent, cls: type[Any]) -> Iterator[list[str]]:
    for name, field in cls.model_json_schema()["properties"].items():
        if name not in component.kind.model_fields and name != component.name_field:
            texts = [f"  {field['description']}"] if "description" in field else []
            allowed = ", or ".join(map(describe_values, field.get("anyOf", [field])))
            default = f"Default: {json.dumps(field['default'])}." if "default" in field else "It must be given."
            yield [_key(component, name), *texts, f"  Allowed: {allowed}. {default}{_here(component, name)}"]


def _key(component: CodeComponent, option: str) -> str:
    return f"{component.options_key}.{option}"


def _here(component: CodeComponent, option: str) -> str:
    return f" Here: {show_value(component.options[option])}." if option in component.options else ""
