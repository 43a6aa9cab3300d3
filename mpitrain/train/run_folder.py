"""The run folder: the paths of its files, and checks that they can be written."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpitrain.config import OutputSection, show_value
from mpitrain.durable_files import check_output, is_in_temporary_folder, replacing, write_durably, write_whole
from mpitrain.errors import OutputError, writing
from mpitrain.json_text import read_json

MODEL_MARK = r"__torch__\.mpitrain|extra/mpitrain\.json"
_ANOTHER_FOLDER = "choose another output.model_dir"
RUN = "run"
"""The key of a launch's identity in a run's record, in the state of a checkpoint and in the record of a model."""
# The run's own files in its folders; all other files belong to the user.
_OWN_PATTERNS = (
    "checkpoints/step-[0-9]*", "checkpoints/best-[0-9]*", "checkpoints/best", "checkpoints/latest",
    "checkpoints/.*.partial", "logs/rank*.log*", "logs/failure.txt", "tracking/*", "initial_weights.nc",
)  # fmt: skip
_LINK_OF_WANDB = "wandb/*run-*/logs/debug-core.log"


class _Inside:
    """Descriptor of a file or folder in a run folder: its path, made from its name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: RunFolder, _: object = None) -> Path:
        return folder.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run's files. Only the root writes them, except for the log of each rank.

    Attributes
    ----------
    path : Path
        The run folder (`output.model_dir`).
    model_file : str
        Path of the exported TorchScript model, relative to the folder (`output.model_file`).

    Notes
    -----
    No method is collective.
    """

    path: Path
    model_file: str = "model.pt"

    config = _Inside("config.yaml")
    """The resolved configuration; a folder that has it holds a run."""
    metrics = _Inside("metrics.jsonl")
    """One JSON record an epoch."""
    statistics = _Inside("statistics.json")
    """The statistics that inputs and targets are normalised with, and their origin."""
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
    """The root's profile of some steps, if one was requested."""
    tracking = _Inside("tracking")
    """The files of experiment trackers, if any were requested."""
    synthetic_history = _Inside("cice_history.nc")
    """The history file that a run without data writes for itself."""

    @classmethod
    def of(cls, output: OutputSection) -> RunFolder:
        """Return the folder that the section `output` of a run names.

        Parameters
        ----------
        output : OutputSection

        Returns
        -------
        RunFolder
        """
        return cls(Path(output.model_dir), output.model_file)

    @property
    def model(self) -> Path:
        """The trained model, TorchScript."""
        return self.path / self.model_file

    @property
    def stored_model(self) -> Path:
        """The file to read the trained model from: `own_model`, or `model` for runs of versions without it."""
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
        """Return the training data of a run.

        Parameters
        ----------
        entries : sequence of str
            The files and patterns of `data.data_path`.

        Returns
        -------
        sequence of str
            `entries`, or the path of the synthetic history if there are none.
        """
        return entries or [str(self.synthetic_history)]

    @property
    def holds_run(self) -> bool:
        """True if the folder has settings or checkpoints. Raises OutputError if the path cannot be examined."""
        with writing(self.path, _ANOTHER_FOLDER):
            return self.config.exists() or self.checkpoints.exists()

    def check_free(self) -> None:
        """Raise OutputError if the folder holds a run, or files that this run would overwrite.

        Raises
        ------
        OutputError
            The folder holds a run, or one of the run's files exists and is not a model of this package.
        """
        if self.holds_run:
            raise OutputError(
                f"{self.path}: holds a run already; continue it with --resume, replace it with "
                f"--overwrite, or choose another output.model_dir"
            )
        for path in self._own_files:
            with writing(path, "choose another output.model_dir"):
                check_output(path, MODEL_MARK)

    def check_model_file(self, inputs: Sequence[Path] = (), overwrite: bool = False) -> None:
        """Raise OutputError if the model cannot be written at the end of the run. Creates nothing.

        Parameters
        ----------
        inputs : sequence of Path, default ()
            Files that the run reads, which the model must not replace.
        overwrite : bool, default False
            The model may replace a file that is not a model.

        Raises
        ------
        OutputError
            The path is a folder, is in a folder that is missing or not writable, or is another file of the run or an
            input; or it is a file that is not a model, and `overwrite` is False.
        """
        parent = self.model.parent.absolute()
        if self.model.is_dir():
            raise OutputError(
                f"output.model_file={self.model_file}: {self.model} is a folder; give another name, or move it away"
            )
        if parent != self.path.absolute() and not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise OutputError(
                f"output.model_file={self.model_file}: the folder {parent} does not exist or is not writable; create "
                "it, or give a name such as model.pt"
            )
        with writing(f"output.model_file={self.model_file}", "give another name"):
            if self.model in (*self._run_files, self.own_model):
                raise FileExistsError(errno.EEXIST, f"{self.model.name} is another file of the run")
            mark = None if self.holds_run and parent == self.path.absolute() else MODEL_MARK
            for path in (self.model, self._normalization):
                check_output(path, mark, inputs, overwrite)

    def refuse_links(self) -> None:
        """Raise OutputError if a file that a run writes to is a symbolic link, a pipe or a device.

        Raises
        ------
        OutputError
            Names the first one that was found.

        Notes
        -----
        Links that trackers make are allowed if they point into the trackers' folder. The links of earlier launches of
        W&B to its log in the user's cache are allowed too: a later launch writes to another folder.
        """
        notes = (*self.logs.glob("*"), *self.path.glob("failed_on_some_ranks-*"), self.path / "member.json")
        for path in (*self._own_files, *self._own_folders, self.profile, *notes):
            refuse_link(path)
        inside, of_earlier = os.path.realpath(self.tracking), set(self.tracking.glob(_LINK_OF_WANDB))
        for path in self.tracking.rglob("*"):
            if path not in of_earlier and not Path(os.path.realpath(path)).is_relative_to(inside):
                refuse_link(path)

    def note_of_another_run(self, path: Path, run: object) -> str | None:
        """Return a notice if a file belongs to no launch that the folder's record names.

        Parameters
        ----------
        path : Path
            The file, for the notice.
        run : object
            The identity of the launch that wrote it; None if unknown.

        Returns
        -------
        str or None
            None if the file belongs to the folder's run, or if this is not known: earlier versions wrote no identity.
        """
        known = sorted(_runs_in(self.record))
        if run is None or not known or run in known:
            return None
        return (
            f"{path}: written by run {show_value(run)}, but {self.record.name} is of run {show_value(known[0])}: the "
            "folder holds files of several runs"
        )

    def create(self) -> None:
        """Create the folder, and check that files can be written to it. Removes the report of an earlier failure.

        Raises
        ------
        OutputError
            The folder cannot be written, or one of its files is a link, a pipe or a device.
        """
        self.refuse_links()
        with writing(self.path, _ANOTHER_FOLDER):
            self.logs.mkdir(parents=True, exist_ok=True)
            with replacing(self.logs / ".probe") as probe:
                probe.write_bytes(b"")
            (self.logs / ".probe").unlink()
            (self.logs / "failure.txt").unlink(missing_ok=True)

    def weights_to_keep(self, named: str | None) -> Path | None:
        """Return the file of initial weights if it must be copied to the folder.

        Parameters
        ----------
        named : str or None
            `model.initial_weights`.

        Returns
        -------
        Path or None
            The file if it exists and will not outlast the run: a temporary file of a network from Python, or
            `first_weights` itself. None otherwise.
        """
        path = Path(named or "")
        is_passing = named is not None and (is_in_temporary_folder(path) or path == self.first_weights)
        return path if is_passing and path.is_file() else None

    def keep_weights(self, content: bytes) -> None:
        """Write the initial weights to `first_weights`, atomically and durably.

        Parameters
        ----------
        content : bytes
            The content of a NetCDF file.

        Raises
        ------
        OutputError
            The file cannot be written.
        """
        with writing(self.first_weights, "free space"):
            write_durably(self.first_weights, content)

    def write_settings(self, text: str, waits_for_disk: bool = True) -> None:
        """Write `config.yaml` atomically.

        Parameters
        ----------
        text : str
            The settings as YAML.
        waits_for_disk : bool, default True
            Return once the file is on the disk (fsync).

        Raises
        ------
        OutputError
            The file cannot be written.
        """
        with writing(self.config, "free space, or choose another output.model_dir"):
            (write_durably if waits_for_disk else write_whole)(self.config, text.encode())

    def remove_run(self) -> None:
        """Delete the run's own files and nothing else. Folders with other files are kept.

        Raises
        ------
        OutputError
            A file cannot be removed, or is a link, a pipe or a device; files may have been removed before.
        """
        self.refuse_links()
        try:
            for file in self._own_files:
                file.unlink(missing_ok=True)
            for path in (one for pattern in _OWN_PATTERNS for one in self.path.glob(pattern)):
                path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
            for folder in self._own_folders:
                with contextlib.suppress(OSError):  # it does not exist, or holds files of the user
                    folder.rmdir()
        except OSError as error:
            raise OutputError(f"{error.filename}: cannot be removed ({error.strerror})") from error


def _runs_in(record: Path) -> set[str]:
    """Return the identities of the launches in a record: the last launch, and the earlier ones that it resumed."""
    try:
        found = read_json(record)
    except (OSError, ValueError):
        return set()
    earlier = found.get("earlier") if isinstance(found, dict) else None
    launches = [found, *(earlier if isinstance(earlier, list) else ())]
    runs = (one.get(RUN) for one in launches if isinstance(one, dict))
    return {run for run in runs if isinstance(run, str)}


def refuse_link(path: Path) -> None:
    """Raise OutputError if `path` is a symbolic link, a pipe or a device."""
    if path.is_fifo() or path.is_char_device() or path.is_block_device():
        raise OutputError(f"{path}: is a pipe or a device, but must be a regular file of the run; remove it")
    if path.is_symlink():
        raise OutputError(
            f"{path}: is a symbolic link, and a run does not write to links in its folder; remove it, or replace it "
            "with the file it points to"
        )


def next_free(path: Path) -> Path:
    """Return `path`, or the first of `path`-2, `path`-3, ... that holds no run."""
    candidate, number = path, 1
    while RunFolder(candidate).holds_run:
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
    return candidate
