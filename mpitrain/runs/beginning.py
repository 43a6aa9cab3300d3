"""The start of a run: its settings, its run folder, and the checkpoint that it resumes from."""

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
from mpitrain.train.folder.settings import load_passed_settings, load_settings_to_resume
from mpitrain.train.run_folder import next_free


@dataclass(frozen=True)
class TrainRequest:
    """The arguments of one training run."""

    config_path: Path | None = None
    overrides: tuple[str, ...] = ()
    resume: bool = False
    resume_from: Path | None = None
    """With `resume`: a run folder or one of its checkpoints; None: resume the run in `output.model_dir`."""
    overwrite: bool = False
    takes_over: bool = False
    """Use the folder even if another launch has claimed it, unless that launch is known to be running."""
    log_level: str = "info"
    trust_code: bool = False
    """Run Python code that the settings file of a run folder names, such as the network."""
    config: RunConfig | None = None
    """The settings, instead of a file and overrides."""
    quick_run: tuple[str, ...] = ()
    """Overrides of a quick run (`--debug`); `overrides` take precedence over them."""


def load_settings(request: TrainRequest, ranks: Ranks) -> LoadedConfig:
    """Return the settings with the run folder that this run uses. Collective.

    A quick run and a run on synthetic data use the next free folder if the command line names none. Raises ConfigError
    or OutputError on all ranks if the settings are wrong or the folder already holds a run.
    """
    trusted = replace(request, trust_code=ranks.on_root(lambda: _trusts_code(request)))
    loaded = ranks.on_all_ranks(lambda: load_requested_settings(trusted))
    loaded = ranks.on_root(lambda: with_names_of_file(loaded))
    folder = ranks.on_root(
        lambda: str(_choose_folder(Path(loaded.config.output.model_dir), loaded.config.data.data_path is None, request))
    )
    if folder == loaded.config.output.model_dir:
        return loaded
    # config.yaml must name the folder that was chosen.
    section = loaded.config.output.model_copy(update={"model_dir": folder})
    return replace(loaded, config=loaded.config.model_copy(update={"output": section}))


def load_requested_settings(request: TrainRequest) -> LoadedConfig:
    """Return the settings before a folder is chosen. Not collective. Raises ConfigError or UserError."""
    if request.config is not None:
        return LoadedConfig(request.config, ())
    if request.quick_run:
        return _load_quick_run(request)
    if not request.resume or request.config_path is not None:
        return load_passed_settings(request.config_path, request.trust_code, request.overrides)
    # A resumed run uses the settings of its folder, changed by the command line.
    folder = find_resumed_run(request.resume_from, request.overrides).folder
    return load_settings_to_resume(folder, request.trust_code, request.overrides)


def _trusts_code(request: TrainRequest) -> bool:
    """Return whether code that a run folder's own settings name may be run. Root only. Raises UserError."""
    file = None if request.config_path is None else request.config_path.resolve()
    if request.resume and file is None and request.config is None:
        file = find_resumed_run(request.resume_from, request.overrides).folder.config
    return request.trust_code if file is None else trusts_code_of(file, request.trust_code)


def _load_quick_run(request: TrainRequest) -> LoadedConfig:
    """Return the settings of a quick run, which uses the run folder with `-debug` added to its name.

    With `semantics=reference` all samples are used: the C++ program has no options to select some of them.
    """
    full = load_passed_settings(request.config_path, request.trust_code, request.overrides)
    is_reference = full.config.semantics == "reference"
    quick = [override for override in request.quick_run if not (is_reference and override.startswith("data."))]
    folder = f"output.model_dir={json.dumps(full.config.output.model_dir + '-debug')}"
    loaded = load_run_config(request.config_path, (*quick, folder, *request.overrides))
    loaded = with_recorded_rules(loaded, request.config_path)
    # The command line replaces overrides of the quick run; the notice shows those that remain.
    kept = [override for override in quick if override.partition("=")[0] not in overridden_keys(request.overrides)]
    return replace(loaded, notices=(f"--debug: a quick run{': ' if kept else ''}{' '.join(kept)}", *loaded.notices))


