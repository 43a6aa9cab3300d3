"""The sections `prediction`, `output` and `tracking`: files that are written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from mpitrain.config.component import Room
from mpitrain.config.section import Names, Needs, Section, Text

TRACKERS = Room("tracking.tracker", "mpitrain.observe.trackers", is_name=True)


def _of_tracker(name: str) -> tuple[Callable[[Any], Any], str]:
    is_on = lambda config: getattr(config.tracking, name) or getattr(config.tracking.tracker, "name", "") == name  # noqa: E731
    return is_on, f"has no effect without tracking.{name}=true"


class PredictionSection(Section):
    """The prediction written after training."""

    cice_history: Text | None = None
    """Data file to predict for after training; null with output_filename set: the training data."""
    output_filename: Text | None = None
    """Output file of the prediction (.nc, .csv, .parquet, .zarr); null with cice_history set: prediction.nc in the run
    folder. Without both, no prediction is written."""


class OutputSection(Section):
    """Files that are written."""

    needs: ClassVar[Needs] = {
        "weights": (
            lambda config: config.output.weights != "best" or config.holds_out,
            "has no effect without held-out samples, which determine the best weights; give data.validation_split",
        )
    }

    model_dir: Text = "mpitrain_run"
    """The run folder."""
    model_file: Text = "model.pt"
    """Path of the exported model in the run folder; its parent folder must exist."""
    progress: Literal["auto", "bar", "lines"] = "auto"
    """`bar` redraws one line, `lines` prints one line per epoch; `auto`: bar in a terminal, otherwise lines."""
    weights: Literal["best", "final"] | None = None
    """Weights to export; null: best in `standard` semantics with validation, otherwise final."""
    hash_data: bool | None = None
    """Write the SHA-256 of the data files to run_record.json; null: only up to 64 GiB of data."""


class TrackingSection(Section):
    """Experiment trackers; each is an optional package. A tracker that fails does not stop a run."""

    needs: ClassVar[Needs] = {
        key: _of_tracker(key.partition("_")[0])
        for key in (
            "wandb_mode", "wandb_project", "wandb_entity", "wandb_name", "wandb_tags", "mlflow_uri",
            "mlflow_experiment",
        )
    }  # fmt: skip

    tensorboard: bool = False
    """Write TensorBoard files to `tracking/tensorboard/` in the run folder (pip install 'mpitrain[tensorboard]')."""
    wandb: bool = False
    """Write a Weights & Biases run (pip install 'mpitrain[wandb]')."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """`offline` writes to `tracking/wandb/` in the run folder, for `wandb sync` later; `online` requires an API key."""
    wandb_project: Text | None = None
    """Project of the run; null: the default of W&B."""
    wandb_entity: Text | None = None
    """User or team that owns the project."""
    wandb_name: Text | None = None
    """Name of the run; null: the name of the run folder."""
    wandb_tags: Names | Text | None = None
    """Tags: a list, or comma-separated text."""
    mlflow: bool = False
    """Log to MLflow (pip install 'mpitrain[mlflow]')."""
    mlflow_uri: Text | None = None
    """Folder or address of the tracking store; null: `tracking/mlruns/` in the run folder."""
    mlflow_experiment: Text = "mpitrain"
    """Experiment of the run."""
    tracker: Annotated[Any, TRACKERS] = None
    """Another tracker: your own as package.module:name, or one of the three by its name."""

    @property
    def is_on(self) -> bool:
        """Whether any tracker is enabled."""
        return self.tracker is not None or any(getattr(self, name) for name in TRACKERS.table)

    @property
    def tags(self) -> list[str]:
        """The tags as a list."""
        given = self.wandb_tags or []
        return [tag.strip() for tag in given.split(",") if tag.strip()] if isinstance(given, str) else list(given)
