"""A tracker of the user or of a library, given by the name of its class or function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpitrain.config import CodeComponent, CodeName, TrackingSection
from mpitrain.observe.trackers.tracked_run import TrackedRun, TrackerComponent
from mpitrain.observe.trackers.tracker import Tracker


class CodeTracker(CodeComponent, TrackerComponent):
    """A tracker given by the name of a callable, which receives the folder to write to, the settings and options."""

    setting = "tracking.tracker"
    kind = TrackerComponent
    num_given = 2

    type: CodeName

    def check(self) -> None:
        """See `TrackerComponent.check`."""
        own = self.own()
        if own is not None:
            own.check()
            return
        self.check_options()

    def where(self, tracking: TrackingSection, folder: Path) -> str:
        """See `TrackerComponent.where`."""
        return f"{self.type}, in {folder}"

    def build(self, run: TrackedRun) -> Callable[[], Tracker]:
        """See `TrackerComponent.build`."""
        own: TrackerComponent | None = self.own()
        if own is not None:
            make = own.build(run)
            return lambda: _Tracker(make())
        target = self.code.load()
        return lambda: _Tracker(target(run.folder, run.flat_settings, **self.options))


class _Tracker:
    """Wrapper of the user's object; methods of `Tracker` that the object lacks do nothing."""

    def __init__(self, inner: Any) -> None:
        self.log = inner.log
        names, absent = ("finish", "close", "abandon"), lambda *_: None
        self.finish, self.close, self.abandon = (getattr(inner, name, None) or absent for name in names)