def _choose_folder(named: Path, is_synthetic: bool, request: TrainRequest) -> Path:
    folder = RunFolder(named)
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
        refuse_if_used(folder.path)  # its message names the launch that uses the folder
        raise
    return folder.path


def _check_free(folder: RunFolder, request: TrainRequest) -> None:
    """Raise OutputError if the folder holds a run that the request neither resumes nor overwrites."""
    if request.resume:
        resumed = find_resumed_run(request.resume_from, request.overrides).folder if request.resume_from else folder
        if resumed.path.resolve() == folder.path.resolve():
            return  # otherwise the run continues in another folder, which must be free
    if not request.overwrite:
        folder.check_free()


@contextmanager
def claimed_folder(ranks: Ranks, loaded: LoadedConfig, request: TrainRequest) -> Iterator[ClaimedFolder]:
    """Reserve the run folder of the settings for this launch during the block. Collective.

    Raises OutputError on all ranks if another launch uses it, or has finished a run in it since `load_settings`.
    """
    with claimed(ranks, RunFolder.of(loaded.config.output), request.takes_over) as folder:
        ranks.on_root(lambda: _check_free(folder, request))
        yield folder


def load_newest_checkpoint(folder: RunFolder, request: TrainRequest, ranks: Ranks) -> Checkpoint | None:
    """Return the checkpoint that a resumed run in `folder` continues from, and print its path. Root only.

    Returns None if the run has written neither a checkpoint nor a model yet: it then starts from scratch.

    Raises CheckpointError.
    """
    resumed = find_resumed_run(request.resume_from, ()) if request.resume_from else ResumedRun(folder)
    checkpoint = load_resumed(resumed, folder, ranks)
    if checkpoint is not None and "model.initial_weights" in overridden_keys(request.overrides):
        ranks.note(
            "model.initial_weights: has no effect with --resume, which uses the checkpoint's weights; leave it out"
        )
    return checkpoint


@contextmanager
def files_removed_on_error() -> Iterator[MadeHere]:
    """Yield a record of the files written before the training; an MpitrainError in the block undoes these writes."""
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
    """Create the run folder, write the files that are known before the training, and return the recorder. Collective.

    Raises OutputError or DataError on all ranks.
    """
    from_scratch = (request.overwrite or request.resume) and checkpoint is None
    weights = ranks.on_root(lambda: folder.weights_to_keep(prepared.config.model.initial_weights))
    if weights is not None:
        network = prepared.config.model.model_copy(update={"initial_weights": str(folder.first_weights)})
        prepared = replace(prepared, config=prepared.config.model_copy(update={"model": network}))
    ranks.on_root(lambda: prepare_folder(prepared, source, folder, from_scratch, weights))
    if not request.trust_code:  # --trust-code holds for this launch only
        ranks.on_root(lambda: remember_code_of(prepared.config.code_names.items(), [folder.config]))
    ranks.write_failures_to(folder.logs)
    prepared.store_run(folder.run)
    return begin_record(ranks, prepared, source, folder, checkpoint)


def prepare_folder(
    prepared: PreparedRun, source: SampleSource, folder: RunFolder, from_scratch: bool, weights: Path | None
) -> None:  # fmt: skip
    """Create the run folder, and write the settings and the statistics of the data. Root only. Raises OutputError.

    `from_scratch`: first remove the files of an earlier run. `weights`: a file of initial weights to copy there.
    """
    # Read before files are removed: the weights may be one of them.
    content = None if weights is None else weights.read_bytes()
    if from_scratch:
        folder.remove_run()
    folder.create()
    if content is not None:
        folder.keep_weights(content)
    folder.write_settings(render_yaml(prepared.config))
    summary = prepared.dataset.summary
    if summary.moments is not None:
        write_record(record_of_run(provenance_of(prepared.config), source, summary, summary.moments), folder.statistics)
