"""What a tracker is to the rest of the package, and what it is told of a run."""

from __future__ import annotations

import importlib.util
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from mpitrain.config import TrackingSection, TypedComponent
from mpitrain.durable_files import write_durably
from mpitrain.errors import MissingDependencyError
from mpitrain.json_text import read_json
from mpitrain.observe.trackers.tracker import Tracker, flat


@dataclass(frozen=True)
class TrackedRun:
    """A run that begins after `first_step`; its tracker writes into `folder`, of the run folder called `title`."""

    folder: Path
    title: str
    tracking: TrackingSection
    settings: Mapping[str, Any]
    first_step: int

    @property
    def flat_settings(self) -> dict[str, Any]:
        """Every setting by its dotted key."""
        return dict(flat(self.settings, "."))


class TrackerComponent(TypedComponent):
    """An experiment tracker. The options of the built-in ones are keys of the section `tracking`."""

    library: ClassVar[str | None] = None
    """The library that it needs."""

    type: str
    """Which tracker."""

    def check(self) -> None:
        """Raise MissingDependencyError where its library is not installed, ConfigError where its code cannot serve."""
        if self.library is not None and importlib.util.find_spec(self.library) is None:
            raise MissingDependencyError(
                f"tracking.{self.name}=true: {self.library} is not installed; "
                f"python -m pip install 'mpitrain[{self.library}]'"
            )

    def where(self, tracking: TrackingSection, folder: Path) -> str:
        """Return where its record in `folder` is, and what shows it."""
        raise NotImplementedError

    def build(self, run: TrackedRun) -> Callable[[], Tracker]:
        """Load the library, and return what makes the tracker of a run: it may take as long as a server does."""
        raise NotImplementedError


def command(*words: str | Path) -> str:
    """Return a command as a shell reads it."""
    return shlex.join(map(str, words))


@dataclass(frozen=True)
class KnownRun:
    """A tracker's own name of a run, kept in a file; `where` is the server or project that it is good for."""

    path: Path
    where: str

    def read(self) -> str | None:
        """Return the name; None where there is none yet, it cannot be read, or it is of another place."""
        try:
            kept = read_json(self.path)
            return str(kept["run"]) if kept["where"] == self.where else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, run: str) -> None:
        """Keep the name for those who resume the run."""
        write_durably(self.path, json.dumps({"where": self.where, "run": run}).encode())
