"""The run folder: its files, and checks that they may be written."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpitrain.config import OutputSection, show_value
from mpitrain.durable_files import check_output, is_in_passing_folder, replacing, write_durably, write_whole
from mpitrain.errors import OutputError, writing
from mpitrain.json_text import read_json

MODEL_MARK = r"__torch__\.mpitrain|extra/mpitrain\.json"
_ANOTHER_FOLDER = "choose another output.model_dir"
RUN = "run"
"""The key of a launch's identity: in a run's record, in the state of a checkpoint, in the record of a model."""
# In its folders; what else is there is the user's.
_OWN_PATTERNS = (
    "checkpoints/step-[0-9]*", "checkpoints/best-[0-9]*", "checkpoints/best", "checkpoints/latest",
    "checkpoints/.*.partial", "logs/rank*.log*", "logs/failure.txt", "tracking/*", "initial_weights.nc",
)  # fmt: skip
_LINK_OF_WANDB = "wandb/*run-*/logs/debug-core.log"


class _Inside:
    """A file or folder of a run folder, by its name there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, _: object = None) -> Path:
        return folder.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run's files. Only the root rank writes, but for each rank's log."""

    path: Path
    model_file: str = "model.pt"

    config = _Inside("config.yaml")
    """The resolved configuration; a folder that has it holds a run."""
    metrics = _Inside("metrics.jsonl")
    """One JSON record an epoch."""
    statistics = _Inside("statistics.json")
    """What the inputs and targets are normalised with, and where it comes from."""
    record = _Inside("run_record.json")
    """The record that `mpitrain reproduce` reads."""
    checkpoints = _Inside("checkpoints")
    """The checkpoints."""
    first_weights = _Inside("initial_weights.nc")
    """The weights that a network from Python began with."""
    own_model = _Inside("model.safetensors")
    """The trained model as this package reads it: safetensors and JSON."""
    logs = _Inside("logs")
    """One log a rank, and the first failure's traceback."""
    profile = _Inside("profile.json")
    """The root's profile of some steps, where one was asked for."""
    tracking = _Inside("tracking")
    """What experiment trackers write, where any were asked for."""
    synthetic_history = _Inside("cice_history.nc")
    """The history file that a run without data writes for itself."""

    @classmethod
    def of(cls, output: OutputSection) -> RunFolder:
        """Return the folder that the section `output` of a run names."""
        return cls(Path(output.model_dir), output.model_file)

    @property
    def model(self) -> Path:
        """The trained model, TorchScript."""
        return self.path / self.model_file

    @property
    def stored_model(self) -> Path:
        """What to read the trained model from: the run's own file, or that of runs before there was one."""
        return self.own_model if self.own_model.is_file() else self.model

    @property
    def _own_files(self) -> tuple[Path, ...]:
        return (*self._run_files, self.own_model, self.model, self._normalization)

    @property
    def _run_files(self) -> tuple[Path, ...]:
        of_an_ensemble = self.path / "skill.csv"
        return self.config, self.statistics, self.record, self.metrics, self.path / "report.html", of_an_ensemble

    @property
    def _normalization(self) -> Path:
        return self.model.with_name(f"normalization.{self.model.name}")

    @property
    def _own_folders(self) -> tuple[Path, ...]:
        return self.checkpoints, self.logs, self.tracking

    def data_files(self, entries: Sequence[str]) -> Sequence[str]:
        """Return what the run trained on: the `entries` of `data.data_path`, or its synthetic history."""
        return entries or [str(self.synthetic_history)]

    @property
    def holds_run(self) -> bool:
        """True if a run has been here. Raises OutputError for a path that cannot be one."""
        with writing(self.path, _ANOTHER_FOLDER):
            return self.config.exists() or self.checkpoints.exists()

    def check_free(self) -> None:
        """Raise OutputError if a run's files are in the way."""
        if self.holds_run:
            raise OutputError(
                f"{self.path}: holds a run already; continue it with --resume, replace it with "
                f"--overwrite, or choose another output.model_dir"
            )
        for path in self._own_files:
            with writing(path, "choose another output.model_dir"):
                check_output(path, MODEL_MARK)

    def check_model_file(self, inputs: Sequence[Path] = (), overwrite: bool = False) -> None:
        """Raise OutputError if the model could not be written at the end of the run; its folder is not made here.

        Nor may it take the place of one of `inputs`, or, without `overwrite`, of a file that is no model.
        """
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
        with writing(f"output.model_file={self.model_file}", "give another name"):
            if self.model in (*self._run_files, self.own_model):
                raise FileExistsError(errno.EEXIST, f"{self.model.name} is another file of the run")
            mark = None if self.holds_run and parent == self.path.absolute() else MODEL_MARK
            for path in (self.model, self._normalization):
                check_output(path, mark, inputs, overwrite)

    def refuse_links(self) -> None:
        """Raise OutputError where what a run writes to is a symbolic link, which may lead anywhere, or a pipe.

        Trackers have links of their own; those may lead to what is beside them, and the one of an earlier launch of
        W&B to its log in the user's cache: a later launch has a folder of its own.
        """
        notes = (*self.logs.glob("*"), *self.path.glob("failed_on_some_ranks-*"), self.path / "member.json")
        for path in (*self._own_files, *self._own_folders, self.profile, *notes):
            refuse_link(path)
        inside, of_earlier = os.path.realpath(self.tracking), set(self.tracking.glob(_LINK_OF_WANDB))
        for path in self.tracking.rglob("*"):
            if path not in of_earlier and not Path(os.path.realpath(path)).is_relative_to(inside):
                refuse_link(path)

    def note_of_another_run(self, path: Path, run: object) -> str | None:
        """Return a line where `path`, which `run` has written, is of no launch that the folder's record names.

        None where that is not known: earlier versions wrote no identity.
        """
        known = sorted(_runs_in(self.record))
        if run is None or not known or run in known:
            return None
        return (
            f"{path}: written by run {show_value(run)}, but {self.record.name} is of run {show_value(known[0])}: the "
            "folder holds files of several runs"
        )

    def create(self) -> None:
        """Make the folder, and check that files can be written to it. Raises OutputError."""
        self.refuse_links()
        with writing(self.path, _ANOTHER_FOLDER):
            self.logs.mkdir(parents=True, exist_ok=True)
            with replacing(self.logs / ".probe") as probe:
                probe.write_bytes(b"")
            (self.logs / ".probe").unlink()
            (self.logs / "failure.txt").unlink(missing_ok=True)

    def weights_to_keep(self, named: str | None) -> Path | None:
        """Return the file that a run begins with where it would be gone after it: of Python, or the folder's own."""
        path = Path(named or "")
        is_passing = named is not None and (is_in_passing_folder(path) or path == self.first_weights)
        return path if is_passing and path.is_file() else None

    def keep_weights(self, content: bytes) -> None:
        """Write the weights that the run begins with. Raises OutputError."""
        with writing(self.first_weights, "free space"):
            write_durably(self.first_weights, content)

    def write_settings(self, text: str, waits_for_disk: bool = True) -> None:
        """Write `config.yaml`, and wait until the disk has it unless told otherwise. Raises OutputError."""
        with writing(self.config, "free space, or choose another output.model_dir"):
            (write_durably if waits_for_disk else write_whole)(self.config, text.encode())

    def remove_run(self) -> None:
        """Delete the run's own files and nothing else. Raises OutputError."""
        self.refuse_links()
        try:
            for file in self._own_files:
                file.unlink(missing_ok=True)
            for path in (one for pattern in _OWN_PATTERNS for one in self.path.glob(pattern)):
                path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
            for folder in self._own_folders:
                with contextlib.suppress(OSError):  # it is not there, or holds files of the user's
                    folder.rmdir()
        except OSError as error:
            raise OutputError(f"{error.filename}: cannot be removed ({error.strerror})") from error


def _runs_in(record: Path) -> set[str]:
    """Return the identities of the launches that a record names: of the last one, and of those that it went on from."""
    try:
        found = read_json(record)
    except (OSError, ValueError):
        return set()
    earlier = found.get("earlier") if isinstance(found, dict) else None
    launches = [found, *(earlier if isinstance(earlier, list) else ())]
    runs = (one.get(RUN) for one in launches if isinstance(one, dict))
    return {run for run in runs if isinstance(run, str)}


def refuse_link(path: Path) -> None:
    """Raise OutputError where `path` is a symbolic link, a pipe or a device."""
    if path.is_fifo() or path.is_char_device() or path.is_block_device():
        raise OutputError(f"{path}: is a pipe or a device, where a run has a file; remove it")
    if path.is_symlink():
        raise OutputError(
            f"{path}: is a symbolic link, and a run writes to no link in its folder; remove it, or put in its place "
            "what it leads to"
        )


def next_free(path: Path) -> Path:
    """Return `path`, or the first of `path`-2, `path`-3, ... that holds no run."""
    candidate, number = path, 1
    while RunFolder(candidate).holds_run:
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
