"""A trained network as it lies on the disk, ready to predict: our model.pt, or what the C++ program saved.

F  input features      O  outputs      b  samples
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from mpitrain.errors import DataError
from mpitrain.models.files.torchscript import ModelDescription, load_model, normalization_path
from mpitrain.models.icenet import IceNet

_ICENET_PARAMETERS = {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
_PROBED_FIELD = (32, 32)


@dataclass(frozen=True)
class StoredNetwork:
    """A network in evaluation mode: physical units in, (b, F) or (b, F, H, W), and physical units out.

    `is_icenet`: whether it is the C++ program's network. `sha256` is the hash of the file it came from.
    """

    module: nn.Module
    description: ModelDescription
    is_icenet: bool
    input_mean: torch.Tensor
    num_outputs: int
    sha256: str

    @property
    def num_inputs(self) -> int:
        """F."""
        return self.input_mean.numel()

    @property
    def dtype(self) -> torch.dtype:
        """The type of inputs and outputs."""
        return self.input_mean.dtype


def load_network(path: Path, hidden_activation: str = "none") -> StoredNetwork:
    """Read a model.pt, or a file of the C++ program (whose `hidden_activation` it does not hold). Runs no pickle.

    Raises DataError where the file is missing, damaged, no TorchScript or of no known layout.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; give the folder of a run, or its model.pt")
    try:
        module: nn.Module = load_model(path)
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(
            f"{path}: is no TorchScript file, or a damaged one (pickled weights are not read, they can run code); give "
            "the model.pt of a run"
        ) from error
    names = {name for name, _ in module.named_parameters()}
    if not hasattr(module, "forward") and names == _ICENET_PARAMETERS:
        module = _rebuilt_icenet(module, path, hidden_activation)
    if not hasattr(module, "forward") or "input_mean" not in dict(module.named_buffers()):
        raise DataError(f"{path}: holds no network with forward and input_mean; give the model.pt of a run")
    return describe_network(module.eval(), _description(module), path)


def describe_network(module: nn.Module, description: ModelDescription, path: Path) -> StoredNetwork:
    """Return what is known of a network that `path` holds."""
    state = module.state_dict()
    is_icenet = {name for name, _ in module.named_parameters()} == _ICENET_PARAMETERS
    outputs = state["fc2.bias"] if is_icenet else state["output_mean"]
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return StoredNetwork(module, description, is_icenet, state["input_mean"], outputs.numel(), sha256)


@torch.no_grad()
def takes_fields(network: StoredNetwork) -> bool:
    """Tell, by trying, whether a network takes whole fields rather than points; points where it takes both."""
    point = network.input_mean[None]
    try:
        network.module(point)
    except RuntimeError:
        try:
            network.module(point[..., None, None].expand(-1, -1, *_PROBED_FIELD))
        except RuntimeError:
            return False
        return True
    return False


def _description(module: nn.Module) -> ModelDescription:
    keys = ("input_names", "target_names", "input_units", "target_units")
    return ModelDescription(*(tuple(getattr(module, key, ())) for key in keys))


def _rebuilt_icenet(stored: nn.Module, path: Path, hidden_activation: str) -> IceNet:
    """Return the network of a C++ archive, which holds numbers without the code to use them."""
    state = stored.state_dict()
    (hidden, inputs), outputs = state["fc1.weight"].shape, state["fc2.weight"].shape[0]
    model = IceNet(inputs, hidden, outputs, hidden_activation).to(state["fc1.weight"].dtype)
    model.load_state_dict(state)
    if bool((model.input_std == 1).all()) and bool((model.input_mean == 0).all()):
        # The original program leaves its buffers at 0 and 1, and the true moments beside the file.
        side = normalization_path(path)
        if not side.is_file():
            raise DataError(f"{path}: holds no statistics of its inputs; put {side.name} into its folder")
        try:
            moments = load_model(side).state_dict()
        except (OSError, RuntimeError, ValueError) as error:
            raise DataError(f"{side}: is no TorchScript file, or a damaged one; copy it again") from error
        with torch.no_grad():
            model.set_normalization(moments["0"], moments["1"])
    return model
