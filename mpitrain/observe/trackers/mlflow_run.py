"""MLflow: a run in a tracking store, by default a folder in the run folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from mpitrain.observe.trackers.tracked_run import KnownRun
from mpitrain.observe.trackers.tracker import Outcome, Tracker

# MLflow's limits: characters of a parameter's value, and parameters in one call.
_LONGEST_PARAMETER = 500
_MOST_PARAMETERS = 100

_STATUSES: dict[Outcome, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


def store_address(uri: str | None, folder: Path) -> str:
    """Return the tracking store's URI: `uri`, as a `file:` URI if it is a folder; `mlruns/` in `folder` if None."""
    if uri is not None and (":" in uri or uri == "databricks"):
        return uri
    return Path(uri or folder / "mlruns").absolute().as_uri()


class MlflowTracker(Tracker):
    """A run of an experiment, by a separate client that leaves MLflow's global state unchanged."""

    def __init__(self, folder: Path, uri: str | None, experiment: str, name: str, settings: Mapping[str, Any]) -> None:
        self._client = MlflowClient(tracking_uri=store_address(uri, folder))
        known = KnownRun(folder / "mlflow_run.json", f"{uri or ''} {experiment}")
        earlier = known.read()
        self._run_id = earlier or self._create_run(experiment, name)
        known.keep(self._run_id)
        if earlier:
            self._client.update_run(earlier, status="RUNNING")
        self._log_settings({key: str(value)[:_LONGEST_PARAMETER] for key, value in settings.items()})

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Tracker.log`."""
        now_ms = int(time.time() * 1000)
        self._client.log_batch(self._run_id, [Metric(name, value, now_ms, step) for name, value in values.items()])

    def finish(self, step: int, values: Mapping[str, float | str]) -> None:
        """See `Tracker.finish`; text becomes a tag."""
        self.log(step, {f"final/{name}": value for name, value in values.items() if not isinstance(value, str)})
        for name, value in values.items():
            if isinstance(value, str):
                self._client.set_tag(self._run_id, f"final/{name}", value)

    def close(self, outcome: Outcome) -> None:
        """See `Tracker.close`."""
        self._client.set_terminated(self._run_id, _STATUSES[outcome])

    def _create_run(self, experiment: str, name: str) -> str:
        found = self._client.get_experiment_by_name(experiment)
        experiment_id = found.experiment_id if found else self._client.create_experiment(experiment)
        return str(self._client.create_run(experiment_id, run_name=name).info.run_id)

    def _log_settings(self, settings: Mapping[str, str]) -> None:
        earlier = self._client.get_run(self._run_id).data.params
        new = [Param(key, value) for key, value in settings.items() if key not in earlier]
        for first in range(0, len(new), _MOST_PARAMETERS):
            self._client.log_batch(self._run_id, params=new[first : first + _MOST_PARAMETERS])
        for key, value in settings.items():  # a parameter cannot be changed: changes in a resumed run become tags
            if earlier.get(key, value) != value:
                self._client.set_tag(self._run_id, f"resumed/{key}", value)
