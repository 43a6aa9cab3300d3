"""Weights & Biases: a run in the run folder, or online on their servers if requested."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wandb

from mpitrain.config import TrackingSection
from mpitrain.observe.trackers.tracked_run import KnownRun
from mpitrain.observe.trackers.tracker import Outcome

_EXIT_CODES: dict[Outcome, int] = {"finished": 0, "stopped": 5, "failed": 1}


class WandbTracker:
    """A W&B run that prints nothing and does not capture the console. A resumed run keeps its ID, also when synced."""

    def __init__(self, folder: Path, name: str, tracking: TrackingSection, settings: Mapping[str, Any]) -> None:
        is_offline = tracking.wandb_mode == "offline"
        known = KnownRun(folder / "wandb_run.json", f"{tracking.wandb_entity}/{tracking.wandb_project}")
        earlier = known.read()
        run_id = earlier or secrets.token_hex(4)
        self._run = wandb.init(
            project=tracking.wandb_project,
            entity=tracking.wandb_entity,
            name=tracking.wandb_name or name,
            tags=tracking.tags or None,
            mode=tracking.wandb_mode,
            dir=str(folder.absolute()),
            id=run_id,
            resume=None if is_offline or earlier is None else "allow",
            config=dict(settings),
            allow_val_change=True,
            settings=wandb.Settings(silent=True, console="off", disable_git=True, x_disable_stats=True),
        )
        known.keep(run_id)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        self._run.log(dict(values), step=step)

    def finish(self, step: int, values: Mapping[str, float | str]) -> None:
        """See `Tracker.finish`."""
        self._run.summary.update({f"final/{name}": value for name, value in values.items()})

    def close(self, outcome: Outcome) -> None:
        """See `Tracker.close`; a stopped run is marked as preempted."""
        if outcome == "stopped":
            self._run.mark_preempting()
        self._run.finish(exit_code=_EXIT_CODES[outcome])

    def abandon(self) -> None:
        """See `Tracker.abandon`: ends the library's process, which otherwise causes a traceback at exit."""
        wandb.teardown(_EXIT_CODES["failed"])
