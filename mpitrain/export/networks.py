"""The network that an export is asked for: a run's, or those of several runs as one.

b  samples      F  input features      H, W  rows and columns of a field
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from mpitrain.config import RunConfig
from mpitrain.data.selection.source import SampleSource
from mpitrain.errors import UserError
from mpitrain.export.request import ExportRequest, Say
from mpitrain.export.samples import sample_inputs
from mpitrain.inference.run_weights import describe_run, load_run, load_weights, open_run_data
from mpitrain.models.ensemble import EnsembleNetwork
from mpitrain.models.files.torchscript import ModelDescription


@dataclass(frozen=True)
class WantedNetwork:
    """A network, or an `EnsembleNetwork`, with settings, data and description of its (first) run.

    `inputs` (b, F) or (b, F, H, W) are samples to compare answers for, `what` says which; `origin` names the weights.
    """

    model: nn.Module
    config: RunConfig
    source: SampleSource | None
    description: ModelDescription
    inputs: torch.Tensor
    what: str
    origin: str

    @property
    def is_ensemble(self) -> bool:
        """Whether there are several networks."""
        return isinstance(self.model, EnsembleNetwork)


def load_wanted(request: ExportRequest, say: Say) -> WantedNetwork:
    """Return what `request` names; `say` what its checkpoints have to say. Raises UserError or CheckpointError."""
    run, config = load_run(request.run, request.trust_code)
    weights = load_weights(run, config, request.weights, request.checkpoint)
    models, notices = [weights.model], list(weights.notices)
    for folder in request.members:
        other, other_config = load_run(folder, request.trust_code)
        found = load_weights(other, other_config, request.weights, request.checkpoint)
        if _sizes(found.model, other_config) != _sizes(weights.model, config):
            raise UserError(
                f"{folder}: has other inputs or outputs than {request.run}; an ensemble needs the same ones"
            )
        models.append(found.model)
        notices += found.notices
    for line in notices:
        say(f"note: {line}")
    source = open_run_data(run, config)
    inputs, what = sample_inputs(weights.model, source, config)
    description = describe_run(run, config, weights.model, source)
    more = f", and of {len(models) - 1} other runs: mean and spread" if len(models) > 1 else ""
    model = weights.model if len(models) == 1 else EnsembleNetwork(models).eval()
    return WantedNetwork(model, config, source, description, inputs, what, f"{weights.origin}{more}")


def _sizes(model: nn.Module, config: RunConfig) -> tuple[int, torch.Size, torch.dtype, str]:
    state = model.state_dict()
    mean, outputs = state["input_mean"], state.get("output_mean", state.get("fc2.bias"))
    return mean.numel(), mean.shape if outputs is None else outputs.shape, mean.dtype, config.data.samples
