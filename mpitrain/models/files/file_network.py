"""A trained network that a file holds, ready to predict.

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
# What torch's layers raise, in Python and in TorchScript, for inputs of another number of axes or features.
_PROBED_FIELD = (32, 32)
UNFITTING_INPUTS = (RuntimeError, ValueError, TypeError, IndexError)


@dataclass(frozen=True)
class StoredNetwork:
    """A network in evaluation mode: physical units in, (b, F) or (b, F, H, W), and physical units out.

    `model` is a `DenseModel` or a module of torch's. `is_icenet`: whether it is the C++ program's network. `input_mean`
    (F,) is of its type. `sha256` is the hash of its file, `engine` what trained it, where the file says so.
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
        """The network as a module of torch's. Raises MissingDependencyError without torch."""
        if not isinstance(self.model, DenseModel):
            return self.model
        require_torch("this network in this way of computing it")
        from mpitrain.models.dense_module import file_module_of

        return file_module_of(self.model)

    @property
    def transforms(self) -> Sequence[TargetTransform | None]:
        """What it learnt in place of each output, None for an output itself; () where that is so for all."""
        return learnt_transforms(self.model)

    @property
    def run(self) -> str | None:
        """The identity of the launch that trained it, None where the file does not say."""
        return run_of(self.model)

    @property
    def num_inputs(self) -> int:
        """F."""
        return len(self.input_mean)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of inputs and outputs."""
        return self.input_mean.dtype


def describe_network(model: Any, description: ModelDescription, path: Path) -> StoredNetwork:
    """Return what is known of a network that `path` holds."""
    state = model.state_dict()
    is_icenet = {name for name, _ in model.named_parameters()} == ICENET_PARAMETERS
    outputs = state["fc2.bias"] if is_icenet else state["output_mean"]
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    mean = host_array(state["input_mean"])
    return StoredNetwork(model, description, is_icenet, mean, outputs.shape[0], sha256, engine_of(model))


def takes_fields(network: StoredNetwork) -> bool:
    """Tell, by trying, whether a network takes whole fields rather than points; points where it takes both."""
    if isinstance(network.model, DenseModel):
        return False
    import torch

    point = torch.from_numpy(network.input_mean[None])
    with torch.no_grad():
        try:
            network.module(point)
        except UNFITTING_INPUTS:
            try:
                network.module(point[..., None, None].expand(-1, -1, *(grid_of(network.model) or _PROBED_FIELD)))
            except UNFITTING_INPUTS:
                return False
            return True
    return False
