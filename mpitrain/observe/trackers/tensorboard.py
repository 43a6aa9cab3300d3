"""TensorBoard: files in the run folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from mpitrain.config import TrackingSection
from mpitrain.observe.trackers.tracked_run import TrackedRun, TrackerComponent, command
from mpitrain.observe.trackers.tracker import Tracker


class TensorBoard(TrackerComponent):
    """TensorBoard."""

    library = "tensorboard"

    type: Literal["tensorboard"] = "tensorboard"

    def where(self, tracking: TrackingSection, folder: Path) -> str:
        """See `TrackerComponent.where`."""
        return f"TensorBoard, {command('tensorboard', '--logdir', folder / 'tensorboard')}"

    def build(self, run: TrackedRun) -> Callable[[], Tracker]:
        """See `TrackerComponent.build`."""
        from mpitrain.observe.trackers.tensorboard_files import TensorBoardTracker

        return lambda: TensorBoardTracker(run.folder / "tensorboard", run.flat_settings, run.first_step)
