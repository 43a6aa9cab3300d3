"""The run's own model file, made by a stranger with hashes that fit: refused in one line, or read as plain texts."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import build_icenet
from safetensors import safe_open

from mpitrain.errors import DataError
from mpitrain.models.files.description import ModelDescription
from mpitrain.models.files.named_tensors import from_safetensors, to_safetensors
from mpitrain.models.files.own_file import _digest_of, read_own_model, write_own_model
from mpitrain.models.files.stored_network import load_network

NESTED = "[" * 100_000
ESCAPES = "\x1b[31m\n*/ int evil; /*"
KNOWN: dict[str, Any] = {
    "input_names": ["a", "b", "c"], "target_names": ["y"], "input_units": ["1"] * 3, "target_units": ["m"],
    "input_ranges": ["0 1"] * 3, "read_units": ["u=m"],
}  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    model = build_icenet(3, 4, "none", seed=1)
    description = ModelDescription(**{name: tuple(texts) for name, texts in KNOWN.items()})
    assert write_own_model(model, tmp_path / "model.safetensors", description)
    return tmp_path / "model.safetensors"


def change(path: Path, tensors: dict[str, Any] | None = None, **texts: str) -> None:
    """Write the file again with other texts and tensors, and the hash that these have."""
    with safe_open(str(path), framework="np") as file:
        known = dict(file.metadata()) | texts
    numbers = from_safetensors(path.read_bytes()) | (tensors or {})
    path.write_bytes(to_safetensors(numbers, known | {"sha256": _digest_of(numbers, known)}))


def refusal_of(path: Path) -> str:
    for read in (read_own_model, load_network):
        with pytest.raises(DataError) as caught:
            read(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.isprintable()
    return message


@pytest.mark.parametrize(
    "description",
    [NESTED, f'{{"input_names": {NESTED}', "[]", "null", '"x"', "3",
     *(json.dumps(KNOWN | one) for one in (
         {"input_names": 3}, {"input_names": [1, 2, 3]}, {"input_names": [["a"]] * 3}, {"input_names": "abc"},
         {"input_names": None}, {"input_names": ["a" * 1001] * 3}, {"read_units": ["a" * 999] * 5000},
         {"read_units": {"a": 1}}, {"input_ranges": ["x y"] * 3}, {"input_ranges": ["1"] * 3},
         {"input_ranges": ["1 2 3"] * 3}, {"unknown": []},
     ))],
    ids=lambda text: text[:60],
)  # fmt: skip
def test_a_description_that_is_none_is_refused(path: Path, description: str) -> None:
    change(path, description=description)
    assert "is not a model of a run, or a damaged one" in refusal_of(path)


def test_texts_of_strangers_reach_neither_terminals_nor_sources_as_they_are(path: Path) -> None:
    change(path, description=json.dumps(KNOWN | {"input_names": [ESCAPES] * 3, "target_units": [ESCAPES]}))
    description = load_network(path).description
    assert "x1b" in description.input_names[0]
    assert all(text.isprintable() for texts in astuple(description) for text in texts)


@pytest.mark.parametrize(
    "changed",
    [{"model": {"name": "a:b", "options": {}}}, {"model": 3}, {"num_inputs": 10**9}, {"num_inputs": 2},
     {"dtype": "float64"}, {"output_transforms": [None] * 5}, {"version": 2}, {"engine": "evil:make"}],
    ids=str,
)  # fmt: skip
def test_a_record_of_another_network_is_refused(path: Path, changed: dict[str, Any]) -> None:
    with safe_open(str(path), framework="np") as file:
        record = json.loads(file.metadata()["network"])
    change(path, network=json.dumps(record | changed))
    refusal_of(path)


@pytest.mark.parametrize("values", [np.zeros((), "f4"), np.zeros((4, 3), "i8"), np.zeros((0, 3), "f4")], ids=str)
def test_tensors_of_another_kind_are_refused(path: Path, values: Any) -> None:
    change(path, {"fc1.weight": values})
    refusal_of(path)


def test_a_file_is_asked_for_its_kind_and_hash_first(path: Path, tmp_path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match="differ from their hash"):
        read_own_model(path)
    for other in (b"", b"\xff" * 7, b"\xff" * 64, (2**40).to_bytes(8, "little") + b"{}"):
        path.write_bytes(other)
        refusal_of(path)
