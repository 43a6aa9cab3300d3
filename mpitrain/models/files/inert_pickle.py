"""Reader of the pickle inside a TorchScript archive, which interprets only harmless instructions.

It does not unpickle: no name in the file is looked up or called. An object becomes a `StoredObject` with its class name
and attributes, a tensor becomes a `StoredTensor` with the location of its numbers. Any instruction, name or shape that
torch's writer does not need for modules of tensors raises ArchiveError.
"""

from __future__ import annotations

import math
import pickletools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from mpitrain.config import shorten
from mpitrain.models.files.zip_parts import ArchiveError

_LARGEST_SIZE = 2**48
_MOST_AXES = 64
_STORAGE_KEY = re.compile(r"[A-Za-z0-9_]{1,64}")
# The storage classes of torch, and the dtypes of their elements.
STORAGES = {
    "torch DoubleStorage": "float64", "torch FloatStorage": "float32", "torch HalfStorage": "float16",
    "torch BFloat16Storage": "bfloat16", "torch LongStorage": "int64", "torch IntStorage": "int32",
    "torch ShortStorage": "int16", "torch CharStorage": "int8", "torch ByteStorage": "uint8",
    "torch BoolStorage": "bool",
}  # fmt: skip


@dataclass(frozen=True)
class Global:
    """The name `module name` of an object outside the file. It is never looked up."""

    name: str


@dataclass
class StoredObject:
    """An object of a TorchScript class; `attributes` is None if only the class's own code can interpret its state."""

    class_name: str
    attributes: dict[str, Any] | None = field(default_factory=dict)
    is_built: bool = False


@dataclass(frozen=True)
class StoredStorage:
    """Location of numbers: part `data/KEY` of the archive, `num_elements` of type `dtype`."""

    key: str
    dtype: str
    num_elements: int


