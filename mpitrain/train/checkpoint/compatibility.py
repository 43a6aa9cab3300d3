"""The settings and data that a checkpoint and the run that resumes it must have in common."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from mpitrain.comm import host_array
from mpitrain.config import NEWEST_RULES, RunConfig, TrainingSection, show_value
from mpitrain.config.training import LOSSES
from mpitrain.data import BatchPlan
from mpitrain.errors import CheckpointError, ConfigError, installed_version
from mpitrain.train.checkpoint.store import (
    AVERAGE_KEY,
    BLOCKS_KEY,
    GROUP_KEY,
    OLD_DEFAULTS,
    RULES_KEY,
    TEST_KEY,
    Checkpoint,
)
from mpitrain.train.state import NORMALIZATION_BUFFERS

DEFAULT_GLOBAL_BATCH_SIZE = 64
# The number of streams in which samples are read from files; earlier versions had one for each virtual rank.
STREAMS_KEY = "data.streams"
# Whether a step has exactly B samples also if V does not divide B; in earlier versions it had more.
EXACT_BATCHES_KEY = "training.exact_batches"
# Increased when the same settings give other bits in `standard` than before. 2: arithmetic independent of the CPU.
NUMERICS_VERSION = 2


def global_batch_size(training: TrainingSection, world_size: int) -> int | str:
    """Return the configured B: `global_batch_size`, or `batch_size` * ranks * accumulation steps; "full" for all."""
    if "full" in (training.batch_size, training.global_batch_size):
        return "full"
    if training.batch_size is not None:
        return int(training.batch_size) * world_size * training.gradient_accumulation_steps
    return training.global_batch_size or DEFAULT_GLOBAL_BATCH_SIZE


class ComputingRanks(Protocol):
    """The properties of ranks on which a result's bits may depend; `Ranks` and exported programs have them."""

    @property
    def world_size(self) -> int:
        """The number of ranks."""

    @property
    def reduction(self) -> str:
        """The order of sums over the ranks, "fixed" or "any"."""

    @property
    def num_threads(self) -> int:
        """The number of threads of each rank."""


class NamedColumns(Protocol):
    """The names of the values of a sample."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """The names of the inputs."""

    @property
    def target_names(self) -> tuple[str, ...]:
        """The names of the targets."""


def checkpoint_settings(
    config: RunConfig, ranks: ComputingRanks, summary: NamedColumns, num_virtual_ranks: int, batch_size: int | str,
    engine: str, num_streams: int | None = None, *, has_exact_batches: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return the settings on which the bits of a result depend, by their configuration keys.

    The input and output sizes of the model come from `summary`.
    """
    model = config.network.model_dump(exclude={"initial_weights"})
    model = {key: value for key, value in model.items() if value != {}}  # earlier versions had no options of named code
    model |= {"input_size": len(summary.input_names), "output_size": len(summary.target_names)}
    settings: dict[str, Any] = {
        "semantics": config.semantics,
        "seed": config.seed,
        **{f"model.{key}": value for key, value in model.items()},
        "variables.input_variables": list(summary.input_names),
        "variables.output_variables": list(summary.target_names),
        "data.validation_split": config.validation_split,
        "data.split": config.data.split,
        BLOCKS_KEY: config.data.split_blocks,
        GROUP_KEY: config.data.group,
        TEST_KEY: config.data.test_split or 0.0,
        RULES_KEY: config.data.rules or NEWEST_RULES,
        "data.split_seed": config.data.split_seed,
        "data.folds": config.data.folds,
        "data.fold": config.data.fold,
        "data.streaming": config.data.streaming,
        "training.dtype": config.training.dtype,
        "training.optimizer.type": config.training.optimizer.name,
        "training.loss_function": LOSSES.dump(config.training.loss_function),
        "training.loss_weights": config.training.loss_weights,
        "training.area_weighted_loss": config.training.area_weighted_loss or None,  # earlier versions lack it
        AVERAGE_KEY: average.model_dump() if (average := config.training.average) is not None else None,
        "training.use_amp": config.training.use_amp,
        "training.amp_dtype": config.training.amp_dtype,
        "distributed.sync_batch_norm": config.distributed.sync_batch_norm,
        "training.engine": engine,
        "training.reduction": ranks.reduction,
        "training.shuffle": config.shuffle,
        "training.threads_per_rank": ranks.num_threads,
        "training.virtual_ranks": num_virtual_ranks,
        "training.global_batch_size": batch_size,
        "torch version": installed_version("torch"),
        "numerics": NUMERICS_VERSION,
        _MAY_CHANGE: _settings_that_may_change(config.training),
    }
    if config.data.streaming:
        settings["data.shuffle_buffer_samples"] = config.data.shuffle_buffer_samples
        settings[STREAMS_KEY] = num_streams
    if has_exact_batches:
        settings[EXACT_BATCHES_KEY] = True
    if config.semantics == "reference":
        settings["number of ranks"] = ranks.world_size
    return settings


_MAY_CHANGE = "may change"
# These may differ: a resumed run takes its layout of batches from the checkpoint, and the others are the user's choice.
_NOT_COMPARED = (
    "training.virtual_ranks",
    STREAMS_KEY,
    EXACT_BATCHES_KEY,
    "training.global_batch_size",
    "torch version",
    "numerics",
    _MAY_CHANGE,
)
_CHANGEABLE = (
    "early_stopping_patience", "min_epochs", "gradient_accumulation_steps", "gradient_clip_norm",
    "learning_rate_scaling", "learning_rate_scaling_by", "torch_compile", "deterministic",
)  # fmt: skip


