"""Weights from a NetCDF file."""

import pickle

import netCDF4
import numpy as np
import pytest
import torch
from conftest import REFERENCE_CASE
from networks import build_icenet, network_settings

from mpitrain.errors import DataError
from mpitrain.models.build import build_model
from mpitrain.models.files.initial_weights import load_initial_weights
from mpitrain.models.files.torchscript import save_model


def write_weights(path, without="", **changed):
    variables = {name: p.detach().numpy() + 1 for name, p in build_icenet(3, 2, "none", seed=1).named_parameters()}
    variables = {name: changed.get(name.replace(".", "_"), values) for name, values in variables.items()}
    with netCDF4.Dataset(str(path), "w") as dataset:
        for name, values in variables.items():
            dimensions = [f"{name}.{axis}" for axis in range(values.ndim)]
            for dimension, size in zip(dimensions, values.shape, strict=True):
                dataset.createDimension(dimension, size)
            if name != without:
                dataset.createVariable(name, values.dtype.str[1:], dimensions)[:] = values
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_parameters_are_set_and_buffers_are_not(tmp_path, dtype):
    model = build_icenet(3, 2, "none", seed=1, dtype=dtype)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    load_initial_weights(model, write_weights(tmp_path / "w.nc"))
    for name, value in model.state_dict().items():
        shift = 0 if name.startswith("input_") else 1
        assert torch.equal(value, (before[name].float() + shift).to(dtype))
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_the_reference_cases_weights_load_bit_for_bit():
    path = REFERENCE_CASE / "initial_weights.nc"
    model = build_icenet(7, 16, "none", seed=1)
    load_initial_weights(model, path)
    with netCDF4.Dataset(str(path)) as dataset:
        for name, parameter in model.named_parameters():
            np.testing.assert_array_equal(parameter.detach().numpy(), np.asarray(dataset[name][:]))


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"w.nc: no such file; set model.initial_weights"):
        load_initial_weights(build_icenet(3, 2, "none", seed=1), tmp_path / "w.nc")


@pytest.mark.parametrize("content", [b"", b"no NetCDF", b"\x89HDF\r\n\x1a\n" + b"\0" * 40])
def test_no_netcdf_file(tmp_path, content):
    (tmp_path / "w.nc").write_bytes(content)
    with pytest.raises(DataError, match=r"w.nc: cannot be read as NetCDF"):
        load_initial_weights(build_icenet(3, 2, "none", seed=1), tmp_path / "w.nc")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"without": "fc2.bias"}, r"no variable 'fc2.bias'; it has fc1.weight, fc1.bias, fc2.weight"),
        (
            {"fc1_weight": np.zeros((16, 3))},
            r"'fc1.weight' has shape \(16, 3\), this model needs \(2, 3\); check model",
        ),
        ({"fc1_bias": np.zeros((2, 1))}, r"'fc1.bias' has shape \(2, 1\), this model needs \(2,\)"),
        ({"fc1_bias": np.array([b"a", b"b"], dtype="S1")}, r"'fc1.bias' has type .*, expected numbers"),
        ({"fc1_bias": np.array([0, np.nan])}, r"'fc1.bias' contains a value that is not finite"),
    ],
    ids=["missing", "other hidden size", "other axes", "text", "NaN"],
)
def test_a_variable_that_does_not_fit(tmp_path, changes, words):
    with pytest.raises(DataError, match=words):
        load_initial_weights(build_icenet(3, 2, "none", seed=1), write_weights(tmp_path / "w.nc", **changes))


def test_a_damaged_block(tmp_path):
    path = write_weights(tmp_path / "w.nc")
    path.write_bytes(path.read_bytes()[:-3000])
    with pytest.raises(DataError, match=r"w.nc: cannot be read"):
        load_initial_weights(build_icenet(3, 2, "none", seed=1), path)


def mlp(seed, **settings):
    return build_model(network_settings(name="mlp", **settings), 3, 2, seed)


def test_a_model_file_gives_what_was_learnt_and_not_the_normalisation(tmp_path):
    source, model = mlp(1, batch_norm=True), mlp(2, batch_norm=True)
    source.set_normalization(*map(torch.ones, (3, 3, 2, 2)))
    source.network.layers[0].norm.running_mean.fill_(7)
    save_model(source, tmp_path / "model.pt")
    (tmp_path / "model.pt").rename(tmp_path / "weights")
    load_initial_weights(model, tmp_path / "weights")
    for name, value in model.state_dict().items():
        is_normalisation = name.startswith(("input_", "output_"))
        assert torch.equal(value, (mlp(2, batch_norm=True) if is_normalisation else source).state_dict()[name]), name


def test_a_model_file_that_does_not_fit(tmp_path):
    path = tmp_path / "model.pt"
    save_model(mlp(1), path)
    with pytest.raises(DataError, match=r"no tensor 'fc1.weight'; it has input_mean, .*network.layers.0.linear.weight"):
        load_initial_weights(build_icenet(3, 2, "none", seed=1), path)
    with pytest.raises(DataError, match=r"'network.layers.0.linear.weight' has shape \(16, 3\), .*\(8, 3\)"):
        load_initial_weights(mlp(1, hidden_size=8), path)
    broken = mlp(1)
    with torch.no_grad():
        broken.network.layers[0].linear.bias[3] = float("inf")
    save_model(broken, path)
    with pytest.raises(DataError, match=r"'network.layers.0.linear.bias' contains a value that is not finite"):
        load_initial_weights(mlp(1), path)


def test_one_flipped_bit_of_a_weight_is_refused(tmp_path):
    path, model = tmp_path / "model.pt", mlp(1)
    save_model(model, path)
    content, weights = bytearray(path.read_bytes()), model.network.layers[0].linear.weight.detach().numpy()
    content[content.index(weights.tobytes()) + weights.nbytes // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"model.pt: is not a TorchScript file, or a damaged one .*; give") as caught:
        load_initial_weights(model, path)
    assert "\n" not in str(caught.value)


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.mark.parametrize("write", ["new", "old", "plain", "text"])
def test_a_pickle_is_refused_and_never_run(tmp_path, write):
    path, trace = tmp_path / "w.pt", tmp_path / "trace"
    content = {"fc1.weight": torch.zeros(2, 3), "bomb": Bomb(trace)}
    if write in ("new", "old"):
        torch.save(content, path, _use_new_zipfile_serialization=write == "new")
    else:
        path.write_bytes(pickle.dumps(Bomb(trace)) if write == "plain" else b"no model")
    with pytest.raises(
        DataError, match=r"w.pt: is not a TorchScript file, or a damaged one .*give the model.pt of a run, or NetCDF"
    ) as caught:
        load_initial_weights(build_icenet(3, 2, "none", seed=1), path)
    assert "\n" not in str(caught.value)
    assert not trace.exists()
