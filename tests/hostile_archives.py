"""Archives that are made to harm their reader: code where numbers should be, and sizes, places and names that deceive.

Each writer of `HOSTILE` makes one file. Whatever its code or its pickle could do is: make the file `trace`.
"""

from __future__ import annotations

import json
import pickle
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from networks import build_icenet
from torch import nn

from mpitrain.data.describe.names import CICE_INPUTS as NAMES
from mpitrain.models.files.torchscript import ModelDescription, save_model

CICE_INPUTS, HIDDEN = len(NAMES), 16


class Place(NamedTuple):
    """Where an archive goes, and the file that nobody may make."""

    path: Path
    trace: Path


class WritesWhenSet(nn.Module):
    """Writes when it is loaded."""

    def __init__(self, trace: str) -> None:
        super().__init__()
        self.trace = trace
        self.register_buffer("numbers", torch.zeros(4))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs

    @torch.jit.export
    def __getstate__(self) -> tuple[str, bool]:
        return self.trace, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[str, bool]) -> None:
        self.trace, self.training = state[0], state[1]
        self.numbers = torch.from_file(state[0], True, 4)


class WritesWhenAsked(nn.Module):
    """Writes when it predicts; its names are those of the C++ program's network."""

    def __init__(self, trace: str) -> None:
        super().__init__()
        self.trace = trace
        self.fc1, self.fc2 = nn.Linear(CICE_INPUTS, HIDDEN), nn.Linear(HIDDEN, 1)
        self.register_buffer("input_mean", torch.zeros(CICE_INPUTS))
        self.register_buffer("input_std", torch.ones(CICE_INPUTS))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc1(inputs)) + torch.from_file(self.trace, True, 1)


class HoldsWriter(WritesWhenAsked):
    """Has a part that writes when it is loaded."""

    def __init__(self, trace: str) -> None:
        super().__init__(trace)
        self.part = WritesWhenSet(trace)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.part(self.fc2(self.fc1(inputs)))


def scripted(make: Callable[[str], nn.Module]) -> Callable[[Place], None]:
    def write(place: Place) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.jit.save(torch.jit.script(make(str(place.trace))), str(place.path))

    return write


# --- pickles by hand


def text(value: str) -> bytes:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def whole(value: int) -> bytes:
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


def outside(name: str) -> bytes:
    module, _, attribute = name.rpartition(".")
    return b"c" + f"{module}\n{attribute}\n".encode()


def call(function: str, *arguments: bytes) -> bytes:
    return outside(function) + b"(" + b"".join(arguments) + b"tR"


def storage(key: str = "0", num_elements: int = 4, kind: str = "torch.FloatStorage") -> bytes:
    return b"(" + text("storage") + outside(kind) + text(key) + text("cpu") + whole(num_elements) + b"tQ"


def tensor(sizes: tuple[int, ...], strides: tuple[int, ...], offset: int = 0, where: bytes | None = None) -> bytes:
    shape, steps = (b"(" + b"".join(map(whole, values)) + b"t" for values in (sizes, strides))
    hooks = outside("collections.OrderedDict") + b")R"
    place = storage() if where is None else where
    return (
        outside("torch._utils._rebuild_tensor_v2")
        + b"("
        + place
        + whole(offset)
        + shape
        + steps
        + b"\x89"
        + hooks
        + b"tR"
    )


def made(name: str = "__torch__.Module", **attributes: bytes) -> bytes:
    items = b"".join(text(key) + value for key, value in attributes.items())
    return outside(name) + b")\x81}(" + items + b"ub"


def module(**attributes: bytes) -> bytes:
    """A data.pkl whose module has these attributes, each the instructions that make its value."""
    return b"\x80\x02" + made(**attributes) + b"."


