"""Reader of trained networks: our model.safetensors or model.pt, or a file of the C++ program.

F  input features      O  outputs      b  samples
"""

from __future__ import annotations

from pathlib import Path

from mpitrain.comm import require_torch
from mpitrain.models.files.description import ModelDescription
from mpitrain.models.files.file_network import StoredNetwork, describe_network
from mpitrain.models.files.file_network import accepts_fields as accepts_fields
from mpitrain.models.files.own_file import SUFFIX, read_own_description, read_own_model


def load_network(path: Path, hidden_activation: str = "none", trust_code: bool = False) -> StoredNetwork:
    """Read a model.safetensors, a model.pt, or a file of the C++ program, which does not contain `hidden_activation`.

    Networks of this package and of the C++ program are rebuilt from their record and tensors: no code in the file is
    run. Any other network is code, which is run only if `trust_code`. Raises DataError if that code is not trusted, or
    the file is missing, damaged or of unknown layout; MissingDependencyError if torch is needed and not installed.
    """
    if path.suffix == SUFFIX:
        stored = read_own_model(path, trust_code)
        return describe_network(stored.model, stored.description, stored.path)
    require_torch(f"{path}: a TorchScript file")
    from mpitrain.models.files.torch_network import load_torch_network

    return load_torch_network(path, hidden_activation, trust_code)


def read_description(path: Path) -> ModelDescription:
    """Return the names and units in a model file; runs no code in it. Raises as `load_network`."""
    if path.suffix == SUFFIX:
        return read_own_description(path)
    require_torch(f"{path}: a TorchScript file")
    from mpitrain.models.files.torch_network import read_torch_description

    return read_torch_description(path)
