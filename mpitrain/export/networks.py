"""The network that an export is asked for: a run's, or those of several runs as one.

b  samples      F  input features      H, W  rows and columns of a field
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from mpitrain.config import RunConfig
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import UserError
from mpitrain.export.request import ExportRequest, Say
from mpitrain.export.samples import sample_inputs
from mpitrain.inference.run_weights import RunWeights, describe_run, load_run, load_weights, open_run_data
from mpitrain.models.ensemble import EnsembleNetwork
from mpitrain.models.files.torchscript import ModelDescription
from mpitrain.train.run_folder import RunFolder


@dataclass(frozen=True)
class WantedNetwork:
    """A network, or an `EnsembleNetwork`, and its (first) run.

    `inputs` (b, F) or (b, F, H, W) are samples to compare answers for, `what` says which; `origins` names the weights
    of each network.
    """

    model: nn.Module
    first: LoadedRun
    inputs: torch.Tensor
    what: str
    origins: tuple[str, ...]

    @property
    def is_ensemble(self) -> bool:
        """Whether there are several networks."""
        return isinstance(self.model, EnsembleNetwork)

    @property
    def members(self) -> tuple[nn.Module, ...]:
        """The networks; one, where it is no ensemble."""
        return tuple(self.model.networks) if isinstance(self.model, EnsembleNetwork) else (self.model,)

    @property
    def origin(self) -> str:
        """The weights in one line."""
        more = f", and of {len(self.origins) - 1} other runs: mean and spread" if self.is_ensemble else ""
        return f"{self.origins[0]}{more}"


@dataclass(frozen=True)
class LoadedRun:
    """One run's folder, settings, network and data, and what inputs and outputs are called."""

    run: RunFolder
    config: RunConfig
    weights: RunWeights
    source: SampleSource | None
    description: ModelDescription

    @property
    def variables(self) -> tuple[object, ...]:
        """What the members of an ensemble must have in common."""
        state, names = self.weights.model.state_dict(), self.description
        outputs = state.get("output_mean", state.get("fc2.bias"))
        sizes = (state["input_mean"].shape, None if outputs is None else outputs.shape, state["input_mean"].dtype)
        return (*sizes, self.config.data.samples, tuple(names.input_names), tuple(names.target_names))

    @property
    def units(self) -> tuple[str, ...]:
        """Those of inputs and outputs, "" where they are not known."""
        return (*self.description.input_units, *self.description.target_units)


def load_wanted(request: ExportRequest, say: Say) -> WantedNetwork:
    """Return what `request` names; `say` what its checkpoints have to say. Raises UserError or CheckpointError."""
    first, *others = (_load(folder, request) for folder in (request.run, *request.members))
    for other in others:
        units_differ = any(a and b and a != b for a, b in zip(first.units, other.units, strict=False))
        if other.variables != first.variables or units_differ:
            raise UserError(
                f"{other.run.path}: has other inputs or outputs than {request.run}, in another order or other units; "
                "an ensemble needs the same ones"
            )
    for one in (first, *others):
        for line in one.weights.notices:
            say(f"note: {line}")
    models = [one.weights.model for one in (first, *others)]
    inputs, what = sample_inputs(models[0], first.source, first.config)
    model = EnsembleNetwork(models).eval() if others else models[0]
    origins = tuple(one.weights.origin for one in (first, *others))
    return WantedNetwork(model, first, inputs, what, origins)


def _load(folder: Path, request: ExportRequest) -> LoadedRun:
    run, config = load_run(folder, request.trust_code)
    weights = load_weights(run, config, request.weights, request.checkpoint)
    source = open_run_data(run, config)
    return LoadedRun(run, config, weights, source, describe_run(run, config, weights.model, source))
