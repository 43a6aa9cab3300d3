"""Archives made by exchanging numbers: byte for byte what torch writes, and refused where anything else differs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mpitrain.config import load_run_config
from mpitrain.models.build import build_learner
from mpitrain.models.files import torchscript
from mpitrain.models.files.archive_copies import ArchiveTemplate
from mpitrain.models.files.torchscript import load_and_run_code, save_model, script_model

NETWORKS = {
    "icenet": ("model.name=icenet",),
    "mlp": ("model.name=mlp", "model.hidden_layers=2"),
    "batch norm": ("model.name=mlp", "model.batch_norm=true"),
}


def _networks(name: str, count: int) -> list[torch.nn.Module]:
    config = load_run_config(None, NETWORKS[name]).config
    return [build_learner(config.network, 7, ["t"], seed, torch.float32) for seed in range(count)]


@pytest.mark.parametrize("name", NETWORKS)
def test_files_of_one_architecture_are_as_torch_writes_them(tmp_path: Path, monkeypatch, name: str):
    networks, path = _networks(name, 5), tmp_path / "model.pt"
    scripted = script_model(networks[0], path)
    expected = []
    for network in networks:
        torchscript._take_numbers(scripted._scripted, network)
        expected.append(torchscript._archive_of(scripted._scripted, scripted._record))
    calls = []
    own = torchscript._archive_of
    monkeypatch.setattr(torchscript, "_archive_of", lambda *given: calls.append(1) or own(*given))
    for network, content in zip(networks, expected, strict=True):
        scripted.write(network, path)
        assert path.read_bytes() == content
    assert len(calls) == 2  # the third and later ones are not torch's work any more
    save_model(networks[-1], tmp_path / "other.pt")
    inputs = torch.randn(5, 7)
    assert torch.equal(load_and_run_code(path)(inputs), load_and_run_code(tmp_path / "other.pt")(inputs))


def test_a_writer_of_other_bytes_is_never_imitated(tmp_path: Path, monkeypatch):
    networks, path = _networks("mlp", 4), tmp_path / "model.pt"
    scripted = script_model(networks[0], path)
    own, calls = torchscript._archive_of, []

    def of_another_torch(*given: object) -> bytes:
        calls.append(1)
        return own(*given) + (b"" if len(calls) == 1 else b"more")

    monkeypatch.setattr(torchscript, "_archive_of", of_another_torch)
    for network in networks:
        scripted.write(network, path)
        assert len(calls) == 1 or path.read_bytes().endswith(b"more")
    assert len(calls) == 4


def test_numbers_are_read_from_what_differs_in_nothing_else(tmp_path: Path):
    first, second = _networks("mlp", 2)
    scripted, path = script_model(first, tmp_path / "model.pt"), tmp_path / "model.pt"
    scripted.write(first, path)
    template = ArchiveTemplate(path.read_bytes())
    scripted.write(second, path)
    content = path.read_bytes()
    numbers = template.numbers_in(content)
    assert numbers is not None
    assert all(torch.equal(numbers[name], tensor) for name, tensor in second.state_dict().items())
    for place in range(0, len(content), 997):
        damaged = bytearray(content)
        damaged[place] ^= 1
        assert template.numbers_in(bytes(damaged)) is None
    assert template.numbers_in(content[:-1]) is None


def test_what_cannot_be_exchanged_is_refused():
    with pytest.raises(ValueError, match="no archive"):
        ArchiveTemplate(b"no zip at all")
    with pytest.raises(ValueError, match=r"no part|not one folder"):
        ArchiveTemplate(b"PK\x05\x06" + bytes(18))
