"""The base class of tracker settings, and the data on a run that a tracker receives."""

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
    """A run that begins after `first_step`; its tracker writes into `folder`, inside the run folder named `title`."""

    folder: Path
    title: str
    tracking: TrackingSection
    settings: Mapping[str, Any]
    first_step: int

    @property
    def flat_settings(self) -> dict[str, Any]:
        """All settings by their dotted keys."""
        return dict(flat(self.settings, "."))


class TrackerComponent(TypedComponent):
    """An experiment tracker; the options of built-in trackers are keys of the section `tracking`."""

    library: ClassVar[str | None] = None
    """The library that the tracker needs."""

    type: str
    """The name of the tracker."""

    def check(self) -> None:
        """Raise MissingDependencyError if its library is not installed, ConfigError if its code cannot be used."""
        if self.library is not None and importlib.util.find_spec(self.library) is None:
            raise MissingDependencyError(
                f"tracking.{self.name}=true: {self.library} is not installed; "
                f"python -m pip install 'mpitrain[{self.library}]'"
            )

    def where(self, tracking: TrackingSection, folder: Path) -> str:
        """Return a text on the location of its record in `folder`, and the command that shows it."""
        raise NotImplementedError

    def build(self, run: TrackedRun) -> Callable[[], Tracker]:
        """Load the library, and return a function that opens the tracker of a run; it may wait for a server."""
        raise NotImplementedError


def command(*arguments: str | Path) -> str:
    """Return a command line with its arguments quoted for a shell."""
    return shlex.join(map(str, arguments))


@dataclass(frozen=True)
class KnownRun:
    """A tracker's identifier of a run, stored in a file; `where` is the server or project to which it belongs."""

    path: Path
    where: str

    def read(self) -> str | None:
        """Return the identifier; None if there is none yet, it cannot be read, or `where` differs."""
        try:
            kept = read_json(self.path)
            return str(kept["run"]) if kept["where"] == self.where else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, run: str) -> None:
        """Store the identifier for a later resumption of the run."""
        write_durably(self.path, json.dumps({"where": self.where, "run": run}).encode())
