"""Open the trackers requested in the settings, and close them when the run ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mpitrain.config import RunConfig, TrackingSection
from mpitrain.config.output import TRACKERS
from mpitrain.errors import StoppedError
from mpitrain.observe.summary import RunSummary
from mpitrain.observe.trackers.tracked_run import TrackedRun, TrackerComponent
from mpitrain.observe.trackers.tracker import BackgroundTracker, Outcome

_PATIENCE_TO_OPEN_S = 60.0
# A stopped run must end before its scheduler kills it.
_PATIENCE_S: dict[Outcome, float] = {"finished": 120.0, "stopped": 10.0, "failed": 10.0}


def check_trackers(tracking: TrackingSection) -> None:
    """Raise MissingDependencyError if the library of a requested tracker is not installed."""
    for tracker in asked_for(tracking):
        tracker.check()


@contextmanager
def open_trackers(
    config: RunConfig, folder: Path, first_step: int, tell: Callable[[str], None]
) -> Iterator[list[BackgroundTracker]]:
    """Yield the trackers of a run that begins after `first_step`; close them with the block's outcome. For the root.

    They write into `folder`, inside the run folder. `tell` receives a message if a tracker fails; the run continues.
    """
    folder.mkdir(exist_ok=True)
    settings = config.model_dump(mode="json")
    run = TrackedRun(folder, folder.absolute().parent.name, config.tracking, settings, first_step)
    opened = [
        BackgroundTracker(_key_of(one), lambda one=one: one.build(run), tell)  # type: ignore[misc]
        for one in asked_for(config.tracking)
    ]
    # Opening takes seconds, which would slow the first steps: wait for it here, but only until `until_s`; then training
    # begins without waiting further.
    until_s = _until_s(_PATIENCE_TO_OPEN_S, config.distributed.timeout_s)
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
        # The other ranks wait at the end of the run, until the timeout: all trackers share one deadline.
        until_s = _until_s(_PATIENCE_S[outcome], config.distributed.timeout_s)
        for tracker in opened:
            tracker.close(outcome, until_s)


def _key_of(tracker: TrackerComponent) -> str:
    return f"tracker={tracker.name}" if ":" in tracker.name else tracker.name


def _until_s(patience_s: float, timeout_s: float) -> float:
    return time.monotonic() + min(patience_s, timeout_s / 2)


def where_to_look(tracking: TrackingSection, folder: Path) -> Iterator[str]:
    """Yield a line for each tracker of a run: the location of its record, and the command that shows it."""
    yield from (f"tracking: {one.where(tracking, folder)}" for one in asked_for(tracking))


def final_values(summary: RunSummary) -> dict[str, float | str]:
    """Return the results of a run by name: losses, epochs, best epoch, hash of the weights, and others."""
    names = (
        "epochs", "steps", "train_loss", "validation_loss", "test_loss", "best_epoch", "weights_sha256", "wall_time_s",
        "world_size", "num_training_samples", "num_validation_samples",
    )  # fmt: skip
    values = {name: getattr(summary, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def asked_for(tracking: TrackingSection) -> Sequence[TrackerComponent]:
    """Return the trackers requested in the settings."""
    found = [TRACKERS.validate(name) for name in TRACKERS.table if getattr(tracking, name)]
    return [*found, *([] if tracking.tracker in (None, *found) else [tracking.tracker])]
