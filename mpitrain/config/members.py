"""What no member of an ensemble can be asked for."""

from __future__ import annotations

from mpitrain.config.run import RunConfig
from mpitrain.errors import ConfigError


def check_members(config: RunConfig) -> None:
    """Raise ConfigError for settings whose results depend on how many ranks a member has, or that no member obeys."""
    if config.semantics == "reference":
        raise ConfigError(
            "semantics=reference: its results depend on the number of ranks, which an ensemble chooses itself; give "
            "semantics: standard, or train the members one by one"
        )
    training = config.training
    if training.batch_size not in (None, "full"):
        raise ConfigError(
            f"training.batch_size={training.batch_size}: is per rank, and an ensemble chooses the ranks of its "
            "members; give training.global_batch_size"
        )
    if training.learning_rate_scaling != "none" and training.learning_rate_scaling_by == "world_size":
        raise ConfigError(
            "training.learning_rate_scaling_by=world_size: an ensemble chooses its members' ranks; give batch_size"
        )
    if training.max_steps is not None:
        raise ConfigError(f"training.max_steps={training.max_steps}: members train to their end; give training.epochs")
    if config.ensemble is not None and config.ensemble.folds and config.data.validation_split is not None:
        raise ConfigError(
            f"data.validation_split={config.data.validation_split}: not together with ensemble.folds; keep one of them"
        )
