"""The beginning of a run: its settings and folder, the checkpoint that it resumes, its data files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mpitrain.comm.ranks import Ranks
from mpitrain.config import LoadedConfig, RunConfig, load_run_config, render_yaml
from mpitrain.data.selection.source import SampleSource
from mpitrain.datatools.statistics import record_of_run, write_record
from mpitrain.durable_files import write_durably
from mpitrain.errors import ConfigError, MpitrainError, OutputError
from mpitrain.runs.prepare import PreparedRun
from mpitrain.synthetic.history import write_synthetic_history
from mpitrain.train.checkpoint.store import Checkpoint, CheckpointStore
from mpitrain.train.run_folder import RunFolder, next_free

# The synthetic history has somewhat more at each of its poles and times.
SAMPLES_A_TIME = 6000


@dataclass(frozen=True)
class TrainRequest:
    """What the command line asks for."""

    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    resume: bool = False
    overwrite: bool = False
    log_level: str = "info"


def load_settings(request: TrainRequest, ranks: Ranks) -> LoadedConfig:
    """Return the settings, which name the run's own folder: the next free one where none was asked for. Collective.

    Raises ConfigError or OutputError, on all ranks, for settings that are wrong and for a folder that holds a run.
    """
    loaded = ranks.on_all_ranks(lambda: _load(request))
    folder = ranks.on_root(lambda: str(_choose_folder(loaded.config, request)))
    if folder == loaded.config.output.model_dir:
        return loaded
    # config.yaml must lead back to the folder that was taken.
    overrides = (*request.overrides, f"output.model_dir={folder}")
    return ranks.on_all_ranks(lambda: load_run_config(request.config_path, overrides))


def _load(request: TrainRequest) -> LoadedConfig:
    if not request.resume or request.config_path is not None:
        return load_run_config(request.config_path, request.overrides)
    # A resumed run is what its own folder says, and what the command line changes.
    folder = RunFolder(Path(load_run_config(None, request.overrides).config.output.model_dir))
    if not folder.config.exists():
        raise ConfigError(
            f"--resume: {folder.path} holds no run; name its folder with output.model_dir=FOLDER (or --output)"
        )
    return load_run_config(folder.config, request.overrides)


def _choose_folder(config: RunConfig, request: TrainRequest) -> Path:
    folder = RunFolder(Path(config.output.model_dir))
    if request.resume or request.overwrite:
        return folder.path
    is_named = any(override.startswith("output.model_dir=") for override in request.overrides)
    if not is_named and config.data.data_path is None:
        return next_free(folder.path)
    folder.check_free()
    return folder.path


def load_newest_checkpoint(folder: RunFolder, ranks: Ranks) -> Checkpoint:
    """Return the newest checkpoint that is whole, and say which. For the root. Raises CheckpointError."""
    checkpoint, notices = CheckpointStore(folder.checkpoints).load_latest()
    for line in notices:
        ranks.say(f"note: {line}", error=True)
    ranks.say(f"resuming from {checkpoint.path}")
    return checkpoint


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
