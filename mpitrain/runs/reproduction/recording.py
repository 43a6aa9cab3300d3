"""The record of a run: what goes into it at its beginning and at its end."""

from __future__ import annotations

from typing import Any

from mpitrain.comm.ranks import Ranks
from mpitrain.data.selection.source import SampleSource
from mpitrain.observe.summary import RunSummary
from mpitrain.runs.prepare import PreparedRun
from mpitrain.runs.reproduction.record import RunRecorder, command_line
from mpitrain.train.checkpoint.store import Checkpoint
from mpitrain.train.run_folder import RunFolder

_RESULTS = ("weights_sha256", "epochs", "steps", "train_loss", "validation_loss", "best_epoch")


def begin_record(
    ranks: Ranks, prepared: PreparedRun, source: SampleSource, folder: RunFolder, checkpoint: Checkpoint | None
) -> RunRecorder:
    """Write the record of a run that is about to train. Collective. Raises DataError or OutputError, on all ranks."""
    recorder = RunRecorder(ranks, folder.record)
    first_step = int(checkpoint.state["global_step"]) if checkpoint else 0
    files = [file.path for file in source.files]
    recorder.begin(prepared.config, prepared.settings, files, first_step, command_line())
    return recorder


def result_of(summary: RunSummary) -> dict[str, Any]:
    """Return what a run that is trained again is compared with."""
    return {name: getattr(summary, name) for name in _RESULTS}
