"""Named code: `package.module:name` in a setting, from a library or by the user. Its import, options and calls.

If the code lacks something or raises, this is a UserError with a one-line message that names the setting.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from pydantic import Field, ValidationError

from mpitrain.config.component import Component, Options
from mpitrain.errors import ConfigError, MpitrainError, TrainingError, one_line

Result = TypeVar("Result")


@dataclass(frozen=True)
class NamedCode:
    """The code named by `name`, the value of the setting `key`."""

    key: str
    name: str

    def load(self) -> Any:
        """Import and return the code; the current directory is searched first. Raises ConfigError."""
        module_name, _, attribute = self.name.partition(":")
        # The current directory stays on the path: the code may import other modules in it later. It is not added for
        # modules that are already loaded: torch's own code needs no trust, but the current directory would.
        if module_name not in sys.modules and os.getcwd() not in sys.path and "" not in sys.path:
            sys.path.insert(0, os.getcwd())
        module = self.run(
            lambda: importlib.import_module(module_name), f"{module_name} cannot be imported",
            "give a module of the current directory or of an installed package",
        )  # fmt: skip
        found = getattr(module, attribute, None)
        if found is None:
            raise self.error(f"{module_name} has no '{attribute}'; give the name of a class or function in it")
        if not callable(found):
            raise self.error(f"'{attribute}' is {type(found).__name__}, not callable; give a class or function")
        return found

    def call(self, target: Callable[..., Result], *arguments: Any, **options: Any) -> Result:
        """Call `target` and return its result. Raises ConfigError if it raises."""
        given = ", ".join(f"{option}={value!r}" for option, value in options.items())
        call = f"{self.name.partition(':')[2]}({given})"
        return self.run(lambda: target(*arguments, **options), f"{call} failed", f"see {self.key}")

    def run(self, action: Callable[[], Result], problem: str, advice: str) -> Result:
        """Call `action` and return its result. Raises ConfigError with `problem` and `advice` if it raises."""
        try:
            return action()
        except MpitrainError:
            raise
        except (Exception, SystemExit) as error:
            raise self.error(f"{problem} ({reason(error)}){self._place(error)}; {advice}") from error

    def error(self, text: str) -> ConfigError:
        """Return a ConfigError that names the setting."""
        return ConfigError(f"{self.key}={self.name}: {text}")

    def typed_class(self, kind: type[Component]) -> type[Component] | None:
        """Return the code if it is a class of `kind`, otherwise None. Raises ConfigError."""
        target = self.load()
        return target if isinstance(target, type) and issubclass(target, kind) else None

    def component(self, kind: type[Component], values: Mapping[str, Any]) -> Any:
        """Return an instance of the code with `values` if it is a class of `kind`, else None. Raises ConfigError."""
        target = self.typed_class(kind)
        if target is None:
            return None
        try:
            return target.model_validate({**values, kind.name_field: self.name})
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            option = str(first["loc"][0]) if first["loc"] else ""
            known = [name for name in target.model_fields if name != kind.name_field]
            if first["type"] == "missing":
                raise self.error(_needs([option], known)) from None
            if first["type"] == "extra_forbidden":
                raise self.error(_unknown(option, known)) from None
            raise self.error(f"{option}={first['input']!r}: {first['msg'].lower()}") from None

    def _place(self, error: BaseException) -> str:
        """Return the file and line of the module's last call in the traceback of `error`, or "" if there is none."""
        module = self.name.partition(":")[0]
        calls = [one for one in traceback.walk_tb(error.__traceback__) if one[0].f_globals.get("__name__") == module]
        return f" at {os.path.basename(calls[-1][0].f_code.co_filename)}:{calls[-1][1]}" if calls else ""

    def guarded(self, function: Callable[..., Result]) -> Callable[..., Result]:
        """Return a wrapper of `function` that raises TrainingError for its exceptions during training."""

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Result:
            try:
                return function(*arguments, **options)
            except MpitrainError:
                raise
            except Exception as error:
                raise TrainingError(
                    f"{self.key}={self.name}: failed in a step ({reason(error)}){self._place(error)}; correct it, then "
                    "continue with --resume"
                ) from error

        return call