def as_data(path: Path) -> None:
    """Make a dict of tensors, as `torch.save` writes it, of a module that was made by hand; leave other files alone."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        if archive.namelist() != [f"model/{name}" for name in (*PLAIN, "data.pkl")] or archive.testzip():
            return
        parts = {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}
    head, first = outside("__torch__.Module") + b")\x81", text("inputs") + tensor((4,), (1,))
    if parts["data.pkl"].startswith(b"\x80\x02" + head + b"}(") and parts["data.pkl"].endswith(b"ub."):
        body = parts["data.pkl"][len(head) + 4 : -3]
        packed(path, {**parts, "data.pkl": b"\x80\x02}(" + first + body + b"u."})


FOUR = struct.pack("<4f", 1, 2, 3, 4)
PLAIN = {"version": b"3\n", "byteorder": b"little", "data/0": FOUR}


def packed(path: Path, parts: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(f"model/{name}", content)


def pickled(make: Callable[[Place], bytes]) -> Callable[[Place], None]:
    return lambda place: packed(place.path, {**PLAIN, "data.pkl": make(place)})


def touch(place: Place) -> bytes:
    return text(f"touch {place.trace}")


def doubled_without_end(levels: int = 60) -> bytes:
    """Each module holds the one before it twice: 2 ** levels names in a few bytes."""
    content = made(x=tensor((4,), (1,))) + b"q\x00"
    for _ in range(levels):
        content = outside("__torch__.Module") + b")\x81}(" + text("a") + content + text("b") + b"h\x00ubq\x00"
    return b"\x80\x02" + content + b"."


# --- zips by hand


def good(path: Path) -> dict[str, bytes]:
    """Write a network of ours and return its parts."""
    save_model(build_icenet(CICE_INPUTS, HIDDEN, "none", seed=1), path, ModelDescription(NAMES, ("aice_h",)))
    with zipfile.ZipFile(path) as archive:
        return {name.split("/", 1)[1]: archive.read(name) for name in archive.namelist()}


def changed(**changes: object) -> Callable[[Place], None]:
    """A network of ours with another record."""

    def write(place: Place) -> None:
        parts = good(place.path)
        record = json.loads(parts["extra/mpitrain.json"])
        model = {**record["model"], **{key: value for key, value in changes.items() if key in record["model"]}}
        own = {key: value for key, value in changes.items() if key not in record["model"]}
        packed(place.path, {**parts, "extra/mpitrain.json": json.dumps({**record, "model": model, **own}).encode()})

    return write


def with_parts(**parts: bytes) -> Callable[[Place], None]:
    return lambda place: packed(place.path, {**good(place.path), **parts})


def zip_bomb(place: Place) -> None:
    with zipfile.ZipFile(place.path, "w") as archive:
        for name, content in {**PLAIN, "data.pkl": module(x=tensor((2**24,), (1,), where=storage("1", 2**24)))}.items():
            archive.writestr(f"model/{name}", content)
        archive.writestr("model/data/1", bytes(2**26), zipfile.ZIP_DEFLATED)


def overlapping(place: Place) -> None:
    """Two names for the same bytes, as a bomb without compression has them."""
    packed(place.path, {**PLAIN, "data/1": FOUR, "data.pkl": module(x=tensor((4,), (1,)))})
    content = bytearray(place.path.read_bytes())
    with zipfile.ZipFile(place.path) as archive:
        first, second = archive.getinfo("model/data/0"), archive.getinfo("model/data/1")
    at = content.rindex(b"model/data/1") - 4
    assert struct.unpack_from("<I", content, at)[0] == second.header_offset
    struct.pack_into("<I", content, at, first.header_offset)
    place.path.write_bytes(content)


def duplicates(place: Place) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with zipfile.ZipFile(place.path, "w") as archive:
            for name, content in {**PLAIN, "data.pkl": module(x=tensor((4,), (1,)))}.items():
                archive.writestr(f"model/{name}", content)
            archive.writestr("model/data.pkl", module(x=call("posix.system", touch(place))))


def traversal(place: Place) -> None:
    packed(place.path, {**PLAIN, "data.pkl": module(x=tensor((4,), (1,))), f"../../../..{place.trace}": FOUR})


def encrypted(place: Place) -> None:
    good(place.path)
    content = bytearray(place.path.read_bytes())
    at = content.find(b"PK\x01\x02")
    while at >= 0:
        content[at + 8] |= 1
        at = content.find(b"PK\x01\x02", at + 4)
    place.path.write_bytes(content)


def wrong_sum(place: Place) -> None:
    packed(place.path, {**PLAIN, "data.pkl": module(x=tensor((4,), (1,)))})
    content = place.path.read_bytes()
    place.path.write_bytes(content.replace(struct.pack("<I", zlib.crc32(FOUR)), b"\1\2\3\4"))


class Pickled:
    """Runs a command when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple:
        return open, (str(self.trace), "w")


def saved(is_zip: bool) -> Callable[[Place], None]:
    """Weights among which stands what runs a command."""

    def write(place: Place) -> None:
        state = {"fc1.weight": torch.zeros(HIDDEN, CICE_INPUTS), "fc1.bias": Pickled(place.trace)}
        torch.save(state, place.path, _use_new_zipfile_serialization=is_zip)

    return write


def escape_names(place: Place) -> None:
    names = ("\x1b]0;owned\x07\x1b[2J", *NAMES[1:])
    save_model(
        build_icenet(CICE_INPUTS, HIDDEN, "none", seed=1), place.path, ModelDescription(names, ("\x1b[31maice",))
    )


def valued(make: Callable[[Place], bytes]) -> Callable[[Place], None]:
    """A module with one attribute, whose value these instructions make."""
    return pickled(lambda place: module(x=make(place)))


