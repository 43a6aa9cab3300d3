"""Weights & Biases: a run in the run folder, or on their servers where that is asked for."""

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
    """One W&B run; it prints nothing and reads no console. What is resumed keeps its ID, and is one run when synced."""

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
        """See `Tracker.close`; a run that was stopped is shown as preempted."""
        if outcome == "stopped":
            self._run.mark_preempting()
        self._run.finish(exit_code=_EXIT_CODES[outcome])

    def abandon(self) -> None:
        """See `Tracker.abandon`: without its process the library would end this one with a traceback."""
        wandb.teardown(_EXIT_CODES["failed"])
