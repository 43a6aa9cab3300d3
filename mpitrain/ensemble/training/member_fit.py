"""The training itself of one member, and what all members of a group use."""

from __future__ import annotations

from dataclasses import dataclass, field

from mpitrain.comm.ranks import Ranks
from mpitrain.config import RunConfig
from mpitrain.ensemble.training.member_data import MemberData
from mpitrain.ensemble.training.member_files import MemberCheckpoints, MemberWatcher, ModelFiles
from mpitrain.errors import StoppedError
from mpitrain.runs.prepared_run import KnownParts, PreparedRun
from mpitrain.runs.watching import closing
from mpitrain.train.checkpoint.store import Checkpoint
from mpitrain.train.jacobian import build_jacobian_watch
from mpitrain.train.run_folder import RunFolder
from mpitrain.train.stop_request import StopRequest
from mpitrain.train.trainer import Trainer


@dataclass
class MemberTools:
    """What all members of one group use, one after the other."""

    group: Ranks
    data: MemberData
    files: ModelFiles
    stop_request: StopRequest
    save_interval_s: float
    known: KnownParts = field(default_factory=KnownParts)


def fit_member(
    prepared: PreparedRun, config: RunConfig, checkpoint: Checkpoint | None, folder: RunFolder, tools: MemberTools
) -> tuple[Trainer, bool]:
    """Train, and return the trainer, and whether the training is finished: else `config` has stopped it. Collective.

    Raises TrainingError or StoppedError, on all ranks of the group.
    """
    group = tools.group
    watch = build_jacobian_watch(config, prepared.model, prepared.preview, group, prepared.layout.virtual_ranks)
    save = MemberCheckpoints(group, folder, prepared.settings, config, tools.save_interval_s)
    with closing(prepared.engine), MemberWatcher(group, folder, config, checkpoint) as watcher:
        trainer = Trainer(config, group, prepared.model, prepared.engine, save, watcher, tools.stop_request, watch)
        if checkpoint is not None:
            trainer.resume(checkpoint)
        try:
            trainer.fit()
        except StoppedError:
            max_steps = config.training.max_steps
            if max_steps is None or trainer.state.global_step < max_steps:
                save.save_skipped()
                raise
            return trainer, False
    return trainer, True
