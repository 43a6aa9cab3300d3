"""The beginning of a run: its settings and folder, the checkpoint that it resumes, its data files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from mpitrain.comm import Ranks
from mpitrain.config import LoadedConfig, RunConfig, load_run_config, overridden_keys, render_yaml
from mpitrain.data import SampleSource
from mpitrain.data.selection.settings import with_names_of_file
from mpitrain.datatools.statistics import provenance_of, record_of_run, write_record
from mpitrain.errors import MpitrainError, OutputError
from mpitrain.runs.prepared_run import PreparedRun
from mpitrain.runs.reproduction.record import RunRecorder, begin_record
from mpitrain.runs.resumed import ResumedRun, find_resumed_run, load_resumed
from mpitrain.train import Checkpoint, ClaimedFolder, RunFolder, remember_code_of, trusts_code_of, with_recorded_rules
from mpitrain.train.folder.claim import claimed, refuse_if_used
from mpitrain.train.folder.made_here import MadeHere
from mpitrain.train.folder.settings import load_passed_settings, load_settings_to_go_on
from mpitrain.train.run_folder import next_free


@dataclass(frozen=True)
class TrainRequest:
    """What the command line asks for."""

    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    resume: bool = False
    resume_from: Path | None = None
    """With `resume`: a run folder, or one of its checkpoints; None: the run in the run folder."""
    overwrite: bool = False
    takes_over: bool = False
    """Use the folder although another launch has claimed it, unless that one is known to run."""
    log_level: str = "info"
    trust_code: bool = False
    """Run a network that is code where a run folder's own settings name it."""
    config: RunConfig | None = None
    """The settings themselves, in place of a file and overrides."""
    quick_run: tuple[str, ...] = ()
    """Overrides that make a new run a quick one; they give way to `overrides`."""


def load_settings(request: TrainRequest, ranks: Ranks) -> LoadedConfig:
    """Return the settings, which name the run's own folder: the next free one where none was asked for. Collective.

    Raises ConfigError or OutputError, on all ranks, for settings that are wrong and for a folder that holds a run.
    """
    trusted = replace(request, trust_code=ranks.on_root(lambda: _trusts_code(request)))
    loaded = ranks.on_all_ranks(lambda: load_asked_settings(trusted))
    loaded = ranks.on_root(lambda: with_names_of_file(loaded))
    folder = ranks.on_root(
        lambda: str(_choose_folder(Path(loaded.config.output.model_dir), loaded.config.data.data_path is None, request))
    )
    if folder == loaded.config.output.model_dir:
        return loaded
    # config.yaml must lead back to the folder that was taken.
    section = loaded.config.output.model_copy(update={"model_dir": folder})
    return replace(loaded, config=loaded.config.model_copy(update={"output": section}))


def load_asked_settings(request: TrainRequest) -> LoadedConfig:
    """Return the settings before a folder is chosen. Local to each rank. Raises ConfigError or UserError."""
    if request.config is not None:
        return LoadedConfig(request.config, ())
    if request.quick_run:
        return _load_quick_run(request)
    if not request.resume or request.config_path is not None:
        return load_passed_settings(request.config_path, request.trust_code, request.overrides)
    # A resumed run is what its own folder says, and what the command line changes.
    folder = find_resumed_run(request.resume_from, request.overrides).folder
    return load_settings_to_go_on(folder, request.trust_code, request.overrides)


def _trusts_code(request: TrainRequest) -> bool:
    """Tell whether code that a run folder's own settings name may be run. For the root. Raises UserError."""
    file = None if request.config_path is None else request.config_path.resolve()
    if request.resume and file is None and request.config is None:
        file = find_resumed_run(request.resume_from, request.overrides).folder.config
    return request.trust_code if file is None else trusts_code_of(file, request.trust_code)


def _load_quick_run(request: TrainRequest) -> LoadedConfig:
    """Return the settings of a quick run, which has a folder of its own and leaves the run's folder free.

    `reference` has the C++ program's options alone: all samples are used.
    """
    asked = load_passed_settings(request.config_path, request.trust_code, request.overrides)
    is_reference = asked.config.semantics == "reference"
    quick = [word for word in request.quick_run if not (is_reference and word.startswith("data."))]
    folder = f"output.model_dir={json.dumps(asked.config.output.model_dir + '-debug')}"
    loaded = load_run_config(request.config_path, (*quick, folder, *request.overrides))
    loaded = with_recorded_rules(loaded, request.config_path)
    # What the command line gives instead counts, and is not the quick run's.
    kept = [word for word in quick if word.partition("=")[0] not in overridden_keys(request.overrides)]
    return replace(loaded, notices=(f"--debug: a quick run{': ' if kept else ''}{' '.join(kept)}", *loaded.notices))


