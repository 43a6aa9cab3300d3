"""`mpitrain report`: a run's page made anew from what lies in its folder, also of a run that goes on or was killed.

N  points
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from mpitrain.config import RunConfig
from mpitrain.data.samples import valid_rows
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import CheckpointError, DataError, OutputError
from mpitrain.inference.arithmetic import evaluate
from mpitrain.inference.run_weights import load_run, load_weights, open_run_data
from mpitrain.observe.metrics_file import read_metrics
from mpitrain.observe.report import write_report
from mpitrain.train.checkpoint.format import weights_sha256
from mpitrain.train.run_folder import RunFolder
from mpitrain.train.state import named_weights

_MOST_POINTS = 5000
Points = npt.NDArray[np.float64]


def report(folder: Path, trust_code: bool = False) -> Path:
    """Write `report.html` from a run's metrics, settings, checkpoint and data, as far as they are there; return it.

    `trust_code`: build a network of the user's own code. Raises UserError where there is no run or such a
    network is not trusted, OutputError where it has no metrics yet or the page cannot be written.
    """
    run, config = load_run(folder, trust_code)
    records = [record for record in read_metrics(run.metrics) if "test_loss" not in record]
    if not records:
        raise OutputError(f"{run.metrics}: holds no finished epoch yet; wait for the first")
    values = _summary(run, config, records)
    try:
        weights = load_weights(run, config, None, None)
    except CheckpointError:  # too early for a plot of predictions
        return write_report(folder, values)
    values |= {"weights": weights.origin, "weights_sha256": weights_sha256(named_weights(weights.model))}
    source = open_run_data(run, config)
    truth, prediction = _points(weights.model, source) if source is not None else (None, None)
    return write_report(folder, values, truth=truth, prediction=prediction)


def _summary(run: RunFolder, config: RunConfig, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what the records of the epochs tell, under the names of a run's own summary."""
    last = records[-1]
    losses = [(record["validation_loss"], record["epoch"]) for record in records if record.get("validation_loss")]
    best, best_epoch = min(losses, default=(None, None))
    is_best = config.exported_weights == "best"
    return {
        "run_folder": str(run.path),
        "semantics": config.semantics,
        "epochs": last.get("epoch"),
        "steps": last.get("step"),
        "wall_time_s": sum(record.get("wall_time_s") or 0.0 for record in records),
        "train_loss": last.get("train_loss"),
        "validation_loss": best if is_best else last.get("validation_loss"),
        "best_epoch": best_epoch,
    }


def _points(model: nn.Module, source: SampleSource) -> tuple[Points | None, Points | None]:
    """Return targets and predictions (N,) of the first target at the first points of the data."""
    truth: list[Points] = []
    prediction: list[Points] = []
    try:
        for chunk in source.chunks:
            samples = source.read(chunk)
            samples = samples.take(np.flatnonzero(valid_rows(samples)))
            inputs = torch.from_numpy(samples.inputs).to(model.get_buffer("input_mean").dtype)
            mean = model.get_buffer("input_mean").view(-1, *[1] * (inputs.dim() - 2))
            if len(samples):
                (outputs,) = evaluate(model, torch.where(torch.isfinite(inputs), inputs, mean), with_jacobian=False)
                counted = np.isfinite(samples.targets[:, 0])
                truth.append(samples.targets[:, 0][counted].astype(np.float64))
                prediction.append(outputs[:, 0].double().numpy()[counted])
            if sum(map(len, truth)) >= _MOST_POINTS:
                break
    except DataError:  # the data has changed since: the page does without
        return None, None
    finally:
        source.close()
    if not truth:
        return None, None
    pair = np.concatenate(truth), np.concatenate(prediction)
    chosen = np.linspace(0, len(pair[0]) - 1, min(len(pair[0]), _MOST_POINTS)).astype(np.int64)
    return pair[0][chosen], pair[1][chosen]
