"""How a run is laid out: virtual ranks and the size of a batch, kept by a resumed run.

V  virtual ranks      P  real ranks
"""

from __future__ import annotations

from dataclasses import dataclass

from mpitrain.comm.ranks import Ranks
from mpitrain.comm.virtual_ranks import VirtualRanks, plan_virtual_ranks
from mpitrain.config import RunConfig
from mpitrain.errors import CheckpointError
from mpitrain.train.checkpoint.compatibility import global_batch_size
from mpitrain.train.checkpoint.store import Checkpoint
from mpitrain.train.choose_engine import check_strategy


@dataclass(frozen=True)
class RunLayout:
    """Who computes what: the same on all ranks, but for `virtual_ranks.rank`.

    `global_batch_size` is B or "full". In `reference` there are no virtual ranks: each real rank stands for one.
    """

    virtual_ranks: VirtualRanks
    global_batch_size: int | str
    notices: tuple[str, ...] = ()


def plan_layout(config: RunConfig, ranks: Ranks, checkpoint: Checkpoint | None) -> RunLayout:
    """Return the layout of a new run, or of the run that `checkpoint` belongs to. Collective.

    Raises LaunchError or CheckpointError, on all ranks, where so many ranks cannot take part.
    """
    world_size, rank = ranks.world_size, ranks.rank
    if config.semantics == "reference":
        return RunLayout(VirtualRanks(world_size, world_size, rank), "full")
    ranks.on_all_ranks(lambda: check_strategy(config, world_size))
    requested = ranks.on_all_ranks(lambda: _virtual_ranks(config, world_size, checkpoint))
    virtual_ranks, notices = plan_virtual_ranks(requested, world_size, rank)
    batch_size = (
        checkpoint.settings["training.global_batch_size"] if checkpoint else global_batch_size(config, world_size)
    )
    return RunLayout(virtual_ranks, batch_size, tuple(notices))


def _virtual_ranks(config: RunConfig, world_size: int, checkpoint: Checkpoint | None) -> int:
    if checkpoint is None:
        return config.training.virtual_ranks
    if checkpoint.settings["semantics"] == "reference":
        raise CheckpointError(
            f"{checkpoint.path}: written with semantics=reference, this run has standard; resume with "
            f"semantics=reference"
        )
    requested = int(checkpoint.settings["training.virtual_ranks"])
    if world_size > requested:
        raise CheckpointError(
            f"{checkpoint.path}: has {requested} virtual ranks, too few for {world_size} ranks; resume "
            f"on at most {requested}"
        )
    return requested
