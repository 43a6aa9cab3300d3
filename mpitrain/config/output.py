"""The sections `prediction`, `output` and `tracking`: what is written, and where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

from mpitrain.config.component import Room
from mpitrain.config.section import Names, Needs, Section, Text

TRACKERS = Room("tracking.tracker", "mpitrain.observe.trackers", is_name=True)


def _of_tracker(name: str) -> tuple[Callable[[Any], Any], str]:
    is_on = lambda config: getattr(config.tracking, name) or getattr(config.tracking.tracker, "name", "") == name  # noqa: E731
    return is_on, f"of no effect without tracking.{name}=true"


class PredictionSection(Section):
    """The prediction written after training."""

    cice_history: Text | None = None
    """Data file to predict for after the training; null, with output_filename set, means the training's own."""
    output_filename: Text | None = None
    """File that the prediction is written to (.nc, .csv, .parquet, .zarr); null, with cice_history set, means
    prediction.nc in the run folder."""


class OutputSection(Section):
    """What is written, and where."""

    needs: ClassVar[Needs] = {
        "weights": (
            lambda config: config.output.weights != "best" or config.holds_out,
            "of no effect, for nothing is held out to tell which are best; give data.validation_split",
        )
    }

    model_dir: Text = "mpitrain_run"
    """The run folder."""
    model_file: Text = "model.pt"
    """Name of the exported model in the run folder; a folder named before it must be there."""
    progress: Literal["auto", "bar", "lines"] = "auto"
    """`bar` redraws one line, `lines` prints one an epoch; `auto` looks at the terminal."""
    weights: Literal["best", "final"] | None = None
    """Which weights are exported; null means best in `standard` with validation, else final."""
    hash_data: bool | None = None
    """Keep the SHA-256 of the data files in run_record.json; null does so up to 64 GiB."""


class TrackingSection(Section):
    """Experiment trackers; each is an extra to install, and one that fails never stops a run."""

    needs: ClassVar[Needs] = {
        key: _of_tracker(key.partition("_")[0])
        for key in (
            "wandb_mode", "wandb_project", "wandb_entity", "wandb_name", "wandb_tags", "mlflow_uri",
            "mlflow_experiment",
        )
    }  # fmt: skip

    tensorboard: bool = False
    """Write TensorBoard files into `tracking/tensorboard/` of the run folder (pip install 'mpitrain[tensorboard]')."""
    wandb: bool = False
    """Write a Weights & Biases run (pip install 'mpitrain[wandb]')."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """`offline` writes into `tracking/wandb/` of the run folder, for `wandb sync` later; `online` needs a key."""
    wandb_project: Text | None = None
    """Project that the run belongs to; null leaves it to W&B."""
    wandb_entity: Text | None = None
    """User or team that the project belongs to."""
    wandb_name: Text | None = None
    """Name of the run; null means the run folder's."""
    wandb_tags: Names | Text | None = None
    """Tags: a list, or text with commas between them."""
    mlflow: bool = False
    """Log to MLflow (pip install 'mpitrain[mlflow]')."""
    mlflow_uri: Text | None = None
    """Folder or address of the tracking store; null means `tracking/mlruns/` of the run folder."""
    mlflow_experiment: Text = "mpitrain"
    """Experiment that the run belongs to."""
    tracker: Annotated[Any, TRACKERS] = None
    """Another tracker: your own as package.module:name, or one of the three by its name."""

    @property
    def is_on(self) -> bool:
        """Whether any tracker is asked for."""
        return self.tracker is not None or any(getattr(self, name) for name in TRACKERS.table)

    @property
    def tags(self) -> list[str]:
        """The tags as a list."""
        given = self.wandb_tags or []
        return [tag.strip() for tag in given.split(",") if tag.strip()] if isinstance(given, str) else list(given)
