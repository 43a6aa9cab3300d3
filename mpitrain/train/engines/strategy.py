"""What `distributed.strategy` asks of the launch, and the switches of torch that a run sets for its whole process."""

from __future__ import annotations

import torch

from mpitrain.config import DistributedSection, RunConfig, TrainingSection
from mpitrain.config.yaml import show_value
from mpitrain.errors import LaunchError

_OF_DDP_ONLY = (
    "find_unused_parameters", "gradient_as_bucket_view", "broadcast_buffers", "bucket_cap_mb", "static_graph",
)  # fmt: skip


def check_strategy(config: RunConfig, world_size: int) -> None:
    """Raise LaunchError where `single` or `dp`, which are one process each, meet several ranks."""
    strategy = config.distributed.strategy
    if strategy in ("single", "dp") and world_size > 1:
        raise LaunchError(
            f"distributed.strategy={strategy}: is one process, this run has {world_size} ranks; start one, or give "
            "distributed.strategy=auto"
        )


def strategy_notices(config: RunConfig, engine: str) -> list[str]:
    """Return a line for each option of DistributedDataParallel that is set in a run without it."""
    defaults = DistributedSection()
    if engine == "ddp":
        return []
    return [
        f"distributed.{key}={show_value(getattr(config.distributed, key))}: an option of DistributedDataParallel, of "
        "no effect without distributed.strategy=ddp"
        for key in _OF_DDP_ONLY
        if getattr(config.distributed, key) != getattr(defaults, key)
    ]


def set_switches(training: TrainingSection) -> None:
    """Set what is torch's own, for the whole process: deterministic algorithms, TensorFloat32 products."""
    # Asking for what is so already would load torch's compiler: a second or two on each rank.
    if torch.are_deterministic_algorithms_enabled() != training.deterministic:
        torch.use_deterministic_algorithms(training.deterministic)
    torch.backends.cuda.matmul.allow_tf32 = training.allow_tf32
    torch.backends.cudnn.allow_tf32 = training.allow_tf32