class CodeComponent(Component):
    """Base class of the components for named code; the first base of the class `CODE` of each room.

    Methods that need the code import it, which runs it; the current directory is searched first.
    """

    setting: ClassVar[str]
    """The dotted key of the name of the code."""
    kind: ClassVar[type[Component]]
    """Named code that is a subclass of this class is itself a component."""
    num_given: ClassVar[int] = 1
    """Number of leading arguments that mpitrain passes to the code."""

    options: Options = Field(default_factory=dict)
    """Other arguments of the named code, by name."""

    @property
    def code(self) -> NamedCode:
        """The named code."""
        return NamedCode(self.setting, self.name)

    @property
    def options_key(self) -> str:
        """The dotted key of `options`."""
        return f"{self.setting.removesuffix('.type').removesuffix('.name')}.options"

    def own(self) -> Any:
        """Return the named component with these options, or None if the code is not one.

        Returns
        -------
        Component or None
            An instance of the code if it is a subclass of `kind`.

        Raises
        ------
        ConfigError
            The code cannot be imported, or an option is missing, unknown or not allowed.
        """
        of_all = self.model_dump(include=self.kind.model_fields.keys() - {self.name_field})
        return self.code.component(self.kind, {**of_all, **self.options})

    def arguments(self) -> dict[str, inspect.Parameter] | None:
        """Return the arguments that `options` may contain, by name, or None if the code accepts any name.

        Returns
        -------
        dict of str to inspect.Parameter, or None
            Without the arguments that mpitrain itself passes.

        Raises
        ------
        ConfigError
            The code cannot be imported or called.
        """
        target = self.code.load()
        known, given = options_of(target), self.given(target)
        return None if known is None else {name: one for name, one in known.items() if name not in given}

    def given(self, target: Any) -> Sequence[str]:
        """Return the names of the arguments that mpitrain itself passes, which `options` cannot contain.

        Parameters
        ----------
        target : callable
            The named class or function.

        Returns
        -------
        sequence of str
            The first `num_given` arguments of `target`; subclasses add others.
        """
        return list(options_of(target) or ())[: self.num_given]

    def missing_options(self) -> list[str]:
        """Return the required options that are missing.

        Returns
        -------
        list of str
            Sorted names.

        Raises
        ------
        ConfigError
            The code cannot be imported or called.
        """
        typed = self.code.typed_class(self.kind)
        if typed is not None:
            required = {name for name, field in typed.model_fields.items() if field.is_required()}
            return sorted(required - self.kind.model_fields.keys() - self.options.keys())
        arguments = (self.arguments() or {}).items()
        required = {name for name, argument in arguments if argument.default is argument.empty}
        return sorted(required - self.options.keys())

    def check_options(self) -> None:
        """Check the names of the options against the arguments of the code.

        Raises
        ------
        ConfigError
            An option is missing, unknown to the code, or passed by mpitrain itself.
        """
        known, given = self.arguments(), self.given(self.code.load())
        for option in self.options:
            if option in given:
                raise self.code.error(f"'{option}' is passed by mpitrain itself; remove it from {self.options_key}")
            if known is not None and option not in known:
                raise self.code.error(_unknown(option, known))
        missing = self.missing_options()
        if missing:
            raise self.code.error(_needs(missing, known or missing))

    def check(self) -> None:
        """See `Component.check`; also checks the names of the options."""
        if self.own() is None:
            self.check_options()


def options_of(target: Any) -> dict[str, inspect.Parameter] | None:
    """Return the arguments of a function or class that can be passed by name.

    Parameters
    ----------
    target : callable
        For a class, the arguments are those of its constructor.

    Returns
    -------
    dict of str to inspect.Parameter, or None
        The arguments by name, in order; None if any name is accepted (`**kwargs`) or if there is no signature, as for
        code written in C.
    """
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # no signature: written in C
        return None
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return None
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: one for name, one in parameters.items() if one.kind in named}


def reason(error: BaseException) -> str:
    """Return the class name of an exception and the first line of its message."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {one_line(lines[0])}" if lines else type(error).__name__


def _needs(options: Collection[str], known: Collection[str]) -> str:
    values = ", ".join(f"{option}: VALUE" for option in options)
    return f"has no default for {', '.join(options)}; give options: {{{values}}}; its options are {', '.join(known)}"


def _unknown(option: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(option, known, n=1)
    advice = f"did you mean '{near[0]}'? " if near else ""
    return f"has no option '{option}'; {advice}its options are {', '.join(known) or 'none'}"
