"""Serialisation of objects as plain data, for untrusted networks: decoding a message executes no code from it.

A pickle can execute code, and a process posing as a rank could send one. Here a message is JSON followed by raw
buffers: numbers, strings, containers, arrays, tensors, and instances of this package's classes, which are rebuilt field
by field. A message cannot cause a call of a constructor or function, or the use of another package's class.
"""

from __future__ import annotations

import importlib
import json
import re
import struct
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

_OWN_MODULE = re.compile(r"mpitrain(\.[a-z_0-9]+)+")
_HEADER = struct.Struct("<Q")
_PLAIN = (bool, int, float, str, type(None))
_CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_TORCH_NAME = re.compile(r"[a-z0-9]+")


class NotPlainError(ValueError):
    """A value that cannot be encoded as plain data, or a message that cannot be decoded."""


def encode(value: Any) -> bytes:
    """Return `value` as a message. Raises NotPlainError for an instance of an unsupported class."""
    buffers: list[bytes] = []
    text = json.dumps(_to_json(value, buffers)).encode()
    return b"".join((_HEADER.pack(len(text)), text, *buffers))


def decode(message: bytes) -> Any:
    """Return the value of a message. Raises NotPlainError if it was not made by `encode`."""
    try:
        (length,) = _HEADER.unpack_from(message)
        content = memoryview(message)[_HEADER.size :]
        return _Reader(content[length:]).value(json.loads(bytes(content[:length])))
    except NotPlainError:
        raise
    except Exception as error:
        raise NotPlainError(f"not a message of a rank: {type(error).__name__}: {error}".splitlines()[0]) from None


def _to_json(value: Any, buffers: list[bytes]) -> Any:
    if type(value) in _PLAIN:
        return value
    kind = type(value).__name__
    if type(value) in _CONTAINERS.values():
        return {"k": kind, "v": [_to_json(part, buffers) for part in value]}
    if type(value) is dict:
        pairs = [[_to_json(key, buffers), _to_json(part, buffers)] for key, part in value.items()]
        return {"k": "dict", "v": pairs}
    if isinstance(value, bytes | np.ndarray | np.generic | torch.Tensor):
        return _buffer_to_json(value, buffers)
    for name, (cls, written, _) in _SIMPLE.items():
        if isinstance(value, cls):
            return {"k": name, "v": written(value)}
    return _own_to_json(value, buffers)


def _buffer_to_json(value: Any, buffers: list[bytes]) -> dict[str, Any]:
    if isinstance(value, bytes):
        buffers.append(value)
        return {"k": "bytes", "v": len(value)}
    if isinstance(value, torch.Tensor):
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        kind, dtype, shape = "tensor", str(value.dtype).removeprefix("torch."), list(value.shape)
    else:
        array = np.asarray(value)
        if array.dtype.hasobject:
            raise NotPlainError("an array of Python objects cannot be sent between ranks")
        raw, shape = np.ascontiguousarray(array).tobytes(), list(array.shape)
        kind, dtype = "array" if isinstance(value, np.ndarray) else "number", array.dtype.str
    buffers.append(raw)
    return {"k": kind, "v": len(raw), "dtype": dtype, "shape": shape}


def _own_to_json(value: Any, buffers: list[bytes]) -> dict[str, Any]:
    cls = value if isinstance(value, type) else type(value)
    if not _OWN_MODULE.fullmatch(cls.__module__):
        raise NotPlainError(f"a value of {cls.__module__}.{cls.__qualname__} cannot be sent between ranks")
    named = {"k": "class" if cls is value else "own", "module": cls.__module__, "name": cls.__qualname__}
    if cls is value:
        return named
    if getattr(cls, "starts_empty_on_arrival", False):  # open files, which are valid in one process only
        return {**named, "k": "empty"}
    state = value.__getstate__() if hasattr(cls, "__pydantic_fields__") else _fields_of(value)
    return {**named, "v": _to_json(state, buffers)}


def _fields_of(value: Any) -> dict[str, Any]:
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    fields = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**fields, **getattr(value, "__dict__", {})}


class _Reader:
    """Reader of a message's values and, in the same order, their buffers."""

    def __init__(self, buffers: memoryview) -> None:
        self._buffers, self._at = buffers, 0

    def value(self, node: Any) -> Any:
        """Return the value of a JSON node."""
        if not isinstance(node, dict):
            if isinstance(node, list):
                raise NotPlainError("not a message of a rank: a bare list")
            return node
        kind = node["k"]
        if kind in _CONTAINERS:
            return _CONTAINERS[kind](self.value(part) for part in node["v"])
        if kind == "dict":
            return {self.value(key): self.value(part) for key, part in node["v"]}
        if kind in ("bytes", "array", "number", "tensor"):
            return self._buffer(kind, node)
        if kind in ("own", "class", "empty"):
            return self._own(node)
        if kind not in _SIMPLE:
            raise NotPlainError(f"not a message of a rank: {kind!r}")
        return _SIMPLE[kind][2](node["v"])

    def _buffer(self, kind: str, node: dict[str, Any]) -> Any:
        raw = bytearray(self._buffers[self._at : self._at + node["v"]])
        if len(raw) != node["v"]:
            raise NotPlainError("the message is truncated")
        self._at += len(raw)
        if kind == "bytes":
            return bytes(raw)
        if kind == "tensor":
            dtype = _torch_dtype(node["dtype"])
            flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
            return flat.reshape(node["shape"])
        array = np.frombuffer(raw, dtype=np.dtype(node["dtype"])).reshape(node["shape"])
        return array if kind == "array" else array[()]

    def _own(self, node: dict[str, Any]) -> Any:
        cls = _own_class(node["module"], node["name"])
        if node["k"] == "class":
            return cls
        if node["k"] == "empty":
            if not getattr(cls, "starts_empty_on_arrival", False):
                raise NotPlainError(f"not a message of a rank: an empty {cls.__qualname__}")
            return cls()
        state = self.value(node["v"])
        made: Any = object.__new__(cls)
        if hasattr(cls, "__pydantic_fields__"):
            made.__setstate__(state)
            return made
        for name, part in state.items():
            object.__setattr__(made, name, part)
        return made


def _torch_dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name) if _TORCH_NAME.fullmatch(name) else None
    if not isinstance(dtype, torch.dtype):
        raise NotPlainError(f"not a dtype: {name}")
    return dtype


# Values encoded as a string or a list of numbers: class, encoder, decoder.
_SIMPLE: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "path": (PurePath, str, Path),
    "dtype": (torch.dtype, lambda dtype: str(dtype).removeprefix("torch."), _torch_dtype),
    "device": (torch.device, str, torch.device),
    "slice": (slice, lambda one: [one.start, one.stop, one.step], lambda ends: slice(*ends)),
    "range": (range, lambda one: [one.start, one.stop, one.step], lambda ends: range(*ends)),
}


def _own_class(module: str, name: str) -> type:
    if not _OWN_MODULE.fullmatch(module) or module.endswith("__main__"):
        raise NotPlainError(f"not a class of this package: {module}.{name}")
    found = getattr(importlib.import_module(module), name, None)
    # Only classes defined in that module: it may import classes of other packages.
    if not isinstance(found, type) or found.__module__ != module:
        raise NotPlainError(f"not a class of this package: {module}.{name}")
    return found
