"""Open the trackers that the settings ask for, and close them when the run ends."""

from __future__ import annotations

import importlib.util
import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpitrain.config import RunConfig, TrackingSection
from mpitrain.errors import MissingDependencyError, StoppedError
from mpitrain.observe.summary import RunSummary
from mpitrain.observe.trackers.tracker import BackgroundTracker, Outcome, Tracker, flat

_NAMES = ("tensorboard", "wandb", "mlflow")
_PATIENCE_TO_OPEN_S = 60.0
# A run that was stopped must be gone before its scheduler kills it.
_PATIENCE_S: dict[Outcome, float] = {"finished": 120.0, "stopped": 10.0, "failed": 10.0}


def check_trackers(config: RunConfig) -> None:
    """Raise MissingDependencyError where the library of a tracker that is asked for is not installed."""
    for name in _asked_for(config):
        if importlib.util.find_spec(name) is None:
            raise MissingDependencyError(
                f"tracking.{name}=true: {name} is not installed; python -m pip install 'mpitrain[{name}]'"
            )


@contextmanager
def open_trackers(
    config: RunConfig, folder: Path, first_step: int, tell: Callable[[str], None]
) -> Iterator[list[BackgroundTracker]]:
    """Yield the trackers of a run that begins after `first_step`; end them with how the block ends. For the root.

    They write into `folder`, of the run folder. `tell` hears of a failure, which has no other effect.
    """
    opened = [
        BackgroundTracker(name, lambda name=name: _load(name, config, folder, first_step), tell)  # type: ignore[misc]
        for name in _asked_for(config)
    ]
    # What takes seconds would take them from the first steps; a server that does not answer may do so meanwhile.
    until_s = _until_s(_PATIENCE_TO_OPEN_S, config)
    for tracker in opened:
        tracker.wait_until_open(until_s)
    outcome: Outcome = "failed"
    try:
        yield opened
        outcome = "finished"
    except StoppedError:
        outcome = "stopped"
        raise
    finally:
        # The other ranks wait at the end of the run, and not for ever.
        until_s = _until_s(_PATIENCE_S[outcome], config)
        for tracker in opened:
            tracker.close(outcome, until_s)


def _until_s(patience_s: float, config: RunConfig) -> float:
    return time.monotonic() + min(patience_s, config.distributed.timeout_s / 2)


def where_to_look(tracking: TrackingSection, folder: Path) -> Iterator[str]:
    """Yield a line for each tracker of a run: where its record is, and what shows it."""
    if tracking.tensorboard:
        yield f"tracking: TensorBoard, {_command('tensorboard', '--logdir', folder / 'tensorboard')}"
    if tracking.wandb and tracking.wandb_mode == "offline":
        yield f"tracking: W&B, offline; send it with {_command('wandb', 'sync', folder / 'wandb')}/offline-run-*"
    elif tracking.wandb:
        yield "tracking: W&B, online"
    if tracking.mlflow and tracking.mlflow_uri is None:
        shown = _command("mlflow", "ui", "--backend-store-uri", folder / "mlruns")
        yield f"tracking: MLflow, MLFLOW_ALLOW_FILE_STORE=true {shown}"
    elif tracking.mlflow:
        yield f"tracking: MLflow, {tracking.mlflow_uri}"


def final_values(summary: RunSummary) -> dict[str, float | str]:
    """Return what a run came to, by name: losses, epochs, the best of them, and the hash of the weights."""
    names = (
        "epochs", "steps", "train_loss", "validation_loss", "test_loss", "best_epoch", "weights_sha256", "wall_time_s",
        "world_size", "num_training_samples", "num_validation_samples",
    )  # fmt: skip
    values = {name: getattr(summary, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def flat_settings(config: RunConfig) -> dict[str, Any]:
    """Return every setting by its dotted key."""
    return dict(flat(config.model_dump(mode="json"), "."))


def _asked_for(config: RunConfig) -> Sequence[str]:
    return [name for name in _NAMES if getattr(config.tracking, name)]


def _command(*words: str | Path) -> str:
    return shlex.join(map(str, words))


def _load(name: str, config: RunConfig, folder: Path, first_step: int) -> Callable[[], Tracker]:
    """Load the library of a tracker, and return what makes it."""
    title, tracking = folder.absolute().parent.name, config.tracking
    _settle_environment(tracking)
    folder.mkdir(exist_ok=True)
    if name == "tensorboard":
        from mpitrain.observe.trackers.tensorboard_files import TensorBoardTracker

        return lambda: TensorBoardTracker(folder / "tensorboard", flat_settings(config), first_step)
    if name == "wandb":
        from mpitrain.observe.trackers.wandb_run import WandbTracker

        return lambda: WandbTracker(folder, title, tracking, config.model_dump(mode="json"))
    from mpitrain.observe.trackers.mlflow_run import MlflowTracker

    return lambda: MlflowTracker(folder, tracking.mlflow_uri, tracking.mlflow_experiment, title, flat_settings(config))


def _settle_environment(tracking: TrackingSection) -> None:
    """Set what the libraries read while they are loaded, where the user has not set it."""
    # MLflow reports its use, and W&B its own failures, to their makers unless they are told not to.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if tracking.wandb_mode == "offline":
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    # A folder needs no database library and no locks, which parallel file systems lack; since MLflow 3.13 it is
    # written to only where this asks for it.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
