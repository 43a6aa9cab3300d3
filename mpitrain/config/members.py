"""Check for settings that members of an ensemble cannot have."""

from __future__ import annotations

from mpitrain.config.run import RunConfig
from mpitrain.errors import ConfigError


def check_members(config: RunConfig) -> None:
    """Raise ConfigError for settings that depend on the number of ranks, or that members do not support."""
    if config.semantics == "reference":
        raise ConfigError(
            "semantics=reference: the results depend on the number of ranks, which the ensemble chooses; give "
            "semantics: standard, or train the members one by one"
        )
    training = config.training
    if training.batch_size not in (None, "full"):
        raise ConfigError(
            f"training.batch_size={training.batch_size}: is per rank, and the ensemble chooses the number of ranks of "
            "a member; give training.global_batch_size"
        )
    if training.learning_rate_scaling != "none" and training.learning_rate_scaling_by == "world_size":
        raise ConfigError(
            "training.learning_rate_scaling_by=world_size: the ensemble chooses the number of ranks of a member; give "
            "batch_size"
        )
    if training.max_steps is not None:
        raise ConfigError(
            f"training.max_steps={training.max_steps}: not available for members of an ensemble; give training.epochs"
        )
    if config.ensemble is not None and config.ensemble.folds and config.data.validation_split is not None:
        raise ConfigError(
            f"data.validation_split={config.data.validation_split}: not together with ensemble.folds; keep one of them"
        )
