"""The network of a run folder with the weights of one of its checkpoints, and the data that it was trained on.

F  input features      O  outputs
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from mpitrain.config import RunConfig, load_run_config
from mpitrain.config.model import target_transforms
from mpitrain.data.selection.names import CICE_INPUTS, CICE_TARGET
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import CheckpointError, DataError, UserError
from mpitrain.inference.predictor import CHUNK_BYTES, selection_to_predict
from mpitrain.models.build import build_model
from mpitrain.models.files.record import remember_engine
from mpitrain.models.files.stored_network import read_description
from mpitrain.models.files.torchscript import ModelDescription
from mpitrain.train.checkpoint.store import Checkpoint, CheckpointStore, load_checkpoint
from mpitrain.train.run_folder import RunFolder
from mpitrain.train.state import NORMALIZATION_BUFFERS, load_named_weights, named_weights, without_prefix


@dataclass(frozen=True)
class RunWeights:
    """A network in evaluation mode, and in words where its weights come from."""

    model: nn.Module
    origin: str
    notices: tuple[str, ...] = ()


def load_run(folder: Path, trust_code: bool) -> tuple[RunFolder, RunConfig]:
    """Return a run's folder and its settings. Raises UserError as `refuse_code`, and where there is no run."""
    run = RunFolder(folder)
    if not run.config.is_file():
        raise UserError(f"{folder}: holds no run (no {run.config.name}); give the folder of a run")
    config = load_run_config(run.config).config
    refuse_code(run, config, trust_code)
    return RunFolder(folder, config.output.model_file), config


def refuse_code(run: RunFolder, config: RunConfig, trust_code: bool) -> None:
    """Raise UserError where the network that a run's settings name is a user's own, unless `trust_code`.

    A run folder may come from anywhere, and the name of a module is code: building the network imports it.
    """
    name = str(config.network.name)
    if ":" in name and not trust_code:
        raise UserError(
            f"{run.config}: model.name={name} names code, which would be run; give --trust-code if you trust its source"
        )


def load_weights(run: RunFolder, config: RunConfig, weights: str | None, checkpoint: str | None) -> RunWeights:
    """Build the run's network with the weights that are asked for.

    `checkpoint` latest (None), best, or a folder; `weights` best or final, None: as `output.weights` says, or final
    where a checkpoint is named. Raises CheckpointError where there is none, or it has no best weights.
    """
    latest, notices = _latest(run, checkpoint)
    best = without_prefix(latest.tensors, "best.")
    if not best and "best" in (checkpoint, weights):
        other = "latest" if checkpoint == "best" else "--weights final"
        raise CheckpointError(f"{latest.path}: holds no best weights (the run has no validation); give {other}")
    wanted = weights or (config.exported_weights if checkpoint is None else "final")
    if checkpoint == "best" or (best and wanted == "best"):
        chosen, origin = best, "best weights so far" if checkpoint == "best" else "best weights"
    else:
        chosen, origin = without_prefix(latest.tensors, "model."), "final weights"
    model = _build(run, config, latest)
    missing = set(named_weights(model)) - set(chosen)
    if missing:
        raise CheckpointError(f"{latest.path}: lacks '{min(missing)}' of the network of {run.config}; give another one")
    load_named_weights(model, chosen)
    remember_engine(model, latest.settings.get("training.engine"))
    step = latest.state.get("global_step", "?")
    return RunWeights(model.eval(), f"{origin} of {latest.path} (step {step})", notices)


def describe_run(run: RunFolder, config: RunConfig, model: nn.Module, source: SampleSource | None) -> ModelDescription:
    """Return names and units: of the run's model.pt, else of its data, else of its settings."""
    num_inputs = model.get_buffer("input_mean").numel()
    if run.model.is_file():
        try:
            found = read_description(run.model)
        except DataError:
            found = ModelDescription()
        if len(found.input_names) == num_inputs:
            return found
    if source is not None and len(source.input_names) == num_inputs:
        units = [
            tuple(source.units.get(name, "") for name in names) for names in (source.input_names, source.target_names)
        ]
        return ModelDescription(source.input_names, source.target_names, *units)
    variables = config.variables
    return ModelDescription(
        tuple(variables.input_variables or CICE_INPUTS), tuple(variables.output_variables or (CICE_TARGET,))
    )


def open_run_data(run: RunFolder, config: RunConfig) -> SampleSource | None:
    """Return the data that the run was trained on, None where it is no longer there."""
    return open_data(config, config.data.entries or [str(run.synthetic_history)])


def open_data(config: RunConfig, files: Sequence[str]) -> SampleSource | None:
    """Return what a run's settings select of `files`, None where they cannot be read any more."""
    try:
        return open_source(selection_to_predict(config, files), CHUNK_BYTES)
    except DataError:
        return None


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


def _build(run: RunFolder, config: RunConfig, checkpoint: Checkpoint) -> nn.Module:
    state = without_prefix(checkpoint.tensors, "model.")
    if "input_mean" not in state:
        # A checkpoint of best weights holds what training changes only; the statistics are any other one's.
        state = without_prefix(CheckpointStore(run.checkpoints).load_latest()[0].tensors, "model.")
    outputs = state.get("output_mean", state.get("fc2.bias"))
    if outputs is None:
        raise CheckpointError(f"{run.checkpoints}: holds no statistics of the targets; train again")
    mean = state["input_mean"]
    section = config.network.model_copy(update={"initial_weights": None})
    by_name = target_transforms(section)
    transforms = [by_name.get(name) for name in checkpoint.settings["variables.output_variables"]] if by_name else ()
    model = build_model(section, mean.numel(), outputs.numel(), config.seed, mean.dtype, transforms)
    with torch.no_grad():
        for name in NORMALIZATION_BUFFERS:
            if name in state:
                model.get_buffer(name).copy_(state[name])
    return model
