"""Weights & Biases: a run in the run folder, or on their servers."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from mpitrain.config import TrackingSection
from mpitrain.observe.trackers.tracked_run import TrackedRun, TrackerComponent, command
from mpitrain.observe.trackers.tracker import Tracker


class WeightsAndBiases(TrackerComponent):
    """Weights & Biases."""

    library = "wandb"

    type: Literal["wandb"] = "wandb"

    def where(self, tracking: TrackingSection, folder: Path) -> str:
        """See `TrackerComponent.where`."""
        if tracking.wandb_mode == "online":
            return "W&B, online"
        return f"W&B, offline; send it with {command('wandb', 'sync', folder / 'wandb')}/offline-run-*"

    def build(self, run: TrackedRun) -> Callable[[], Tracker]:
        """See `TrackerComponent.build`."""
        if run.tracking.wandb_mode == "offline":
            # It reports its own failures to its makers unless it is told not to, before it is loaded.
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        from mpitrain.observe.trackers.wandb_run import WandbTracker

        return lambda: WandbTracker(run.folder, run.title, run.tracking, run.settings)
