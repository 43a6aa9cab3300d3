"""The beginning of a run: its settings and folder, the checkpoint that it resumes, its data files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mpitrain.comm.ranks import Ranks
from mpitrain.config import LoadedConfig, RunConfig, load_run_config, render_yaml
from mpitrain.config.older.spellings import current_path
from mpitrain.config.yaml import quoted
from mpitrain.data.selection.source import SampleSource
from mpitrain.datatools.statistics import record_of_run, write_record
from mpitrain.durable_files import write_durably
from mpitrain.errors import MpitrainError, OutputError
from mpitrain.runs.prepared_run import PreparedRun
from mpitrain.runs.reproduction.record import RunRecorder, begin_record
from mpitrain.runs.resumed import ResumedRun, find_resumed_run, load_resumed
from mpitrain.synthetic.history import write_synthetic_history
from mpitrain.train.checkpoint.store import Checkpoint
from mpitrain.train.run_folder import RunFolder, next_free

# The synthetic history has somewhat more at each of its poles and times.
SAMPLES_A_TIME = 6000


@dataclass(frozen=True)
class TrainRequest:
    """What the command line asks for."""

    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    resume: bool = False
    resume_from: Path | None = None
    """With `resume`: a run folder, or one of its checkpoints; None: the run in the run folder."""
    overwrite: bool = False
    log_level: str = "info"
    config: RunConfig | None = None
    """The settings themselves, in place of a file and overrides."""


def load_settings(request: TrainRequest, ranks: Ranks) -> LoadedConfig:
    """Return the settings, which name the run's own folder: the next free one where none was asked for. Collective.

    Raises ConfigError or OutputError, on all ranks, for settings that are wrong and for a folder that holds a run.
    """
    loaded = ranks.on_all_ranks(lambda: _load(request))
    folder = ranks.on_root(lambda: str(_choose_folder(loaded.config, request)))
    if folder == loaded.config.output.model_dir:
        return loaded
    # config.yaml must lead back to the folder that was taken.
    overrides = (*request.overrides, f"output.model_dir={quoted(folder)}")
    return ranks.on_all_ranks(lambda: load_run_config(request.config_path, overrides))


def _load(request: TrainRequest) -> LoadedConfig:
    if request.config is not None:
        return LoadedConfig(request.config, ())
    if not request.resume or request.config_path is not None:
        return load_run_config(request.config_path, request.overrides)
    # A resumed run is what its own folder says, and what the command line changes.
    folder = find_resumed_run(request.resume_from, request.overrides).folder
    overrides = request.overrides
    if request.resume_from is not None and not _names_folder(overrides):
        overrides = (*overrides, f"output.model_dir={quoted(str(folder.path))}")  # it may have been moved since
    return load_run_config(folder.config, overrides)


def _names_folder(overrides: Sequence[str]) -> bool:
    keys = (tuple(override.partition("=")[0].strip().split(".")) for override in overrides)
    return any(current_path(key) == ("output", "model_dir") for key in keys)


def _choose_folder(config: RunConfig, request: TrainRequest) -> Path:
    folder = RunFolder(Path(config.output.model_dir))
    if request.overwrite:
        return folder.path
    if request.resume:
        resumed = find_resumed_run(request.resume_from, request.overrides).folder if request.resume_from else folder
        if resumed.path.resolve() != folder.path.resolve():
            folder.check_free()  # the run goes on in a folder of its own
        return folder.path
    if request.config is None and not _names_folder(request.overrides) and config.data.data_path is None:
        return next_free(folder.path)
    folder.check_free()
    return folder.path


def load_newest_checkpoint(folder: RunFolder, request: TrainRequest, ranks: Ranks) -> Checkpoint:
    """Return the checkpoint that a resumed run in `folder` goes on from, and say which. For the root.

    Raises CheckpointError.
    """
    resumed = find_resumed_run(request.resume_from, ()) if request.resume_from else ResumedRun(folder)
    return load_resumed(resumed, folder, ranks)


@contextmanager
def as_before_if_refused(ranks: Ranks, folder: RunFolder) -> Iterator[None]:
    """Take back the synthetic history file, and the folder made for it, when the run is refused. Not collective."""
    if not ranks.is_root:
        yield
        return
    existed = folder.path.exists()
    history = folder.synthetic_history.read_bytes() if folder.synthetic_history.is_file() else None
    try:
        yield
    except MpitrainError:
        if not existed:
            shutil.rmtree(folder.path, ignore_errors=True)
        elif history is None:
            folder.synthetic_history.unlink(missing_ok=True)
        else:
            write_durably(folder.synthetic_history, history)
        raise


def find_files(config: RunConfig, folder: RunFolder, request: TrainRequest) -> list[str]:
    """Return the files and patterns of the run; the root writes a synthetic history where there are none."""
    if config.data.entries:
        return config.data.entries
    if not (request.resume and folder.synthetic_history.exists()):
        folder.create()
        num_times = -(-(config.data.num_samples or 1) // SAMPLES_A_TIME)
        write_synthetic_history(folder.synthetic_history, seed=config.seed, num_times=num_times)
    return [str(folder.synthetic_history)]


def open_folder(
    ranks: Ranks, prepared: PreparedRun, source: SampleSource, folder: RunFolder, request: TrainRequest,
    checkpoint: Checkpoint | None,
) -> RunRecorder:  # fmt: skip
    """Make the run folder with all that is known before the training, and return what keeps its record. Collective.

    Raises OutputError or DataError, on all ranks.
    """
    ranks.on_root(lambda: prepare_folder(prepared, source, folder, request))
    ranks.write_failures_to(folder.logs)
    return begin_record(ranks, prepared, source, folder, checkpoint)


def prepare_folder(prepared: PreparedRun, source: SampleSource, folder: RunFolder, request: TrainRequest) -> None:
    """Make the run folder, with the settings and the statistics of the data. For the root. Raises OutputError."""
    if request.overwrite and not request.resume:
        folder.remove_run()
    folder.create()
    try:
        write_durably(folder.config, render_yaml(prepared.config).encode())
    except OSError as error:
        raise OutputError(f"{folder.config}: cannot be written ({error.strerror})") from error
    summary = prepared.dataset.summary
    if summary.moments is not None:
        write_record(record_of_run(prepared.config, source, summary, summary.moments), folder.statistics)
