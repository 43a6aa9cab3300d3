"""The record of a run: what goes into it at its beginning and at its end."""

from __future__ import annotations

from mpitrain.comm.ranks import Ranks
from mpitrain.data.selection.source import SampleSource
from mpitrain.runs.prepared_run import PreparedRun
from mpitrain.runs.reproduction.record import RunRecorder, command_line
from mpitrain.train.checkpoint.store import Checkpoint
from mpitrain.train.run_folder import RunFolder


def begin_record(
    ranks: Ranks, prepared: PreparedRun, source: SampleSource, folder: RunFolder, checkpoint: Checkpoint | None
) -> RunRecorder:
    """Write the record of a run that is about to train. Collective. Raises DataError or OutputError, on all ranks."""
    recorder = RunRecorder(ranks, folder.record)
    first_step = int(checkpoint.state["global_step"]) if checkpoint else 0
    files = [file.path for file in source.files]
    recorder.begin(prepared.config, prepared.settings, files, first_step, command_line())
    return recorder