@dataclass(frozen=True)
class StoredTensor:
    """A view of a storage: it lies within the storage and has no more elements than the storage."""

    storage: StoredStorage
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def read_inert(content: bytes) -> object:
    """Return the object in `content`, a data.pkl. Raises ArchiveError for all but modules of tensors and texts."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(content):
            follow = _INSTRUCTIONS.get(opcode.name)
            if follow is None:
                raise ArchiveError(f"data.pkl has a {opcode.name}, which modules of tensors do not need")
            follow(machine, argument)
        return machine.result()
    except ArchiveError:
        raise
    except (ValueError, TypeError, LookupError, OverflowError, AttributeError) as error:
        raise ArchiveError(f"data.pkl is damaged: {shorten(str(error))}") from error


class _Machine:
    """State of a pickle reader: stack, marks and memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def result(self) -> object:
        (value,) = self.stack
        return value

    def push(self, value: object) -> None:
        self.stack.append(value)

    def pop(self, count: int) -> tuple[Any, ...]:
        if count > len(self.stack):
            raise ValueError("its stack is empty")
        taken = tuple(self.stack[len(self.stack) - count :])
        del self.stack[len(self.stack) - count :]
        return taken

    def mark(self) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def pop_to_mark(self) -> list[Any]:
        taken, self.stack = self.stack, self.marks.pop()
        return taken

    def remember(self, index: int) -> None:
        self.memo[index] = self.stack[-1]

    def name(self, text: str) -> None:
        if text not in STORAGES and text not in _BUILDERS and not text.startswith("__torch__"):
            raise ArchiveError(f"data.pkl names '{shorten(text)}', which modules of tensors do not need")
        self.push(Global(text))

    def call(self) -> None:
        function, arguments = self.pop(2)
        build = _BUILDERS.get(function.name) if isinstance(function, Global) else None
        if build is None or not isinstance(arguments, tuple):
            raise ArchiveError(f"data.pkl calls {_shown(function)}, which modules of tensors do not need")
        self.push(build(*arguments))

    def new_object(self) -> None:
        kind, arguments = self.pop(2)
        if not isinstance(kind, Global) or not kind.name.startswith("__torch__") or arguments != ():
            raise ArchiveError(f"data.pkl makes an object of {_shown(kind)}")
        self.push(StoredObject(kind.name))

    def build_object(self) -> None:
        (state,) = self.pop(1)
        target = self.stack[-1]
        if not isinstance(target, StoredObject) or target.is_built:
            raise ArchiveError(f"data.pkl sets the state of {_shown(target)}, not of a new object")
        # The state of a class with __setstate__ may be anything: only its code, which is not run, can interpret it.
        target.attributes = state if isinstance(state, dict) else None
        target.is_built = True

    def append(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise ArchiveError(f"data.pkl appends to {_shown(target)}, not to a list")
        target.extend(values)

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or not all(isinstance(key, str | int) for key in values[::2]):
            raise ArchiveError(
                f"data.pkl sets items of {_shown(target)}; they must be of a dict, with text or whole numbers as keys"
            )
        target.update(zip(values[::2], values[1::2], strict=True))

    def storage(self) -> None:
        (reference,) = self.pop(1)
        kind, storage_type, key, device, num_elements = reference
        is_storage = kind == "storage" and isinstance(storage_type, Global) and storage_type.name in STORAGES
        if not is_storage or not isinstance(key, str) or not _STORAGE_KEY.fullmatch(key) or not isinstance(device, str):
            raise ArchiveError("data.pkl refers to numbers that are not in the archive")
        if not _are_sizes((num_elements,)):
            raise ArchiveError(f"data.pkl states {_shown(num_elements)} as the number of elements of part 'data/{key}'")
        self.push(StoredStorage(key, STORAGES[storage_type.name], num_elements))


def _tensor(
    storage: object, offset: object, sizes: Any, strides: Any, _gradient: object, _hooks: object
) -> StoredTensor:
    if not isinstance(storage, StoredStorage) or not isinstance(offset, int):
        raise ArchiveError("data.pkl makes a tensor without a storage")
    if not _are_sizes((offset,)) or not _are_sizes(sizes) or not _are_sizes(strides) or len(sizes) != len(strides):
        raise ArchiveError("data.pkl makes a tensor with impossible sizes")
    count = math.prod(sizes)
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if count else 0
    # No more elements than the storage has: strides of 0 would turn one number into a tensor of terabytes.
    if count > storage.num_elements or (count and last >= storage.num_elements):
        raise ArchiveError(f"data.pkl makes a tensor that does not lie within part 'data/{storage.key}'")
    return StoredTensor(storage, offset, sizes, strides)


def _are_sizes(values: object) -> bool:
    if not isinstance(values, tuple) or len(values) > _MOST_AXES:
        return False
    return all(type(value) is int and 0 <= value <= _LARGEST_SIZE for value in values)


def _shown(value: object) -> str:
    if isinstance(value, Global):
        return f"'{shorten(value.name)}'"
    return str(value) if isinstance(value, int) and abs(value) <= 2**64 else f"a {type(value).__name__}"


def _identity(value: object) -> object:
    return value


def _empty_mapping() -> dict[str, Any]:
    """Return an empty dict. With arguments, each call of five bytes could copy a whole dict in memory."""
    return {}


# The functions that torch's writer calls; any other call raises ArchiveError.
_BUILDERS: dict[str, Callable[..., object]] = {
    "torch._utils _rebuild_tensor_v2": _tensor,
    "collections OrderedDict": _empty_mapping,
    "torch.jit._pickle restore_type_tag": lambda value, _type: value,
    "torch.jit._pickle build_intlist": _identity,
    "torch.jit._pickle build_doublelist": _identity,
    "torch.jit._pickle build_boollist": _identity,
    "torch.jit._pickle build_tensorlist": _identity,
    "torch device": _identity,
}

_Instruction = Callable[[_Machine, Any], None]


_INSTRUCTIONS: dict[str, _Instruction] = {
    **dict.fromkeys(("PROTO", "STOP"), lambda machine, _: None),  # at the start and at the end
    **dict.fromkeys(("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"), _Machine.push),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "MARK": lambda machine, _: machine.mark(),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_to_mark())),
    "TUPLE1": lambda machine, _: machine.push(machine.pop(1)),
    "TUPLE2": lambda machine, _: machine.push(machine.pop(2)),
    "TUPLE3": lambda machine, _: machine.push(machine.pop(3)),
    "APPEND": lambda machine, _: machine.append(list(machine.pop(1))),
    "APPENDS": lambda machine, _: machine.append(machine.pop_to_mark()),
    "SETITEM": lambda machine, _: machine.set_items(list(machine.pop(2))),
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_to_mark()),
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Machine.remember),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda machine, index: machine.push(machine.memo[index])),
    "GLOBAL": _Machine.name,
    "REDUCE": lambda machine, _: machine.call(),
    "NEWOBJ": lambda machine, _: machine.new_object(),
    "BUILD": lambda machine, _: machine.build_object(),
    "BINPERSID": lambda machine, _: machine.storage(),
}
