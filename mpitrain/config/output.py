"""The sections `prediction` and `output`: what is written, and where."""

from __future__ import annotations

from typing import Literal

from mpitrain.config.section import Section, Text


class PredictionSection(Section):
    """The prediction written after training."""

    cice_history: Text | None = None
    """Data file to predict for after the training; null, with output_filename set, means the training's own."""
    output_filename: Text | None = None
    """NetCDF file that the prediction is written to; null, with cice_history set, means prediction.nc in the run
    folder."""


class OutputSection(Section):
    """What is written, and where."""

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