def _settings_that_may_change(training: TrainingSection) -> dict[str, Any]:
    """Return the settings that may be changed when a run is resumed, by their keys; each of them affects the result."""
    optimizer = training.optimizer.model_dump(exclude={"type"})
    schedule = training.scheduler.model_dump() if training.scheduler is not None else {"type": "none"}
    follows_epochs = training.scheduler is not None and training.scheduler.follows_epochs
    return {
        **({"training.epochs": training.epochs} if follows_epochs else {}),
        **{f"training.optimizer.{key}": value for key, value in optimizer.items()},
        **{f"training.scheduler.{key}": value for key, value in schedule.items()},
        **{f"training.{key}": getattr(training, key) for key in _CHANGEABLE},
    }


# Lists in which only the order is compared. A variable may have several names: `check_same_data` compares the data.
_NAMES = ("variables.input_variables", "variables.output_variables")


def check_batches(training: TrainingSection, plan: BatchPlan, batch_size: int | str) -> None:
    """Raise ConfigError if the global batch is larger than the data, or if its microbatches cannot be accumulated.

    With `training.batch_size`, a batch per rank, the global batch grows with the number of ranks: a global batch larger
    than the data is then no error, but gives a notice.
    """
    is_asked = training.global_batch_size is not None and batch_size != "full"
    if is_asked and int(batch_size) > plan.num_samples:
        raise ConfigError(
            f"global batch size {batch_size}: there are only {plan.num_samples} training samples; "
            "give at most that many, or training.global_batch_size=full"
        )
    if plan.microbatch_rows % training.gradient_accumulation_steps != 0:
        raise ConfigError(
            f"training.gradient_accumulation_steps={training.gradient_accumulation_steps}: does not divide the "
            f"{plan.microbatch_rows} rows of a microbatch (global batch {plan.global_batch_size} in "
            f"{plan.num_virtual_ranks} microbatches); give a divisor of {plan.microbatch_rows}"
        )


def check_fits(checkpoint: Checkpoint, settings: dict[str, Any]) -> list[str]:
    """Return a notice for each allowed difference of settings. Raises CheckpointError if any other setting differs."""
    for key, here in settings.items():
        there = checkpoint.settings.get(key, OLD_DEFAULTS.get(key))
        is_other_order = there != here and key in _NAMES and there is not None and sorted(there) == sorted(here)
        if key in _NAMES and not is_other_order:
            continue
        if key == BLOCKS_KEY and key not in checkpoint.settings:  # written by an earlier version
            continue
        # With reduction "any" no bits are guaranteed, and the number of threads depends on the machine.
        are_threads = key == "training.threads_per_rank" and settings["training.reduction"] == "any"
        if there != here and key not in _NOT_COMPARED and not are_threads:
            raise CheckpointError(
                f"{checkpoint.path}: written with {key}={_shown(there)}, this run has {_shown(here)}; resume with "
                f"{key}={_shown(there)}, or start a new run"
            )
    return [
        *_changes(checkpoint, settings[_MAY_CHANGE]),
        *_other_torch(checkpoint, settings),
        *_other_numerics(checkpoint, settings),
    ]


def _changes(checkpoint: Checkpoint, settings: dict[str, Any]) -> list[str]:
    # Checkpoints of earlier versions do not contain them; a schedule of another type has other settings.
    before = checkpoint.settings.get(_MAY_CHANGE, {})
    as_stored = json.loads(json.dumps(settings))  # tuples become lists
    changed = [key for key in settings if key in before and as_stored[key] != before[key]]
    if not changed:
        return []
    changes = ", ".join(
        f"{key} changed from {show_value(before[key])} to {show_value(settings[key])}" for key in changed
    )
    return [
        f"{checkpoint.path}: {changes}: the result will be neither that of the old settings nor that of the new ones"
    ]


def _other_torch(checkpoint: Checkpoint, settings: dict[str, Any]) -> list[str]:
    version = checkpoint.settings.get("torch version")
    if version == settings["torch version"]:
        return []
    return [
        f"{checkpoint.path}: written by torch {version}, this run uses {settings['torch version']}: "
        f"results may differ in the last bits"
    ]


def _other_numerics(checkpoint: Checkpoint, settings: dict[str, Any]) -> list[str]:
    version = checkpoint.settings.get("numerics", 1)  # the first checkpoints have none
    if settings["semantics"] == "reference" or version == settings["numerics"]:
        return []
    return [
        f"{checkpoint.path}: written with version {version} of this package's arithmetic, this run uses version "
        f"{settings['numerics']}: results may differ in the last bits"
    ]


def _shown(value: Any) -> str:
    return f"[{','.join(value)}]" if isinstance(value, list) else show_value(value)


def check_same_data(files: Sequence[str], checkpoint: Checkpoint, model: Any) -> None:
    """Raise CheckpointError if the statistics of the data differ from those that the checkpoint's model has."""
    for name, buffer in model.named_buffers():
        saved = checkpoint.tensors.get(f"model.{name}")
        if name in NORMALIZATION_BUFFERS and (
            saved is None or not np.array_equal(host_array(saved), host_array(buffer))
        ):
            raise CheckpointError(
                f"{checkpoint.path}: was trained on other data than {' '.join(files)} ('{name}' differs); set "
                f"data.data_path to the same files"
            )
