"""Load the network of a run folder with the weights of one of its checkpoints, and describe its variables.

F  input features      O  outputs
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpitrain.config import RunConfig, VariablesSection
from mpitrain.data import SampleSource
from mpitrain.data.selection.settings import default_or_given_names
from mpitrain.errors import CheckpointError, DataError, MissingDependencyError, UserError
from mpitrain.models import ModelDescription, Network, read_own_model
from mpitrain.models.files.record import store_engine
from mpitrain.models.files.stored_network import read_description
from mpitrain.models.kinds import empty_network
from mpitrain.train import (
    RUN,
    Checkpoint,
    CheckpointStore,
    RunFolder,
    load_folder_settings,
    load_named_weights,
    named_weights,
)
from mpitrain.train.checkpoint.store import load_checkpoint
from mpitrain.train.state import load_statistics, without_prefix


@dataclass(frozen=True)
class RunWeights:
    """A network in evaluation mode, and a text on the origin of its weights.

    `best_epoch`, `best_loss`: of the run so far; None without held-out samples. Epoch 0 is before the first step.
    """

    model: Any
    origin: str
    notices: tuple[str, ...] = ()
    best_epoch: int | None = None
    best_loss: float | None = None


def load_run(folder: Path, trust_code: bool) -> tuple[RunFolder, RunConfig]:
    """Return a run's folder and its settings.

    Raises UserError if `folder` is not a run folder, and the errors of `load_folder_settings`.
    """
    run = RunFolder(folder)
    if not run.config.is_file():
        raise UserError(f"{folder}: holds no run (no {run.config.name}); give the folder of a run")
    config = load_folder_settings(run, trust_code).config
    return RunFolder(folder, config.output.model_file), config


def load_weights(
    run: RunFolder, network: Network, exported: str, asked: str | None = None, checkpoint: str | None = None,
    trust_code: bool = False,
) -> RunWeights:  # fmt: skip
    """Build the run's `network`, whose code must be trusted, with the requested weights.

    `checkpoint`: latest (None), best, or a folder. `asked`: best or final; None: final if a checkpoint is named,
    otherwise `exported` (best or final by the settings; final if there are no best weights). A run without checkpoints
    gives the model in its folder; `trust_code` allows that model to run its own code. Raises CheckpointError if there
    is no checkpoint, or if it lacks the best weights that are requested.
    """
    if asked is checkpoint is None and not CheckpointStore(run.checkpoints).holds_any() and run.own_model.is_file():
        return RunWeights(read_own_model(run.own_model, trust_code).model, f"weights of {run.own_model}")
    latest, notices = _latest(run, checkpoint)
    note = run.note_of_another_run(latest.path, latest.state.get(RUN))
    notices = notices if note is None else (*notices, note)
    best = without_prefix(latest.tensors, "best.")
    if not best and "best" in (checkpoint, asked):
        other = "latest" if checkpoint == "best" else "--weights final"
        raise CheckpointError(f"{latest.path}: holds no best weights (the run has no validation); give {other}")
    wanted = asked or (exported if checkpoint is None else "final")
    if checkpoint == "best" or (best and wanted == "best"):
        chosen, origin = best, "best weights so far" if checkpoint == "best" else "best weights"
    else:
        average = without_prefix(latest.tensors, "average.")
        chosen = without_prefix(latest.tensors, "model.") | average
        origin = "average of the weights" if average else "final weights"
    model = _build(run, network, latest)
    missing = set(named_weights(model)) - set(chosen)
    if missing:
        raise CheckpointError(f"{latest.path}: lacks '{min(missing)}' of the network of {run.config}; give another one")
    load_named_weights(model, chosen)
    store_engine(model, latest.settings.get("training.engine"))
    step = latest.state.get("global_step", "?")
    of_best = latest.state.get("best_epoch"), latest.state.get("best_loss")
    return RunWeights(model, f"{origin} of {latest.path} (step {step})", notices, *of_best)


def describe_run(
    run: RunFolder, variables: VariablesSection, model: Any, source: SampleSource | None
) -> ModelDescription:
    """Return names and units: from the run's model.pt, otherwise from its data, otherwise from its settings."""
    num_inputs = len(model.get_buffer("input_mean"))
    if run.stored_model.is_file():
        try:
            found = read_description(run.stored_model)
        except (DataError, MissingDependencyError):
            found = ModelDescription()
        if len(found.input_names) == num_inputs:
            return found
    if source is not None and len(source.input_names) == num_inputs:
        units = [
            tuple(source.units.get(name, "") for name in names) for names in (source.input_names, source.target_names)
        ]
        return ModelDescription(source.input_names, source.target_names, *units)
    return ModelDescription(*default_or_given_names(variables))


def _latest(run: RunFolder, checkpoint: str | None) -> tuple[Checkpoint, tuple[str, ...]]:
    if checkpoint in (None, "latest", "best"):
        found, notices = CheckpointStore(run.checkpoints).load_latest()
        return found, tuple(notices)
    path = Path(str(checkpoint))
    path = path if path.exists() else run.checkpoints / path
    if not path.is_dir():
        raise CheckpointError(
            f"--checkpoint {checkpoint}: no such folder; give latest, best or a folder of {run.checkpoints}"
        )
    return load_checkpoint(path), ()


def _build(run: RunFolder, network: Network, checkpoint: Checkpoint) -> Any:
    state = without_prefix(checkpoint.tensors, "model.")
    if "input_mean" not in state:
        # A checkpoint of best weights holds only the trained tensors; the statistics are the same in all others.
        state = without_prefix(CheckpointStore(run.checkpoints).load_latest()[0].tensors, "model.")
    outputs = state.get("output_mean", state.get("fc2.bias"))
    if outputs is None:
        raise CheckpointError(f"{run.checkpoints}: holds no statistics of the targets; train again")
    mean = state["input_mean"]
    section = network.model_copy(update={"initial_weights": None})
    by_name = section.transforms
    transforms = (
        [by_name.get(name) for name in checkpoint.settings.get("variables.output_variables", ())] if by_name else ()
    )
    dtype = str(mean.dtype).removeprefix("torch.")
    if dtype not in ("float32", "float64"):
        raise CheckpointError(f"{run.checkpoints}: holds statistics of type {dtype}; train again")
    model = empty_network(section, len(mean), len(outputs), dtype, transforms)
    load_statistics(model, state)
    return model
