"""Objects between ranks are plain data: what is sent comes back equal, and no message can make a rank run anything."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mpitrain.cluster.rank_info import RankInfo
from mpitrain.comm.tcp.plain_data import NotPlainError, decode, encode
from mpitrain.config import load_run_config
from mpitrain.data.moments import Moments
from mpitrain.errors import ConfigError

SIMPLE = [
    None, True, 3, -(2**70), 0.1, float("inf"), "é\n", b"\0\xff", [], [1, [2]], (1, "a"), (), {1: "a", (1, 2): [None]},
    {"k": "list", "v": [1]}, {1, 2}, frozenset("a"), Path("/a b"), torch.float32, torch.device("cpu"),
    slice(1, None, 2), range(3), ConfigError, RankInfo(0, 2, 0, 1, 0, 2, "MPI"),
]  # fmt: skip


@pytest.mark.parametrize("value", SIMPLE, ids=repr)
def test_values_come_back(value: Any) -> None:
    found = decode(encode(value))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool", "complex64"])
def test_arrays_and_tensors_come_back_bit_for_bit(dtype: str) -> None:
    tensor = torch.randn(3, 2).mul(9).to(getattr(torch, dtype))
    sent = {"a": tensor.t(), "empty": tensor[:0], "none": torch.tensor(1, dtype=tensor.dtype), "text": "between"}
    found = decode(encode(sent))
    assert all(torch.equal(found[name], sent[name]) for name in ("a", "empty", "none"))
    assert found["a"].dtype == tensor.dtype
    array = np.arange(6, dtype=">f4").reshape(2, 3)[:, ::2]
    both = decode(encode((array, np.float64(0.1))))
    assert np.array_equal(both[0], array)
    assert both[0].dtype == array.dtype
    assert (type(both[1]), both[1]) == (np.float64, np.float64(0.1))
    found["a"].zero_()  # its own memory, not the message's


def test_values_of_this_package_come_back() -> None:
    loaded = load_run_config(None, ["training.epochs=3", "training.scheduler.type=cosine"])
    assert decode(encode(loaded)) == loaded
    moments = Moments.of(torch.randn(4, 2, dtype=torch.float64)) if hasattr(Moments, "of") else None
    assert moments is None or decode(encode(moments)).count == moments.count


class Foreign:
    """A class of somebody else."""


@pytest.mark.parametrize(
    "value", [Foreign(), Foreign, print, lambda: 0, np.array([Foreign()]), object()],
    ids=["object", "class", "built-in", "function", "array of objects", "bare object"],
)  # fmt: skip
def test_a_value_of_a_foreign_class_is_not_sent(value: Any) -> None:
    with pytest.raises(NotPlainError):
        encode([value])


def message(node: Any, *buffers: bytes) -> bytes:
    text = json.dumps(node).encode()
    return b"".join((struct.pack("<Q", len(text)), text, *buffers))


class Planted:
    """Writes a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return (open, ("canary", "w"))


HOSTILE = {
    "pickle": pickle.dumps(Planted()),
    "pickle in a message": message({"k": "pickle", "v": 3}, pickle.dumps(Planted())),
    "class of the system": message({"k": "own", "module": "os", "name": "system", "v": {"k": "dict", "v": []}}),
    "what a module imports": message({"k": "class", "module": "mpitrain.durable_files", "name": "Path"}),
    "function of this package": message({"k": "class", "module": "mpitrain.durable_files", "name": "write_durably"}),
    "module that runs": message({"k": "class", "module": "mpitrain.__main__", "name": "main"}),
    "other module": message({"k": "class", "module": "mpitrain.cache.os", "name": "system"}),
    "array of objects": message({"k": "array", "v": 8, "dtype": "|O", "shape": [1]}, bytes(8)),
    "structured dtype": message({"k": "array", "v": 8, "dtype": "O,O", "shape": [1]}, bytes(8)),
    "dtype by name": message({"k": "tensor", "v": 1, "dtype": "load", "shape": [1]}, bytes(1)),
    "cut off": encode(torch.ones(100))[:-8],
    "longer than it is": message({"k": "bytes", "v": 1 << 60}),
    "too deep": struct.pack("<Q", 200000) + b"[" * 200000,
    "nothing": b"",
    "noise": bytes(range(256)),
}  # fmt: skip


@pytest.mark.parametrize("sent", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_message_is_an_error_and_runs_nothing(
    sent: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotPlainError):
        decode(sent)
    assert list(tmp_path.iterdir()) == []
