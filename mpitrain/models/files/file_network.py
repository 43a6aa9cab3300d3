"""Trained network from a file, ready to predict.

F  input features      O  outputs      b  samples
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm import host_array, require_torch
from mpitrain.config import TargetTransform
from mpitrain.models.dense import DenseModel
from mpitrain.models.files.description import ModelDescription
from mpitrain.models.files.record import engine_of, grid_of, learnt_transforms, run_of

ICENET_PARAMETERS = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
_PROBED_FIELD = (32, 32)
# What torch's layers raise, in Python and in TorchScript, for a wrong number of dimensions or features.
INPUT_SHAPE_ERRORS = (RuntimeError, ValueError, TypeError, IndexError)


@dataclass(frozen=True)
class StoredNetwork:
    """A trained network from a file, in evaluation mode; inputs and outputs are in physical units.

    Attributes
    ----------
    model : DenseModel or torch.nn.Module
        Maps inputs (b, F) or (b, F, H, W) to outputs (b, O) or (b, O, H, W).
    description : ModelDescription
        Names, units and ranges in the file.
    is_icenet : bool
        Whether it has the parameters of the C++ program's network, and no others.
    input_mean : ndarray, shape (F,)
        Mean of the training samples; its dtype is that of inputs and outputs.
    num_outputs : int
        The number of outputs O.
    sha256 : str
        SHA-256 of the file, in hexadecimal.
    engine : str or None
        The engine that trained the network, None if the file does not state it.
    """

    model: Any
    description: ModelDescription
    is_icenet: bool
    input_mean: npt.NDArray[Any]
    num_outputs: int
    sha256: str
    engine: str | None = None

    @functools.cached_property
    def module(self) -> Any:
        """The network as a torch module. Raises MissingDependencyError without torch."""
        if not isinstance(self.model, DenseModel):
            return self.model
        require_torch("this network as a torch module")
        from mpitrain.models.dense_module import file_module_of

        return file_module_of(self.model)

    @property
    def transforms(self) -> Sequence[TargetTransform | None]:
        """The transform of each target, None for no transform; empty if no target is transformed."""
        return learnt_transforms(self.model)

    @property
    def run(self) -> str | None:
        """The identity of the launch that trained the network, None if the file does not state it."""
        return run_of(self.model)

    @property
    def num_inputs(self) -> int:
        """The number of inputs F."""
        return len(self.input_mean)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of inputs and outputs."""
        return self.input_mean.dtype


def describe_network(model: Any, description: ModelDescription, path: Path) -> StoredNetwork:
    """Return the `StoredNetwork` of a model that was read from `path`."""
    state = model.state_dict()
    is_icenet = {name for name, _ in model.named_parameters()} == ICENET_PARAMETERS
    outputs = state["fc2.bias"] if is_icenet else state["output_mean"]
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    mean = host_array(state["input_mean"])
    return StoredNetwork(model, description, is_icenet, mean, outputs.shape[0], sha256, engine_of(model))


def accepts_fields(network: StoredNetwork) -> bool:
    """Return True if a network accepts whole fields but not points; it is run on both to find out."""
    if isinstance(network.model, DenseModel):
        return False
    import torch

    point = torch.from_numpy(network.input_mean[None])
    with torch.no_grad():
        try:
            network.module(point)
        except INPUT_SHAPE_ERRORS:
            try:
                network.module(point[..., None, None].expand(-1, -1, *(grid_of(network.model) or _PROBED_FIELD)))
            except INPUT_SHAPE_ERRORS:
                return False
            return True
    return False
