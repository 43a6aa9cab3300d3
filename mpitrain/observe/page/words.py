"""The settings of a run as a reader would say them: what was learnt from what, by which network, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mpitrain.config import RunConfig

_LOSSES = {"mse": "the mean squared error", "mae": "the mean absolute error", "huber": "Huber's loss"}
_OPTIMIZERS = {"adam": "Adam", "adamw": "AdamW", "sgd": "Stochastic gradient descent"}
_SPLITS = {"random": "chosen at random", "time": "blocks of time", "region": "blocks of the grid"}
_NETWORKS = {
    "mlp": "a network of dense layers (mlp)",
    "cnn": "a convolutional network (cnn)",
    "unet": "a U-Net (unet)",
    "icenet": "an IceNet",
}
_MOST_NAMES = 8


def describe_settings(
    config: RunConfig, input_names: Sequence[str], target_names: Sequence[str], values: Mapping[str, Any]
) -> list[str]:
    """Return sentences on data, network and training; `values` are those of the run's summary."""
    what = f"{_listed(target_names)} from {_listed(input_names)}, {_data(config)}"
    parts = (what, _samples(config, values), _network(config), _training(config, values))
    return [f"{part}." for part in parts if part]


def _listed(names: Sequence[str]) -> str:
    if len(names) > _MOST_NAMES:
        return f"{', '.join(names[:_MOST_NAMES])} and {len(names) - _MOST_NAMES} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def _data(config: RunConfig) -> str:
    files = config.data.entries
    what = "whole fields" if config.data.samples == "fields" else "every point a sample"
    where = f"of {_listed(files)}" if files else "of a CICE history that was made up"
    mask = f", where {config.domain.mask}" if config.domain.mask else ""
    return f"{what}, {where}{mask}"


def _samples(config: RunConfig, values: Mapping[str, Any]) -> str:
    counts = [values.get(name) for name in ("num_training_samples", "num_validation_samples")]
    if counts[0] is None:  # as of a page that is made anew
        return ""
    trained = f"Trained on {counts[0]:,} samples"
    if not counts[1]:
        return f"{trained}, none held out"
    how = _SPLITS[config.data.split]
    if config.data.validation_entries:
        how = f"of {_listed(config.data.validation_entries)}"
    return f"{trained}; {counts[1]:,} {'was' if counts[1] == 1 else 'were'} held out ({how})"


def _network(config: RunConfig) -> str:
    model = config.network
    name = str(model.name)
    if ":" in name:
        return f"The network is your own, {name}"
    layers = "" if name == "icenet" else f" of {model.hidden_layers} hidden layer{'s' * (model.hidden_layers > 1)}"
    unit = "channels" if name in ("cnn", "unet") else "units"
    activation = f", activation {model.hidden_activation}" if model.hidden_activation else ""
    extras = [f"dropout {model.dropout:g}"] if model.dropout else []
    extras += ["batch norm"] if model.batch_norm else ["layer norm"] if model.layer_norm else []
    extras += ["residual connections"] if model.residual else []
    more = f", with {' and '.join(extras)}" if extras else ""
    return f"The network is {_NETWORKS[name]}{layers} with {model.hidden_size} {unit}{activation}{more}"


def _training(config: RunConfig, values: Mapping[str, Any]) -> str:
    training = config.training
    schedule = "" if training.scheduler is None or training.scheduler.type == "none" else (
        f" on a {training.scheduler.type} schedule"
    )  # fmt: skip
    batch = training.global_batch_size or training.batch_size or 64
    batch = "full" if config.semantics == "reference" else batch
    per = " a rank" if training.batch_size else ""
    batches = "all samples at once" if batch == "full" else f"batches of {batch} samples{per}"
    epochs = values.get("epochs") or training.epochs
    best = values.get("best_epoch")
    which = f"; the weights are those of epoch {best}, the best" if config.exported_weights == "best" and best else ""
    return (
        f"{_OPTIMIZERS[training.optimizer.type]} minimised {_LOSSES[training.loss_function]} for {epochs} "
        f"epoch{'s' * (epochs != 1)}, with {batches} and a learning rate of {training.optimizer.learning_rate:g}"
        f"{schedule}, seed {config.seed}{which}"
    )