def _choose_folder(asked: Path, is_synthetic: bool, request: TrainRequest) -> Path:
    folder = RunFolder(asked)
    is_default = (
        request.config is None
        and not (request.overwrite or request.resume)
        and "output.model_dir" not in overridden_keys(request.overrides)
        and (is_synthetic or request.quick_run)
    )
    if is_default:
        return next_free(folder.path)
    try:
        _check_free(folder, request)
    except OutputError:
        refuse_if_used(folder.path)  # a line that names the launch says more
        raise
    return folder.path


def _check_free(folder: RunFolder, request: TrainRequest) -> None:
    """Raise OutputError where a run is in the way of the one that is requested."""
    if request.resume:
        resumed = find_resumed_run(request.resume_from, request.overrides).folder if request.resume_from else folder
        if resumed.path.resolve() == folder.path.resolve():
            return  # else the run goes on in a folder of its own
    if not request.overwrite:
        folder.check_free()


@contextmanager
def claimed_folder(ranks: Ranks, loaded: LoadedConfig, request: TrainRequest) -> Iterator[ClaimedFolder]:
    """Let this launch alone use the folder of the settings during the block. Collective.

    Raises OutputError, on all ranks, where another launch uses it, or has ended in it since `load_settings`.
    """
    with claimed(ranks, RunFolder.of(loaded.config.output), request.takes_over) as folder:
        ranks.on_root(lambda: _check_free(folder, request))
        yield folder


def load_newest_checkpoint(folder: RunFolder, request: TrainRequest, ranks: Ranks) -> Checkpoint | None:
    """Return the checkpoint that a resumed run in `folder` goes on from, and say which. For the root.

    None for a run that has written neither a checkpoint nor a model yet: it is begun anew.

    Raises CheckpointError.
    """
    resumed = find_resumed_run(request.resume_from, ()) if request.resume_from else ResumedRun(folder)
    checkpoint = load_resumed(resumed, folder, ranks)
    if checkpoint is not None and "model.initial_weights" in overridden_keys(request.overrides):
        ranks.note(
            "model.initial_weights: of no effect with --resume, which goes on with the checkpoint's; leave it out"
        )
    return checkpoint


@contextmanager
def files_removed_on_error() -> Iterator[MadeHere]:
    """Yield the record of files that are made before the training begins; an error removes them again."""
    made = MadeHere()
    try:
        yield made
    except MpitrainError:
        made.take_back()
        raise


def open_folder(
    ranks: Ranks, prepared: PreparedRun, source: SampleSource, folder: ClaimedFolder, request: TrainRequest,
    checkpoint: Checkpoint | None,
) -> RunRecorder:  # fmt: skip
    """Make the run folder with all that is known before the training, and return what keeps its record. Collective.

    Raises OutputError or DataError, on all ranks.
    """
    is_begun_anew = (request.overwrite or request.resume) and checkpoint is None
    weights = ranks.on_root(lambda: folder.weights_to_keep(prepared.config.model.initial_weights))
    if weights is not None:
        network = prepared.config.model.model_copy(update={"initial_weights": str(folder.first_weights)})
        prepared = replace(prepared, config=prepared.config.model_copy(update={"model": network}))
    ranks.on_root(lambda: prepare_folder(prepared, source, folder, is_begun_anew, weights))
    if not request.trust_code:  # which is of this launch alone
        ranks.on_root(lambda: remember_code_of(prepared.config.code_names.items(), [folder.config]))
    ranks.write_failures_to(folder.logs)
    prepared.remember_run(folder.run)
    return begin_record(ranks, prepared, source, folder, checkpoint)


def prepare_folder(
    prepared: PreparedRun, source: SampleSource, folder: RunFolder, is_begun_anew: bool, weights: Path | None
) -> None:  # fmt: skip
    """Make the run folder, with the settings and the statistics of the data. For the root. Raises OutputError.

    `is_begun_anew`: what another run has left there is removed. `weights`, which the run begins with, are kept there.
    """
    content = None if weights is None else weights.read_bytes()
    if is_begun_anew:
        folder.remove_run()
    folder.create()
    if content is not None:
        folder.keep_weights(content)
    folder.write_settings(render_yaml(prepared.config))
    summary = prepared.dataset.summary
    if summary.moments is not None:
        write_record(record_of_run(provenance_of(prepared.config), source, summary, summary.moments), folder.statistics)
