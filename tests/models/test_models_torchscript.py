"""TorchScript files: what is read back is what was written, to the bit, and a file is whole or not there."""

import pytest
import torch

from mpitrain.errors import OutputError
from mpitrain.models.icenet import build_icenet
from mpitrain.models.torchscript import load_model, normalization_path, save_model, save_normalization


@pytest.fixture
def model():
    model = build_icenet(7, 16, "none", seed=4)
    with torch.no_grad():
        model.set_normalization(torch.linspace(-1, 1, 7), torch.linspace(1, 2, 7))
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ["none", "sigmoid", "relu", "gelu"])
def test_a_model_comes_back_bit_for_bit(tmp_path, activation, dtype):
    model = build_icenet(7, 16, activation, seed=4, dtype=dtype)
    with torch.no_grad():
        model.set_normalization(torch.linspace(-1, 1, 7), torch.linspace(1, 2, 7))
    save_model(model, tmp_path / "model.pt")
    loaded = load_model(tmp_path / "model.pt")
    assert list(loaded.state_dict()) == list(model.state_dict())
    for name, value in loaded.state_dict().items():
        assert value.dtype == dtype
        assert torch.equal(value, model.state_dict()[name]), name
    inputs = torch.randn(50, 7, generator=torch.Generator().manual_seed(0)).to(dtype)
    with torch.no_grad():
        assert torch.equal(loaded(inputs), model(inputs))


def test_saving_leaves_the_model_as_it_was(model, tmp_path):
    model.train()
    save_model(model, tmp_path / "model.pt")
    assert model.training
    assert not load_model(tmp_path / "model.pt").training
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_the_normalization_file_holds_two_numbered_tensors(model, tmp_path):
    path = save_normalization(model.input_mean, model.input_std, tmp_path / "ice.pt")
    assert path == normalization_path(tmp_path / "ice.pt") == tmp_path / "normalization.ice.pt"
    tensors = dict(load_model(path).named_buffers())
    assert list(tensors) == ["0", "1"]
    assert torch.equal(tensors["0"], model.input_mean)
    assert torch.equal(tensors["1"], model.input_std)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_file_that_cannot_be_written_is_said(model, tmp_path):
    with pytest.raises(OutputError, match=r"model.pt: cannot be written .*check the folder's permissions"):
        save_model(model, tmp_path / "none" / "model.pt")


def test_a_failure_keeps_the_old_file_and_leaves_no_other(model, tmp_path, monkeypatch):
    path = tmp_path / "model.pt"
    save_model(model, path)
    before = path.read_bytes()

    def write_half(scripted, name):
        with open(name, "wb") as file:
            file.write(b"half")
        raise RuntimeError("no space left on device")

    monkeypatch.setattr(torch.jit, "save", write_half)
    with pytest.raises(OutputError, match="no space left on device"):
        save_model(model, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]


def test_the_final_name_appears_only_when_the_file_is_whole(model, tmp_path, monkeypatch):
    path, seen, save = tmp_path / "model.pt", [], torch.jit.save

    def look_while_saving(scripted, name):
        save(scripted, name)
        seen.append(path.exists())

    monkeypatch.setattr(torch.jit, "save", look_while_saving)
    save_model(model, path)
    assert seen == [False]
    assert path.exists()
