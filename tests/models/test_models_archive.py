"""Archives are read as numbers and names: what is ours comes back whole, and what is hostile is not run."""

from __future__ import annotations

import pickletools
import zipfile
from dataclasses import astuple
from pathlib import Path

import pytest
import torch
from cpp_program import START, run_cpp
from hostile_archives import FOUR, HOSTILE, PLAIN, POISONED, Place, good, module, packed, storage, tensor
from test_models_torchscript import DESCRIPTION, MODELS, Untyped, inputs_of, trained

from mpitrain.errors import DataError
from mpitrain.models.files import inert_pickle
from mpitrain.models.files.archive import read_archive
from mpitrain.models.files.stored_network import load_network, read_description
from mpitrain.models.files.torchscript import load_and_run_code, normalization_path, save_model, save_normalization
from mpitrain.models.files.zip_parts import ArchiveError
from mpitrain.models.jacobian import input_jacobian
from mpitrain.models.normalized import NormalizedModel

OWN = [name for name in MODELS if name != "own"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MODELS)
def test_the_numbers_are_those_that_torch_reads(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    save_model(trained(MODELS[name], dtype), path, DESCRIPTION)
    found, expected = read_archive(path), load_and_run_code(path).state_dict()
    assert set(found.tensors) == set(expected)
    for key, value in expected.items():
        assert (found.tensors[key].dtype, found.tensors[key].shape) == (value.dtype, value.shape)
        assert torch.equal(found.tensors[key], value), key
    assert read_description(path) == DESCRIPTION


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OWN)
def test_a_rebuilt_network_answers_the_bits_of_the_file_s_code(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    path, inputs = tmp_path / "model.pt", inputs_of(MODELS[name], dtype)
    save_model(trained(MODELS[name], dtype), path, DESCRIPTION)
    found, expected = load_network(path), load_and_run_code(path)
    assert not isinstance(found.module, torch.jit.ScriptModule)
    with torch.no_grad(), torch.jit.optimized_execution(False):
        assert torch.equal(found.module(inputs), expected(inputs))
    if inputs.dim() == 2:
        with torch.jit.optimized_execution(False):
            pairs = zip(input_jacobian(found.module, inputs), input_jacobian(expected, inputs), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    assert (found.description, f"torch.{found.dtype}", found.num_outputs) == (DESCRIPTION, str(dtype), 2)


@pytest.mark.parametrize("model", ["own", "traced"])
def test_a_user_s_own_network_is_read_as_numbers_and_run_on_trust_only(model: str, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    save_model(NormalizedModel(Untyped(), 3, 2) if model == "traced" else trained(MODELS["own"]), path, DESCRIPTION)
    assert "input_mean" in read_archive(path).tensors
    with pytest.raises(DataError, match=r"model\.pt: holds a network as code of its own.*; give --trust-code if"):
        load_network(path)
    assert isinstance(load_network(path, trust_code=True).module, torch.jit.ScriptModule)


@pytest.mark.lab
def test_what_the_cpp_program_writes(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    done = run_cpp(1, *START, "--epochs", "2", "--trace", str(tmp_path / "t.nc"), "--model-output", str(path))
    assert done.returncode == 0, done.stderr
    for file in (path, normalization_path(path)):
        expected = load_and_run_code(file).state_dict()
        found = read_archive(file).tensors
        assert list(found) == list(expected)
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    network = load_network(path)
    assert network.is_icenet
    assert torch.equal(network.module(torch.zeros(2, 7)), load_network(path, "none").module(torch.zeros(2, 7)))


def test_the_side_file_and_views(tmp_path: Path) -> None:
    side = save_normalization(torch.arange(3.0), torch.ones(3), tmp_path / "m.pt")
    assert {name: value.tolist() for name, value in read_archive(side).tensors.items()} == {
        "0": [0, 1, 2],
        "1": [1] * 3,
    }
    shared = module(a=tensor((2, 2), (1, 2)), b=tensor((2,), (2,), 1), none=tensor((0, 3), (3, 1)), one=tensor((), ()))
    packed(tmp_path / "v.pt", {**PLAIN, "data.pkl": shared})
    found = read_archive(tmp_path / "v.pt").tensors
    assert found["a"].tolist() == [[1, 3], [2, 4]]
    assert found["b"].tolist() == [2, 4]
    assert found["none"].shape == (0, 3)
    assert found["one"].item() == 1
    flags = module(flags=tensor((4,), (1,), where=storage("1", 4, "torch.BoolStorage")))
    packed(tmp_path / "b.pt", {**PLAIN, "data/1": b"\0\1\2\xff", "data.pkl": flags})
    assert read_archive(tmp_path / "b.pt").tensors["flags"].tolist() == [False, True, True, True]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_no_network(name: str, tmp_path: Path) -> None:
    place = Place(tmp_path / "hostile.pt", tmp_path / "trace")
    HOSTILE[name](place)
    if name == "escape sequences in names":
        assert all(text.isprintable() for texts in astuple(read_archive(place.path).description) for text in texts)
        return
    with pytest.raises(DataError) as caught:
        load_network(place.path)
    message = str(caught.value)
    assert message.isprintable()
    assert message.startswith(f"{place.path}: ")
    assert len(message) < 500
    assert [path.name for path in tmp_path.iterdir()] == ["hostile.pt"]


@pytest.mark.parametrize("name", POISONED)
def test_code_beside_the_numbers_is_not_looked_at(name: str, tmp_path: Path) -> None:
    place = Place(tmp_path / "poisoned.pt", tmp_path / "trace")
    POISONED[name](place)
    found = load_network(place.path)
    good(tmp_path / "good.pt")
    assert torch.equal(found.module(torch.ones(2, 7)), load_network(tmp_path / "good.pt").module(torch.ones(2, 7)))
    assert not place.trace.exists()


def test_every_other_instruction_of_pickle_is_refused() -> None:
    followed = set(inert_pickle._INSTRUCTIONS)
    assert followed < {opcode.name for opcode in pickletools.opcodes}
    assert not followed & {"INST", "OBJ", "NEWOBJ_EX", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4", "PERSID", "BUILD_SLOTS"}
    names = {*inert_pickle.STORAGES, *inert_pickle._BUILDERS}
    assert not [name for name in names if not name.startswith(("torch", "collections OrderedDict"))]


def test_a_mapping_is_made_of_nothing() -> None:
    """Of another one it would take as much memory again, in five bytes."""
    content = b"\x80\x02ccollections\nOrderedDict\n]\x85R."
    with pytest.raises(ArchiveError):
        inert_pickle.read_inert(content)


@pytest.mark.parametrize("length", range(1, 60, 3))
def test_a_pickle_cut_anywhere_is_damaged(length: int, tmp_path: Path) -> None:
    content = good(tmp_path / "m.pt")["data.pkl"]
    with pytest.raises(ArchiveError) as caught:
        inert_pickle.read_inert(content[: len(content) * length // 60])
    assert str(caught.value).isprintable()


def test_a_file_cut_anywhere_is_damaged(tmp_path: Path) -> None:
    good(tmp_path / "m.pt")
    content = (tmp_path / "m.pt").read_bytes()
    for length in range(0, len(content), len(content) // 100):
        (tmp_path / "cut.pt").write_bytes(content[:length])
        with pytest.raises(ArchiveError):
            read_archive(tmp_path / "cut.pt")


def test_flipped_bits_are_found_or_change_no_number(tmp_path: Path, tries) -> None:
    expected = {name: value.clone() for name, value in read_after(good(tmp_path / "m.pt"), tmp_path).items()}
    content = (tmp_path / "m.pt").read_bytes()
    generator = torch.Generator().manual_seed(0)
    for _ in range(tries(200) * 100):
        at, bit = (int(torch.randint(most, (1,), generator=generator)) for most in (len(content), 8))
        flipped = bytearray(content)
        flipped[at] ^= 1 << bit
        (tmp_path / "flipped.pt").write_bytes(flipped)
        try:
            network = load_network(tmp_path / "flipped.pt")
        except DataError:
            continue
        assert all(torch.equal(expected[name], value) for name, value in network.module.state_dict().items())


def read_after(parts: dict[str, bytes], folder: Path) -> dict[str, torch.Tensor]:
    packed(folder / "again.pt", parts)
    return dict(read_archive(folder / "again.pt").tensors)


def test_the_archive_is_as_cpp_reads_it(tmp_path: Path) -> None:
    """The record is one more part: torch's own reader passes over it."""
    parts = good(tmp_path / "m.pt")
    assert "extra/mpitrain.json" in parts
    assert FOUR not in parts.values()
    with zipfile.ZipFile(tmp_path / "m.pt") as archive:
        assert archive.testzip() is None
    assert load_and_run_code(tmp_path / "m.pt")(torch.zeros(1, 7)).shape == (1, 1)
