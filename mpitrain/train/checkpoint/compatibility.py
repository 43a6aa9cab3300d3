"""What a checkpoint and the run that resumes it must have in common."""

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
    OF_BEFORE,
    RULES_KEY,
    TEST_KEY,
    Checkpoint,
)
from mpitrain.train.state import NORMALIZATION_BUFFERS

DEFAULT_GLOBAL_BATCH_SIZE = 64
# In how many streams the samples are read from files; checkpoints of before have as many as virtual ranks.
STREAMS_KEY = "data.streams"
# Whether a step has B samples where V does not divide B; those of before had more.
EXACT_BATCHES_KEY = "training.exact_batches"
# Raised whenever the same settings come to give other bits in `standard`. 2: the arithmetic that follows no CPU.
NUMERICS_VERSION = 2


def global_batch_size(training: TrainingSection, world_size: int) -> int | str:
    """Return B as configured: `global_batch_size`, or `batch_size` * ranks * accumulation steps; "full" for all."""
    if "full" in (training.batch_size, training.global_batch_size):
        return "full"
    if training.batch_size is not None:
        return int(training.batch_size) * world_size * training.gradient_accumulation_steps
    return training.global_batch_size or DEFAULT_GLOBAL_BATCH_SIZE


class ComputingRanks(Protocol):
    """The properties of the ranks on which a result's bits may depend: those of `Ranks`, or of an exported program."""

    @property
    def world_size(self) -> int:
        """How many ranks there are."""

    @property
    def reduction(self) -> str:
        """The order of their sums, "fixed" or "any"."""

    @property
    def num_threads(self) -> int:
        """Number of threads of each rank."""


class NamedColumns(Protocol):
    """The names of the values of a sample."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Those of the inputs."""

    @property
    def target_names(self) -> tuple[str, ...]:
        """Those of the targets."""


def checkpoint_settings(
    config: RunConfig, ranks: ComputingRanks, summary: NamedColumns, num_virtual_ranks: int, batch_size: int | str,
    engine: str, num_streams: int | None = None, *, has_exact_batches: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Return the settings that decide the bits of a result, by their configuration keys.

    The sizes of the model are those of the data in `summary`.
    """
    model = config.network.model_dump(exclude={"initial_weights"})
    model = {key: value for key, value in model.items() if value != {}}  # named code had no options in older ones
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
        "training.area_weighted_loss": config.training.area_weighted_loss or None,  # as in checkpoints before it was
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
# These may differ: a resumed run takes the first two from its checkpoint, and the others are the user's choice.
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
    """Return the settings that may change when a run is resumed, by their keys; each changes the result."""
    optimizer = training.optimizer.model_dump(exclude={"type"})
    schedule = training.scheduler.model_dump() if training.scheduler is not None else {"type": "none"}
    follows_epochs = training.scheduler is not None and training.scheduler.follows_epochs
    return {
        **({"training.epochs": training.epochs} if follows_epochs else {}),
        **{f"training.optimizer.{key}": value for key, value in optimizer.items()},
        **{f"training.scheduler.{key}": value for key, value in schedule.items()},
        **{f"training.{key}": getattr(training, key) for key in _CHANGEABLE},
    }


# Lists that must keep their order. A name may be spelled in several ways: other data is told by its statistics.
_NAMES = ("variables.input_variables", "variables.output_variables")


def check_batches(training: TrainingSection, plan: BatchPlan, batch_size: int | str) -> None:
    """Raise ConfigError for a global batch that is larger than the data, or for one that cannot be accumulated.

    A batch per rank grows with the ranks, so that one larger than the data is only worth a notice.
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
    """Return a notice for each difference that is allowed. Raises CheckpointError for one that is not."""
    for key, here in settings.items():
        there = checkpoint.settings.get(key, OF_BEFORE.get(key))
        is_other_order = there != here and key in _NAMES and there is not None and sorted(there) == sorted(here)
        if key in _NAMES and not is_other_order:
            continue
        if key == BLOCKS_KEY and key not in checkpoint.settings:  # of an earlier version
            continue
        # Without a promise of bits, the number of threads follows the machine.
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
    # A checkpoint of an earlier version does not tell them; a schedule of another type has other settings.
    before = checkpoint.settings.get(_MAY_CHANGE, {})
    as_stored = json.loads(json.dumps(settings))  # a tuple comes back as a list
    changed = [key for key in settings if key in before and as_stored[key] != before[key]]
    if not changed:
        return []
    words = ", ".join(f"{key}={show_value(settings[key])} (was {show_value(before[key])})" for key in changed)
    return [f"{checkpoint.path}: goes on with {words}: the result is that of neither alone"]


def _other_torch(checkpoint: Checkpoint, settings: dict[str, Any]) -> list[str]:
    version = checkpoint.settings.get("torch version")
    if version == settings["torch version"]:
        return []
    return [
        f"{checkpoint.path}: written by torch {version}, this is {settings['torch version']}: "
        f"results may differ in the last bits"
    ]


def _other_numerics(checkpoint: Checkpoint, settings: dict[str, Any]) -> list[str]:
    version = checkpoint.settings.get("numerics", 1)  # the first checkpoints have none
    if settings["semantics"] == "reference" or version == settings["numerics"]:
        return []
    return [
        f"{checkpoint.path}: written by another version of this package's arithmetic ({version}, this is "
        f"{settings['numerics']}): the run goes on to other last bits than it would have reached there"
    ]


def _shown(value: Any) -> str:
    return f"[{','.join(value)}]" if isinstance(value, list) else show_value(value)


def check_same_data(files: Sequence[str], checkpoint: Checkpoint, model: Any) -> None:
    """Raise CheckpointError if the data's statistics are not those that the checkpoint's model was trained with."""
    for name, buffer in model.named_buffers():
        saved = checkpoint.tensors.get(f"model.{name}")
        if name in NORMALIZATION_BUFFERS and (
            saved is None or not np.array_equal(host_array(saved), host_array(buffer))
        ):
            raise CheckpointError(
                f"{checkpoint.path}: was trained on other data than {' '.join(files)} ('{name}' differs); set "
                f"data.data_path to the same files"
            )
