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
    """A run as its trackers receive it.

    Attributes
    ----------
    folder : Path
        The folder `tracking` in the run folder, to which trackers write.
    title : str
        The name of the run folder.
    tracking : TrackingSection
        The section `tracking` of the settings.
    settings : mapping of str to object
        All settings as JSON values, in nested sections.
    first_step : int
        Number of optimiser steps before this launch; above 0 in a resumed run.
    """

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
    """Base class of experiment trackers and their settings.

    The options of built-in trackers are keys of the section `tracking`. A subclass defines its `type`, `where` and
    `build`.
    """

    library: ClassVar[str | None] = None
    """The library that the tracker needs."""

    type: str
    """The name of the tracker."""

    def check(self) -> None:
        """Raise an error if the tracker cannot be used. Called before the training.

        Raises
        ------
        MissingDependencyError
            Its library is not installed.
        ConfigError
            Named code cannot be imported, or options are missing or unknown.
        """
        if self.library is not None and importlib.util.find_spec(self.library) is None:
            raise MissingDependencyError(
                f"tracking.{self.name}=true: {self.library} is not installed; "
                f"python -m pip install 'mpitrain[{self.library}]'"
            )

    def where(self, tracking: TrackingSection, folder: Path) -> str:
        """Return a text on the location of the record, and the command that shows it.

        Parameters
        ----------
        tracking : TrackingSection
            The section `tracking` of the settings.
        folder : Path
            The folder `tracking` in the run folder.

        Returns
        -------
        str
            One line.
        """
        raise NotImplementedError

    def build(self, run: TrackedRun) -> Callable[[], Tracker]:
        """Load the library, and return a function that opens the tracker.

        Parameters
        ----------
        run : TrackedRun
            The folder and the settings of the run.

        Returns
        -------
        callable
            A function without arguments that returns the `Tracker`. It may wait for a server: it is called in the
            tracker's thread. A resumed run calls it again: files must be appended to.

        Notes
        -----
        Root only. `build` is called in the thread of the training, since two threads must not import one library at
        once. Any exception ends the tracker with one message, not the run.
        """
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
