"""The run folder: what lies where, who may write into it, and what is in the way."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from mpitrain.config import RunConfig
from mpitrain.errors import OutputError


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run's files. Only the root rank writes, but for each rank's log."""

    path: Path
    model_file: str = "model.pt"

    @classmethod
    def of(cls, config: RunConfig) -> RunFolder:
        """Return the folder that the settings of a run name."""
        return cls(Path(config.output.model_dir), config.output.model_file)

    @property
    def config(self) -> Path:
        """The resolved configuration; also the mark that the folder holds a run."""
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        """One JSON record an epoch."""
        return self.path / "metrics.jsonl"

    @property
    def statistics(self) -> Path:
        """What the inputs and targets are normalised with, and where it comes from."""
        return self.path / "statistics.json"

    @property
    def record(self) -> Path:
        """What is needed to train the run again."""
        return self.path / "run_record.json"

    @property
    def checkpoints(self) -> Path:
        """The checkpoints."""
        return self.path / "checkpoints"

    @property
    def model(self) -> Path:
        """The trained model, TorchScript."""
        return self.path / self.model_file

    @property
    def logs(self) -> Path:
        """One log a rank, and the first failure's traceback."""
        return self.path / "logs"

    @property
    def profile(self) -> Path:
        """The root's profile of some steps, where one was asked for."""
        return self.path / "profile.json"

    @property
    def tracking(self) -> Path:
        """What experiment trackers write, where any were asked for."""
        return self.path / "tracking"

    @property
    def synthetic_history(self) -> Path:
        """The history file that a run without data writes for itself."""
        return self.path / "cice_history.nc"

    @property
    def holds_run(self) -> bool:
        """True if a run has been here. Raises OutputError for a path that cannot be one."""
        try:
            return self.config.exists() or self.checkpoints.exists()
        except OSError as error:
            raise OutputError(
                f"{self.path}: cannot be written ({error.strerror}); choose another output.model_dir"
            ) from error

    def check_free(self) -> None:
        """Raise OutputError if a run's files are in the way."""
        if self.holds_run:
            raise OutputError(
                f"{self.path}: holds a run already; continue it with --resume, replace it with "
                f"--overwrite, or choose another output.model_dir"
            )

    def check_model_file(self) -> None:
        """Raise OutputError if the model could not be written at the end of the run; its folder is not made here."""
        parent = self.model.parent.absolute()
        if self.model.is_dir():
            raise OutputError(
                f"output.model_file={self.model_file}: {self.model} is a folder; give another name, or move it away"
            )
        if parent != self.path.absolute() and not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise OutputError(
                f"output.model_file={self.model_file}: the folder {parent} is not there or cannot be written; create "
                "it, or give a name such as model.pt"
            )

    def create(self) -> None:
        """Make the folder and try that it can be written. Raises OutputError."""
        probe = self.logs / ".probe"
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            probe.write_bytes(b"")
            probe.unlink()
            (self.logs / "failure.txt").unlink(missing_ok=True)
        except OSError as error:
            raise OutputError(
                f"{self.path}: cannot be written ({error.strerror}); choose another output.model_dir"
            ) from error

    def remove_run(self) -> None:
        """Delete the run's own files and nothing else. Raises OutputError."""
        own = [
            self.config,
            self.statistics,
            self.record,
            self.metrics,
            self.model,
            self.model.with_name(f"normalization.{self.model.name}"),
            self.path / "report.html",
        ]
        try:
            for file in own:
                file.unlink(missing_ok=True)
            for folder in (self.checkpoints, self.logs, self.tracking):
                if folder.is_dir():
                    shutil.rmtree(folder)
        except OSError as error:
            raise OutputError(f"{error.filename}: cannot be removed ({error.strerror})") from error


def next_free(path: Path) -> Path:
    """Return `path`, or the first of `path`-2, `path`-3, ... that holds no run."""
    candidate, number = path, 1
    while RunFolder(candidate).holds_run:
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
