"""A run's own model file: safetensors, with the description of the network as JSON in the file's header.

The texts of the header are `network` (see `NetworkRecord`), `description` (names, units, ranges) and `sha256`, the hash
of the tensors and the other two texts, by which a damaged file is detected. Reading runs no code in the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from mpitrain.comm import Array, set_values
from mpitrain.durable_files import write_durably
from mpitrain.errors import DataError, one_line, writing
from mpitrain.json_text import parse_json
from mpitrain.models.dense import DenseModel
from mpitrain.models.files.description import TEXTS, ModelDescription, parse_description
from mpitrain.models.files.named_tensors import dtype_name, from_safetensors, sha256, to_safetensors, weights_sha256
from mpitrain.models.files.record import NetworkRecord, parse_record, record_of, store_engine, store_run
from mpitrain.models.kinds import empty_network, exportable

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class OwnModel:
    """Contents of a run's own file: a `DenseModel` or a torch module in evaluation mode, and its description."""

    path: Path
    model: Any
    description: ModelDescription


def write_own_model(model: Any, path: Path, description: ModelDescription) -> bool:
    """Write a model that was built from settings, whole or not at all. Raises OutputError.

    Returns False, and writes nothing, if the model has no record (see `record_of`).
    """
    state = model.state_dict()
    outputs = state.get("output_mean", state.get("fc2.bias"))
    mean = state.get("input_mean")
    record = None if mean is None or outputs is None else record_of(model, len(mean), len(outputs), mean.dtype)
    if record is None:
        return False
    texts = {"network": record.model_dump_json(), "description": json.dumps(asdict(description))}
    content = to_safetensors(state, texts | {"sha256": _digest_of(state, texts)})
    with writing(path, "check the folder's permissions and space"):
        write_durably(path, content)
    return True


def _digest_of(state: Mapping[str, Array], texts: Mapping[str, str]) -> str:
    of_tensors = weights_sha256(dict(sorted(state.items())))
    return sha256("\n".join([of_tensors, texts["network"], texts["description"]]).encode())


def read_own_model(path: Path, trust_code: bool = False) -> OwnModel:
    """Read a `model.safetensors`, a file that `write_own_model` wrote.

    Parameters
    ----------
    path : Path
        The file.
    trust_code : bool, default False
        Run the code of a user's own network (`package.module:callable`), which builds it. No other code is run.

    Returns
    -------
    OwnModel
        The path, the description, and the model: a `DenseModel` for a chain of dense layers, otherwise a torch module
        on the CPU in evaluation mode, with outputs in physical units.

    Raises
    ------
    DataError
        The file is missing or damaged, or needs code that is not trusted.
    ConfigError
        The network cannot be built: its code fails, or it does not fit into memory.
    MissingDependencyError
        The network is not a chain of dense layers, and torch is not installed.

    Notes
    -----
    Not collective. The tensors and texts are compared with the SHA-256 in the header before the network is built.
    """
    texts, tensors = _read(path)
    try:
        record = parse_record(texts["network"].encode(), tensors)
        description = _description_in(texts["description"])
    except (KeyError, ValueError) as error:
        raise _damaged(path, error) from error
    if record.is_code and not trust_code:
        raise DataError(
            f"{path}: holds the weights of {record.model.name}, which is code that would be run; give --trust-code "
            "if you trust its source"
        )
    try:
        return OwnModel(path, _built(record, tensors), description)
    except (KeyError, RuntimeError, ValueError) as error:
        raise _damaged(path, error) from error


def read_own_description(path: Path) -> ModelDescription:
    """Return the names and units in a run's own file; runs no code. Raises DataError if it is missing or damaged."""
    try:
        return _description_in(_read(path)[0]["description"])
    except (KeyError, ValueError) as error:
        raise _damaged(path, error) from error


def contents_sha256(path: Path) -> str:
    """Return one hash of the contents of a `model.safetensors`, without the identity of the run. Runs no code.

    Parameters
    ----------
    path : Path
        The file.

    Returns
    -------
    str
        SHA-256 in hexadecimal of all tensors (names, shapes, dtypes, bytes), the record of the network and the
        description. It does not depend on the launch that wrote the file.

    Raises
    ------
    DataError
        The file is missing or damaged.
    """
    texts, tensors = _read(path)
    try:
        network = json.dumps({**parse_json(texts["network"]), "run": None}, sort_keys=True)
        return _digest_of(tensors, {**texts, "network": network})
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error


def _read(path: Path) -> tuple[dict[str, str], dict[str, Array]]:
    if not path.is_file():
        raise DataError(f"{path}: no such file; give the folder of a run, or its model.safetensors or model.pt")
    try:
        with safe_open(str(path), framework="np") as file:
            texts = dict(file.metadata() or {})
        tensors = from_safetensors(path.read_bytes())
        is_whole = texts.get("sha256") == _digest_of(tensors, texts)
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise _damaged(path, error) from error
    if not is_whole:
        raise _damaged(path, ValueError("its contents differ from their hash"))
    return texts, tensors


def _description_in(text: str) -> ModelDescription:
    known = parse_json(text)
    if not isinstance(known, dict) or not known.keys() <= {*TEXTS}:
        raise ValueError("its description is invalid")
    return parse_description(known)


def _built(record: NetworkRecord, tensors: Mapping[str, Array]) -> Any:
    sizes = record.num_inputs, record.num_outputs
    model = empty_network(record.model, *sizes, record.dtype, record.transforms)
    state = model.state_dict()
    if _kinds_of(state) != _kinds_of(tensors):
        raise ValueError("its record describes another network")
    for name, own in state.items():
        set_values(own, tensors[name])
    store_engine(model, record.engine)
    store_run(model, record.run)
    return model if isinstance(model, DenseModel) else exportable(model)


def _kinds_of(tensors: Mapping[str, Array]) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tuple(one.shape), dtype_name(one)) for name, one in tensors.items()}


def _damaged(path: Path, error: Exception) -> DataError:
    reason = one_line((str(error).splitlines() or [type(error).__name__])[0])
    return DataError(f"{path}: is not a model of a run, or a damaged one ({reason}); copy it again")
