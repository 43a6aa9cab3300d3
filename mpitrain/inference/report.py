"""`mpitrain report`: write a run's report page from its folder, also while it trains or after it was killed.

N  points
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from mpitrain.errors import CheckpointError, OutputError, UserError
from mpitrain.inference.ensemble import is_ensemble
from mpitrain.inference.page.findings import findings_of
from mpitrain.inference.predictor import open_data
from mpitrain.inference.run_weights import load_run, load_weights
from mpitrain.observe import describe_settings, read_metrics
from mpitrain.observe.report import write_report
from mpitrain.train import RunFolder, named_weights, trusts_code_of, weights_sha256


def report(folder: Path, trust_code: bool = False) -> Path:
    """Write `report.html` from a run's metrics, settings, checkpoint and data, as far as they exist; return its path.

    `trust_code`: allow building a network of the user's own code. Raises UserError if `folder` is not a run folder or
    the network's code is not trusted, OutputError if there are no metrics yet or the page cannot be written.
    """
    if is_ensemble(folder):
        raise UserError(
            f"{folder}: holds an ensemble; run `mpitrain ensemble --resume --output {folder}` to rewrite its page, "
            "or give the folder of a member"
        )
    trust_code = trusts_code_of(folder, trust_code)
    run, config = load_run(folder, trust_code)
    records = [record for record in read_metrics(run.metrics) if "test_loss" not in record]
    if not records:
        raise OutputError(f"{run.metrics}: holds no finished epoch yet; wait for the first")
    values = _summary(run, config.semantics, config.exported_weights == "best", records)
    try:
        weights = load_weights(run, config.network, config.exported_weights, trust_code=trust_code)
    except CheckpointError:  # too early for a plot of predictions
        return write_report(folder, values)
    values |= {"weights": weights.origin, "weights_sha256": weights_sha256(named_weights(weights.model))}
    if weights.best_epoch == 0:  # the metrics have no record of epoch 0
        values |= {"best_epoch": 0}
        values |= {"validation_loss": weights.best_loss} if config.exported_weights == "best" else {}
    source = open_data(config, run.data_files(config.data.entries))
    if source is None:
        return write_report(folder, values)
    descriptions = describe_settings(config, source.input_names, source.target_names, values)
    return write_report(folder, values, replace(findings_of(weights.model, source), settings=descriptions))


def _summary(run: RunFolder, semantics: str, is_best: bool, records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the values of `RunSummary` that the records of the epochs contain, by name.

    `is_best`: the run exports the best weights, not those of the last epoch.
    """
    last = records[-1]
    losses = [(record["validation_loss"], record["epoch"]) for record in records if record.get("validation_loss")]
    best, best_epoch = min(losses, default=(None, None))
    return {
        "run_folder": str(run.path),
        "semantics": semantics,
        "epochs": last.get("epoch"),
        "steps": last.get("step"),
        "wall_time_s": sum(record.get("wall_time_s") or 0.0 for record in records),
        "train_loss": last.get("train_loss"),
        "validation_loss": best if is_best else last.get("validation_loss"),
        "best_epoch": best_epoch,
    }
