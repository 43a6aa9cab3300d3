"""The built-in trackers: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import os
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
            # Set before the import: by default the library sends reports of its failures to its makers.
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        from mpitrain.observe.trackers.wandb_run import WandbTracker

        return lambda: WandbTracker(run.folder, run.title, run.tracking, run.settings)


class MLflow(TrackerComponent):
    """MLflow."""

    library = "mlflow"

    type: Literal["mlflow"] = "mlflow"

    def where(self, tracking: TrackingSection, folder: Path) -> str:
        """See `TrackerComponent.where`."""
        if tracking.mlflow_uri is not None:
            return f"MLflow, {tracking.mlflow_uri}"
        shown = command("mlflow", "ui", "--backend-store-uri", folder / "mlruns")
        return f"MLflow, MLFLOW_ALLOW_FILE_STORE=true {shown}"

    def build(self, run: TrackedRun) -> Callable[[], Tracker]:
        """See `TrackerComponent.build`."""
        # Set before the import: by default the library sends usage data to its makers.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # A folder needs no database library, and no locks, which parallel file systems lack; since MLflow 3.13 it
        # must be enabled by this variable.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mpitrain.observe.trackers.mlflow_run import MlflowTracker

        uri, experiment = run.tracking.mlflow_uri, run.tracking.mlflow_experiment
        return lambda: MlflowTracker(run.folder, uri, experiment, run.title, run.flat_settings)
