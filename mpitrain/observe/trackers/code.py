"""A tracker of the user, or of a library, by the name of its class or function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mpitrain.config import CodeComponent, CodeName, TrackingSection
from mpitrain.observe.trackers.tracked_run import TrackedRun, TrackerComponent
from mpitrain.observe.trackers.tracker import Outcome, Tracker


class CodeTracker(CodeComponent, TrackerComponent):
    """A tracker by the name of a callable, which is given the folder to write to, the settings and the options."""

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
    """The user's object, which need not have all methods of `Tracker`."""

    def __init__(self, inner: Any) -> None:
        self._inner, self._log = inner, inner.log

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        self._log(step, values)

    def finish(self, step: int, values: Mapping[str, float | str]) -> None:
        """See `Tracker.finish`."""
        self._call("finish", step, values)

    def close(self, outcome: Outcome) -> None:
        """See `Tracker.close`."""
        self._call("close", outcome)

    def abandon(self) -> None:
        """See `Tracker.abandon`."""
        self._call("abandon")

    def _call(self, name: str, *arguments: Any) -> None:
        method = getattr(self._inner, name, None)
        if method is not None:
            method(*arguments)
