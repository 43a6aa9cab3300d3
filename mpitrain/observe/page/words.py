"""Description of a run's settings in sentences: targets, inputs, data, network and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpitrain.config import DataSection, RunConfig

_SPLITS = {
    "auto": "by time or at random",
    "random": "chosen at random",
    "time": "blocks of time",
    "region": "blocks of the grid",
    "group": "whole groups",
}
_MOST_NAMES = 8


def describe_settings(
    config: RunConfig, input_names: Sequence[str], target_names: Sequence[str], values: Mapping[str, Any]
) -> list[str]:
    """Return sentences on data, network and training for the report page.

    Parameters
    ----------
    config : RunConfig
        Settings of the run, with all defaults decided.
    input_names : sequence of str
        Names of the inputs; of more than 8 the first 8 and their number are given.
    target_names : sequence of str
        Names of the targets, as for the inputs.
    values : mapping
        Fields of `RunSummary` by name; the sentences use the numbers of samples, the epochs and the best epoch if
        they are given.

    Returns
    -------
    list of str
        Plain text without HTML, each sentence with a full stop.
    """
    subject = f"{_listed(target_names)} from {_listed(input_names)}, {_data(config.data, config.domain.mask)}"
    parts = (
        subject,
        _samples(config.data, values),
        f"The network is {config.network.describe()}",
        _training(config, values),
    )
    return [f"{part}." for part in parts if part]


def _listed(names: Sequence[str]) -> str:
    if len(names) > _MOST_NAMES:
        return f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _data(data: DataSection, mask_rule: str | None) -> str:
    files = data.entries
    kind = "whole fields" if data.samples == "fields" else "each point a sample"
    origin = f"of {_listed(files)}" if files else "of a synthetic CICE history"
    mask = f", where {mask_rule}" if mask_rule else ""
    return f"{kind}, {origin}{mask}"


def _samples(data: DataSection, values: Mapping[str, Any]) -> str:
    counts = [values.get(name) for name in ("num_training_samples", "num_validation_samples")]
    if counts[0] is None:  # not known when a page is written again later
        return ""
    trained = f"Trained on {counts[0]:,} samples"
    test = f", {values['num_test_samples']:,} kept for a test" if values.get("num_test_samples") else ""
    if not counts[1]:
        return f"{trained}, none held out{test}"
    how = _SPLITS[data.split]
    if data.validation_entries:
        how = f"of {_listed(data.validation_entries)}"
    return f"{trained}; {counts[1]:,} {'was' if counts[1] == 1 else 'were'} held out ({how}){test}"


def _training(config: RunConfig, values: Mapping[str, Any]) -> str:
    training = config.training
    schedule = "" if training.scheduler is None else training.scheduler.describe()
    batch = training.global_batch_size or training.batch_size or 64
    batch = "full" if config.semantics == "reference" else batch
    per = " a rank" if training.batch_size else ""
    batches = "all samples at once" if batch == "full" else f"batches of {batch} samples{per}"
    epochs = values.get("epochs") or training.epochs
    best = values.get("best_epoch")
    origin = "the initial linear regression" if best == 0 else f"epoch {best}"
    is_best = config.exported_weights == "best" and best is not None
    which = f"; the weights are those of {origin}, the best" if is_best else ""
    return (
        f"{training.optimizer.describe()} minimised {training.loss_function.describe()} for {epochs} "
        f"epoch{'s' * (epochs != 1)}, with {batches} and a learning rate of {training.optimizer.learning_rate:g}"
        f"{schedule and f' on {schedule}'}, seed {config.seed}{which}"
    )