CYCLE = b"\x80\x02" + outside("__torch__.M") + b")\x81q\x00}(" + text("a") + b"h\x00ub."
CUSTOM = outside("__torch__.torch.classes.a.B") + b")\x81"
HOSTILE: dict[str, Callable[[Place], None]] = {
    "__setstate__ writes": scripted(WritesWhenSet),
    "forward writes": scripted(WritesWhenAsked),
    "a part's __setstate__ writes": scripted(HoldsWriter),
    "custom class": valued(lambda place: CUSTOM + touch(place) + b"b"),
    "posix.system": valued(lambda place: call("posix.system", touch(place))),
    "os.system as the module": pickled(lambda place: b"\x80\x02" + call("os.system", touch(place)) + b"."),
    "builtins.eval": valued(lambda place: call("builtins.eval", text(f"open({str(place.trace)!r}, 'w')"))),
    "torch.load": valued(lambda place: call("torch.load", text(str(place.path)))),
    "torch.jit.load": valued(lambda place: call("torch.jit.load", text(str(place.path)))),
    "a call of a class": valued(lambda place: call("__torch__.Module", touch(place))),
    "a call of a text": valued(lambda place: touch(place) + b")R"),
    "state of a tensor": valued(lambda place: tensor((4,), (1,)) + b"}(" + text("__class__") + b"Nubb"),
    "state set twice": valued(lambda place: made() + b"}b"),
    "INST": valued(lambda place: b"(" + touch(place) + b"iposix\nsystem\n"),
    "OBJ": valued(lambda place: b"(" + outside("posix.system") + touch(place) + b"o"),
    "NEWOBJ_EX": valued(lambda place: outside("__torch__.Module") + b")}\x92"),
    "NEWOBJ with arguments": valued(lambda place: outside("__torch__.Module") + touch(place) + b"\x85\x81"),
    "STACK_GLOBAL": valued(lambda place: text("posix") + text("system") + b"\x93" + touch(place) + b"\x85R"),
    "EXT1": valued(lambda place: b"\x82\x01"),
    "PERSID": valued(lambda place: b"P../../x\n"),
    "a place outside the archive": valued(lambda place: tensor((4,), (1,), where=storage("../../x"))),
    "a storage of no known kind": valued(lambda place: tensor((4,), (1,), where=storage(kind="posix.system"))),
    "beyond its storage": valued(lambda place: tensor((4,), (1,), offset=1)),
    "a stride beyond its storage": valued(lambda place: tensor((2, 2), (2**40, 1))),
    "negative size": valued(lambda place: tensor((-4,), (1,))),
    "negative offset": valued(lambda place: tensor((4,), (1,), offset=-4)),
    "negative stride": valued(lambda place: tensor((4,), (-1,), offset=3)),
    "terabytes by stride 0": valued(lambda place: tensor((2**42,), (0,))),
    "terabytes claimed": valued(lambda place: tensor((2**42,), (1,), where=storage(num_elements=2**42))),
    "more numbers than an integer holds": valued(lambda place: tensor((2**62, 2**62), (1, 1))),
    "a module in itself": pickled(lambda place: CYCLE),
    "doubled without end": pickled(lambda place: doubled_without_end()),
    "a memo of gigabytes": pickled(lambda place: b"\x80\x02Nr\xff\xff\xff\xff."),
    "escape sequences in attributes": pickled(lambda place: module(**{"\x1b[2J": tensor((4,), (1,))})),
    "overlapping parts": overlapping,
    "zip bomb": zip_bomb,
    "path traversal": traversal,
    "two parts of one name": duplicates,
    "encrypted": encrypted,
    "wrong check sum": wrong_sum,
    "a record of huge sizes": changed(hidden_size=2**62),
    "a record of endless layers": changed(name="mlp", hidden_layers=10**12, hidden_size=7),
    "a record of another network": changed(hidden_size=15),
    "a record of another format": changed(version=2),
    "a record that is a bomb": with_parts(**{"extra/mpitrain.json": b"[" * 50_000}),
    "a record larger than may be": with_parts(**{"extra/mpitrain.json": b" " * 2**20}),
    "a record that names os:system": changed(name="os:system"),
    "escape sequences in names": escape_names,
    "pickled state_dict": saved(True),
    "old pickled state_dict": saved(False),
    "plain pickle": lambda place: place.path.write_bytes(pickle.dumps(Pickled(place.trace))),
}  # fmt: skip


def poisoned(suffix: str) -> Callable[[Place], None]:
    """A network of ours whose part `suffix`, or a new one of this name, runs a command when it is unpickled."""

    def write(place: Place) -> None:
        parts = good(place.path)
        name = next((name for name in parts if name.endswith(suffix)), suffix)
        packed(place.path, {**parts, name: b"\x80\x02" + call("posix.system", touch(place)) + b"."})

    return write


def writing_code(place: Place) -> None:
    """A network of ours with its own code, but for a line that writes when it predicts."""
    parts = good(place.path)
    name = next(name for name, content in parts.items() if name.endswith(".py") and b"class IceNet" in content)
    first, line, rest = parts[name].decode().partition("-> Tensor:\n")
    assert line
    evil = f'{first}{line}    inputs = torch.add(inputs, torch.from_file("{place.trace}", True, 1))\n{rest}'
    packed(place.path, {**parts, name: evil.encode()})


# Code in places that a reader of numbers does not look at: the file is as good as without it.
POISONED: dict[str, Callable[[Place], None]] = {
    "constants.pkl": poisoned("constants.pkl"),
    "debug_pkl": poisoned("icenet.py.debug_pkl"),
    "bytecode.pkl": poisoned("bytecode.pkl"),
    "code": writing_code,
}
