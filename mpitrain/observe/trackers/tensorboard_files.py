"""TensorBoard: event files in the run folder, written by TensorBoard's library."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from mpitrain.observe.trackers.tracker import Outcome, Tracker

_MODULE_OF_THREAD = "tensorboard.summary.writer.event_file_writer"


class _QuietHook:
    """Hook for uncaught exceptions of threads that ignores TensorBoard's thread: the writer raises those again.

    It stays installed after the tracker has closed, because the thread may print its exception later.
    """

    def __init__(self) -> None:
        self._before = threading.excepthook

    def __call__(self, uncaught: threading.ExceptHookArgs) -> None:
        if type(uncaught.thread).__module__ != _MODULE_OF_THREAD:
            self._before(uncaught)


class TensorBoardTracker(Tracker):
    """Scalars by name, and the settings as text. A resumed run hides the earlier values after its checkpoint."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], first_step: int) -> None:
        if not isinstance(threading.excepthook, _QuietHook):
            threading.excepthook = _QuietHook()
        self._writer = SummaryWriter(str(folder), purge_step=first_step + 1 if first_step else None)
        self._write_text("settings", settings, first_step)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, step: int, values: Mapping[str, float | str]) -> None:
        """See `Tracker.finish`."""
        self._write_text("final", values, step)
        self.log(step, {f"final/{name}": value for name, value in values.items() if not isinstance(value, str)})

    def close(self, outcome: Outcome) -> None:
        """See `Tracker.close`; the files do not record the outcome."""
        self._writer.close()

    def _write_text(self, name: str, values: Mapping[str, Any], step: int) -> None:
        # TensorBoard's text is Markdown: indented lines are shown verbatim.
        lines = json.dumps(dict(values), indent=1).splitlines()
        self._writer.add_text(name, "\n".join(f"    {line}" for line in lines), step)
