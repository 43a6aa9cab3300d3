"""The training of one member, and the objects that all members of a group use."""

from __future__ import annotations

from dataclasses import dataclass, field

from mpitrain.comm import Ranks
from mpitrain.ensemble.training.member_data import MemberData
from mpitrain.ensemble.training.member_files import MemberCheckpoints, MemberWatcher, ModelFiles
from mpitrain.ensemble.training.member_records import MemberRecords
from mpitrain.errors import StoppedError
from mpitrain.runs.parts import Caches
from mpitrain.runs.prepared_run import PreparedRun
from mpitrain.runs.watching import jacobian_callbacks
from mpitrain.train import Checkpoint, ClaimedFolder, RunFolder, StopRequest, Trainer
from mpitrain.train.engines.contract import closing


@dataclass
class MemberTools:
    """Objects that the members of one group use, one after the other."""

    group: Ranks
    data: MemberData
    records: MemberRecords
    stop_request: StopRequest
    save_interval_s: float
    claim: ClaimedFolder
    """The claim of this launch on the ensemble's folder."""
    files: ModelFiles = field(default_factory=ModelFiles)
    caches: Caches = field(default_factory=Caches)
    ended: PreparedRun | None = None
    """The last member, if it ended without an error: its network and engine can be reused."""


def fit_member(
    prepared: PreparedRun, checkpoint: Checkpoint | None, folder: RunFolder, tools: MemberTools
) -> Trainer:  # fmt: skip
    """Train, and return the trainer. Collective. Raises TrainingError or StoppedError on all ranks of the group."""
    group, training = tools.group, prepared.config.training
    of_jacobian = jacobian_callbacks(prepared, group)
    save = MemberCheckpoints(group, folder, prepared.settings, training, tools.save_interval_s, tools.claim)
    with closing(prepared.engine), MemberWatcher(group, folder, training, checkpoint) as watcher:
        callbacks = [*of_jacobian, watcher, save]
        of_run = training, group, prepared.model, prepared.engine, callbacks, tools.stop_request
        trainer = Trainer(*of_run, validates_first_weights=prepared.config.network.starts_from_regression)
        if checkpoint is not None:
            trainer.resume(checkpoint)
        try:
            trainer.fit()
        except StoppedError:
            save.save_skipped()
            raise
    return trainer
