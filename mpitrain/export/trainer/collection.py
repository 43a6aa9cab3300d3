"""The settings of a collection that a trainer needs: which samples are kept, and the variables of a sample."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BeforeValidator, Field, ValidationError

from mpitrain.config import Count, CountOrZero
from mpitrain.config.section import Section, Text
from mpitrain.errors import ConfigError, UserError, reason_of

_MOST_SAMPLES = 2**31 - 1


def _as_written(value: object) -> object:
    # The collection's library reads every value as text: `units: 1` is "1".
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


_AnyText = Annotated[str, BeforeValidator(_as_written)]


class CollectedVariable(Section):
    """An input or target variable with `levels` values per sample; 0: one value, without a level dimension."""

    name: Text
    units: _AnyText = ""
    standard_name: _AnyText = ""
    long_name: _AnyText = ""
    levels: CountOrZero = 0

    @property
    def selection(self) -> str:
        """The reference to all its values in a run's settings and in attributes of the collected file."""
        return f"{self.name}[lev{self.levels}=:]" if self.levels else self.name

    @property
    def columns(self) -> list[str]:
        """The names of its values, one for each level."""
        return [f"{self.name}[lev{self.levels}={level}]" for level in range(self.levels)] or [self.name]


class CollectionSettings(Section):
    """The settings file of a collection; the collection's library checks it in more detail."""

    output: Text
    samples: Annotated[Count, Field(le=_MOST_SAMPLES)]
    seed: CountOrZero = 0
    inputs: Annotated[list[CollectedVariable], Field(min_length=1)]
    targets: Annotated[list[CollectedVariable], Field(min_length=1)]
    strata: Any = None

    @property
    def variables(self) -> Iterator[tuple[str, str, str]]:
        """Name, role and units of each value of a sample, in order."""
        for role, variables in (("input", self.inputs), ("target", self.targets)):
            for one in variables:
                yield from ((name, role, one.units) for name in one.columns)

    def names(self, role: str) -> list[str]:
        """Return the names of the values of this role."""
        return [name for name, its_role, _ in self.variables if its_role == role]


def read_collection_settings(path: Path) -> CollectionSettings:
    """Return the settings of a collection. Raises UserError or ConfigError if a trainer cannot use them."""
    try:
        settings = CollectionSettings.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--collection {path}: cannot be read ({reason_of(error)}); give the settings file of a collection"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(
            f"--collection {path}: is not valid YAML ({' '.join(str(error).split())}); correct it"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(f"--collection {path}: {key}: {first['msg']}; see mpitrain help collection") from error
    if settings.strata is not None:
        raise ConfigError(
            f"--collection {path}: strata: a trainer does not use weights of samples; remove strata, or collect and "
            "run mpitrain train"
        )
    return settings
