"""A line for each setting that is given and has no effect beside the others: nothing is passed over silently.

What the devices and the network decide, and not the settings alone, is said where they are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

from mpitrain.config.section import Section
from mpitrain.config.yaml import show_value


def unused_settings(config: Section) -> Iterator[str]:
    """Yield a line for each setting that is given and has no effect beside the others."""
    for key, is_used, why in _NEEDS:
        name, section = key.rpartition(".")[2], attrgetter(key.rpartition(".")[0])(config)
        # What stands at its default was hardly meant: a run's own config.yaml has all of them.
        if section is None or getattr(section, name) == type(section).model_fields[name].default:
            continue
        if not is_used(config):
            yield f"{key}={show_value(getattr(section, name))}: {why}"


def _holds_out(config: Any) -> bool:
    return bool(config.validation_split or config.data.validation_path)


def _may_have_batch_norm(config: Any) -> bool:
    return config.model.batch_norm or ":" in (config.model.name or "")


def _has(part: str, *types: str) -> Callable[[Any], bool]:
    return lambda config: getattr(config.training, part).type in types


def _may_stop_early(config: Any) -> bool:
    return config.training.early_stopping_patience is not None or config.training.jacobian_tolerance is not None


def _may_act_early(config: Any) -> bool:
    return _holds_out(config) or config.training.jacobian_tolerance is not None


# Key, whether the other settings let it act, and why it does not where they do not.
_NEEDS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("data.num_workers", lambda config: config.data.streaming,
     "of no effect without data.streaming=true: the samples are held in memory and need no reader"),
    ("data.shuffle_buffer_samples", lambda config: config.data.streaming, "of no effect without data.streaming=true"),
    ("data.num_samples", lambda config: config.data.data_path is None,
     "counts synthetic samples, of no effect with data.data_path; data.max_patterns limits a file's"),
    ("data.area_variable", lambda config: config.data.area_weighted or config.training.area_weighted_loss,
     "of no effect without data.area_weighted=true or training.area_weighted_loss=true"),
    ("data.split", lambda config: config.validation_split and not config.data.validation_path,
     "of no effect, for no part of data.data_path is held out"),
    ("training.min_epochs", _may_stop_early,
     "of no effect, for nothing stops this run early; give training.early_stopping_patience"),
    ("training.early_stopping_patience", _may_act_early,
     "of no effect, for nothing is held out that could stop getting better; give data.validation_split"),
    ("training.amp_dtype", lambda config: config.training.use_amp, "of no effect without training.use_amp=true"),
    ("training.learning_rate_scaling_by", lambda config: config.training.learning_rate_scaling != "none",
     "of no effect without training.learning_rate_scaling"),
    ("training.jacobian_freq", lambda config: config.training.follows_jacobian,
     "of no effect without training.track_jacobian=true"),
    ("training.optimizer.momentum", _has("optimizer", "sgd"), "of no effect, training.optimizer.type is not sgd"),
    ("training.optimizer.beta1", _has("optimizer", "adam", "adamw"), "of no effect, training.optimizer.type is sgd"),
    ("training.optimizer.beta2", _has("optimizer", "adam", "adamw"), "of no effect, training.optimizer.type is sgd"),
    ("training.optimizer.epsilon", _has("optimizer", "adam", "adamw"), "of no effect, training.optimizer.type is sgd"),
    ("training.scheduler.step_size", _has("scheduler", "step"), "of no effect, training.scheduler.type is not step"),
    ("training.scheduler.gamma", _has("scheduler", "step", "plateau"),
     "of no effect, training.scheduler.type is neither step nor plateau"),
    ("training.scheduler.patience", _has("scheduler", "plateau"),
     "of no effect, training.scheduler.type is not plateau"),
    ("training.scheduler.min_learning_rate", _has("scheduler", "cosine", "plateau"),
     "of no effect, training.scheduler.type is neither cosine nor plateau"),
    ("distributed.sync_batch_norm", _may_have_batch_norm,
     "of no effect, for the network has no batch norm (model.batch_norm)"),
    ("output.weights", lambda config: config.output.weights != "best" or _holds_out(config),
     "of no effect, for nothing is held out to tell which are best; give data.validation_split"),
    *((f"tracking.wandb_{name}", lambda config: config.tracking.wandb, "of no effect without tracking.wandb=true")
      for name in ("mode", "project", "entity", "name", "tags")),
    *((f"tracking.mlflow_{name}", lambda config: config.tracking.mlflow, "of no effect without tracking.mlflow=true")
      for name in ("uri", "experiment")),
)  # fmt: skip
