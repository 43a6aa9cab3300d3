"""Files of a member that a single run has too: its record, the statistics of its data, its log."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from mpitrain.comm import Ranks
from mpitrain.data import SampleSource
from mpitrain.datatools.statistics import provenance_of, record_of_run
from mpitrain.durable_files import write_whole
from mpitrain.ensemble.outcome import Outcome
from mpitrain.errors import writing
from mpitrain.observe.logs import close_rank_log, open_rank_log
from mpitrain.runs.prepared_run import PreparedRun
from mpitrain.runs.reproduction.data_files import FileRecord, record_files
from mpitrain.runs.reproduction.record import files_of, now, record_of_beginning, record_of_launch
from mpitrain.train import Checkpoint, RunFolder

_ADVICE = "free space, then --resume"


@dataclass(frozen=True)
class MemberRecords:
    """Writer of the records of members, which share `of_launch` and `files` (by path)."""

    of_launch: Mapping[str, Any]
    files: Mapping[Path, FileRecord]

    def begin(self, group: Ranks, prepared: PreparedRun, source: SampleSource, checkpoint: Checkpoint | None) -> Any:
        """Return the record of a member that starts. On its group's root only."""
        files = [self.files[path] for path in files_of(source, prepared.config.model.initial_weights)]
        return record_of_beginning(group, prepared, source, checkpoint, files, self.of_launch)

    def end(
        self, folder: RunFolder, record: dict[str, Any], prepared: PreparedRun, source: SampleSource,
        steps: int, outcome: Outcome,
    ) -> None:  # fmt: skip
        """Write record and statistics of a member that has ended. On its group's root only. Raises OutputError."""
        result = {name: getattr(outcome, name) for name in ("weights_sha256", "epochs", "train_loss",
                                                            "validation_loss", "best_epoch")}  # fmt: skip
        record |= {"ended": now(), "used": {"wall_s": round(outcome.training_s, 3)}}
        record["result"] = {**result, "steps": steps}
        _write(folder.record, record)
        summary = prepared.dataset.summary
        if summary.moments is not None:
            _write(folder.statistics, record_of_run(provenance_of(prepared.config), source, summary, summary.moments))


def open_records(
    world: Ranks, sources: Sequence[SampleSource], weights: Sequence[str | None], hash_data: bool | None, run: str
) -> MemberRecords:
    """Hash the files that members read, each once, and return the writer of their records. Collective.

    `weights`: files of initial weights; `hash_data`: as in `output.hash_data`; `run`: the identity of the launch.
    Raises DataError on all ranks.
    """
    data = [path for source in sources for path in source.paths]
    # A missing file of initial weights fails only the members that use it.
    given = [path for path in map(Path, filter(None, weights)) if path.exists()]
    files = list(dict.fromkeys([*data, *given]))
    hashed = record_files(world, files, hash_data)
    return MemberRecords(record_of_launch(world, run), dict(zip(files, hashed, strict=True)))


def log_outcome(folder: Path, group: Ranks, outcome: Outcome) -> None:
    """Log the outcome of a member in its folder. On its group's root only."""
    parts = [f"member {outcome.number:04d} {outcome.status}: {outcome.epochs} epochs in {outcome.training_s:.3f} s"]
    parts += [] if outcome.score is None else [f"loss {outcome.score:.4e}"]
    parts += [f"weights SHA-256 {outcome.weights_sha256}"] if outcome.weights_sha256 else []
    parts += [outcome.message] if outcome.message else []
    logger = open_rank_log(folder, group.rank, group.host)
    logger.log(WARNING if outcome.is_failure else INFO, "%s", ", ".join(parts))
    close_rank_log(logger)


def _write(path: Path, record: Mapping[str, Any]) -> None:
    with writing(path, _ADVICE):
        write_whole(path, (json.dumps(record) + "\n").encode())
