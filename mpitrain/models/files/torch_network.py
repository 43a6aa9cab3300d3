"""Reader of trained networks in TorchScript files: our model.pt, or a file of the C++ program.

F  input features      O  outputs      b  samples
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from pathlib import Path

import torch
from torch import nn

from mpitrain.config import shorten
from mpitrain.errors import ConfigError, DataError, one_line
from mpitrain.models.batch_norm import make_exportable
from mpitrain.models.build import build_model
from mpitrain.models.files.archive import StoredArchive, read_archive
from mpitrain.models.files.description import TEXTS, ModelDescription
from mpitrain.models.files.file_network import ICENET_PARAMETERS, StoredNetwork, describe_network
from mpitrain.models.files.record import RECORD, parse_record, store_engine, store_run
from mpitrain.models.files.torchscript import load_and_run_code, normalization_path
from mpitrain.models.files.zip_parts import ArchiveError
from mpitrain.models.icenet import IceNet

_ICENET_BUFFERS = {"input_mean", "input_std"}


def load_torch_network(path: Path, hidden_activation: str = "none", trust_code: bool = False) -> StoredNetwork:
    """Read a model.pt, or a file of the C++ program, which does not contain `hidden_activation`.

    Networks of this package and of the C++ program are rebuilt from their record and tensors: no code in the file is
    run. Any other network is code, which is run only if `trust_code`. Raises DataError if that code is not trusted, or
    the file is missing, damaged, not TorchScript or of unknown layout.
    """
    try:
        stored = _read(path)
        module = _rebuilt(stored, path, hidden_activation)
    except DataError:
        # A file of a newer torch, or with attributes that only its own code can use, is run if the user trusts it.
        if not trust_code or not path.is_file():
            raise
        return _run(path)
    if module is not None:
        return describe_network(module.eval(), stored.description, path)
    if trust_code:
        return _run(path)
    raise DataError(
        f"{path}: holds a network as code of its own, which would be run; give --trust-code if you trust its source"
    )


def read_torch_description(path: Path) -> ModelDescription:
    """Return the names and units in a model.pt; runs no code in it. Raises DataError as `load_torch_network`."""
    return _read(path).description


def _read(path: Path) -> StoredArchive:
    if not path.is_file():
        raise DataError(f"{path}: no such file; give the folder of a run, or its model.pt")
    try:
        return read_archive(path)
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DataError:
    reason = one_line((str(error).splitlines() or [type(error).__name__])[0])
    return DataError(
        f"{path}: is not a TorchScript file, or a damaged one ({reason}; pickled weights are not read, they can run "
        "code); give the model.pt of a run"
    )


def _rebuilt(stored: StoredArchive, path: Path, hidden_activation: str) -> nn.Module | None:
    """Return the network of a file that describes one of ours; None if only the file's code defines the network."""
    if stored.record is not None:
        try:
            return _built_from_record(stored.record, stored)
        except ArchiveError as error:
            raise _damaged(path, error) from error
    if not stored.has_forward and set(stored.tensors) == ICENET_PARAMETERS | _ICENET_BUFFERS:
        return _rebuilt_icenet(stored.tensors, path, hidden_activation)
    # If there are no tensors to read, the code may still create them.
    if not stored.has_forward or (stored.tensors and not _is_usable(stored.tensors)):
        raise _useless(path)
    return None


def _is_usable(names: Container[str]) -> bool:
    return "input_mean" in names and ("output_mean" in names or "fc2.bias" in names)


def _useless(path: Path) -> DataError:
    return DataError(f"{path}: holds no network with forward, input_mean and output_mean; give the model.pt of a run")


def _built_from_record(text: bytes, stored: StoredArchive) -> nn.Module | None:
    record = parse_record(text, stored.tensors)
    if record.is_code:
        return None
    try:
        # On `meta` no memory is allocated: the record may state any sizes.
        with torch.device("meta"):
            sizes = record.num_inputs, record.num_outputs
            model = build_model(record.model, *sizes, 0, getattr(torch, record.dtype), record.transforms)
    except (ConfigError, RuntimeError, ValueError, OverflowError) as error:
        raise ArchiveError(f"its record {RECORD} describes a network that cannot be built") from error
    _check_numbers(model, stored)
    model.load_state_dict(dict(stored.tensors), assign=True)
    store_engine(model, record.engine)
    store_run(model, record.run)
    return make_exportable(model)


def _check_numbers(model: nn.Module, stored: StoredArchive) -> None:
    expected = {name: (tensor.shape, tensor.dtype) for name, tensor in model.state_dict().items()}
    found = {name: (tensor.shape, tensor.dtype) for name, tensor in stored.tensors.items()}
    if expected != found:
        different = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        raise ArchiveError(f"its record {RECORD} describes another network: '{shorten(different[0])}' differs")


def _run(path: Path) -> StoredNetwork:
    """Return the network that the code in the file defines. The user must have trusted the file."""
    try:
        module: nn.Module = load_and_run_code(path)
    except (OSError, RuntimeError, ValueError) as error:
        raise _damaged(path, error) from error
    if not hasattr(module, "forward") or not _is_usable(module.state_dict()):
        raise _useless(path)
    description = ModelDescription(*(tuple(getattr(module, key, ())) for key in TEXTS))
    return describe_network(module.eval(), description, path)


def _rebuilt_icenet(state: Mapping[str, torch.Tensor], path: Path, hidden_activation: str) -> IceNet:
    """Return the network of an archive of the C++ program, which contains tensors without code."""
    model = _empty_icenet(state, path, hidden_activation)
    model.load_state_dict(dict(state), assign=True)
    if bool((model.input_std == 1).all()) and bool((model.input_mean == 0).all()):
        # The original program leaves the buffers at 0 and 1, and writes the moments to a file next to this one.
        side = normalization_path(path)
        if not side.is_file():
            raise DataError(f"{path}: holds no statistics of its inputs; put {side.name} into its folder")
        _set_moments(model, side)
    return model


def _empty_icenet(state: Mapping[str, torch.Tensor], path: Path, hidden_activation: str) -> IceNet:
    sizes = *state["fc1.weight"].shape[::-1], *state["fc2.weight"].shape[::-1]
    is_chain = len(sizes) == 4 and sizes[1] == sizes[2] and min(sizes) > 0
    if is_chain and state["fc1.weight"].is_floating_point():
        inputs, hidden, _, outputs = sizes
        with torch.device("meta"):
            model = IceNet(inputs, hidden, outputs, hidden_activation).to(state["fc1.weight"].dtype)
        if all((state[name].shape, state[name].dtype) == (t.shape, t.dtype) for name, t in model.state_dict().items()):
            return model
    raise DataError(f"{path}: its layers do not fit each other; give the model.pt of a run")


def _set_moments(model: IceNet, side: Path) -> None:
    try:
        moments = read_archive(side).tensors
    except (OSError, ValueError) as error:
        raise DataError(f"{side}: is not a TorchScript file, or a damaged one; copy it again") from error
    if any(name not in moments or moments[name].shape != model.input_mean.shape for name in ("0", "1")):
        raise DataError(
            f"{side}: holds no mean and standard deviation of {model.input_mean.numel()} inputs; copy it again"
        )
    with torch.no_grad():
        model.set_normalization(moments["0"], moments["1"])
