"""From the configuration to a network: which one, the same weights for a seed, and what does not go together."""

import math

import pytest
import torch
from networks import build_icenet, network_settings
from torch import nn

from mpitrain.errors import ConfigError
from mpitrain.models.build import build_model, random_layers
from mpitrain.models.dense import DenseChain
from mpitrain.models.icenet import IceNet
from mpitrain.models.mlp import dense_chain_of
from mpitrain.models.normalized import NormalizedModel

FUNCTIONS = {
    "none": lambda x: x,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
    "relu": lambda x: max(x, 0.0),
    "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
    "silu": lambda x: x / (1 + math.exp(-x)),
}


def build(num_inputs=3, num_outputs=2, seed=5, dtype=torch.float32, **settings):
    return build_model(network_settings(**settings), num_inputs, num_outputs, seed, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_name_is_icenet_for_one_hidden_layer_to_the_bit(dtype):
    torch.manual_seed(99)
    expected_next = torch.rand(3)
    torch.manual_seed(99)
    found, expected = build(7, 1, dtype=dtype), build_icenet(7, 16, "none", 5, dtype)
    assert torch.equal(torch.rand(3), expected_next)
    assert list(found.state_dict()) == list(expected.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(found.parameters(), expected.parameters(), strict=True))
    inputs = torch.randn(5, 7).to(dtype)
    assert torch.equal(found(inputs), expected(inputs))
    assert isinstance(build(hidden_layers=2), NormalizedModel)


def test_icenet_with_several_outputs_and_none_behind_them():
    model, inputs = build(7, 3, output_activation="none"), torch.randn(5, 7)
    assert torch.equal(model(inputs), model.fc2(model.fc1(inputs)))
    assert model(inputs).shape == (5, 3)
    model.set_normalization(torch.ones(7), torch.ones(7), torch.ones(3), torch.ones(3))
    assert torch.equal(model(inputs), model.fc2(model.fc1(inputs - 1)))


@pytest.mark.parametrize("activation", FUNCTIONS)
def test_an_mlp_is_its_formula_in_plain_python(activation):
    model = build(name="mlp", hidden_layers=2, hidden_size=4, hidden_activation=activation, output_activation="tanh",
                  dtype=torch.float64)  # fmt: skip
    mean, std, output_mean, output_std = [0.5, -1, 2], [1.5, 2, 0.1], [10, -20], [3, 0.5]
    model.set_normalization(
        *(torch.tensor(values, dtype=torch.float64) for values in (mean, std, output_mean, output_std))
    )
    inputs = torch.tensor(mean) + torch.tensor(std) * torch.randn(4, 3, dtype=torch.float64)
    layers = [parameter.tolist() for parameter in model.parameters()]
    assert [tuple(p.shape) for p in model.parameters()] == [(4, 3), (4,), (4, 4), (4,), (2, 4), (2,)]
    outputs = model(inputs)
    for row, output in zip(inputs.tolist(), outputs.tolist(), strict=True):
        values = [(x - m) / s for x, m, s in zip(row, mean, std, strict=True)]
        for weight, bias, name in zip(layers[::2], layers[1::2], [activation, activation, "tanh"], strict=True):
            sums = [sum(w * x for w, x in zip(line, values, strict=True)) + b
                    for line, b in zip(weight, bias, strict=True)]  # fmt: skip
            values = [FUNCTIONS[name](total) for total in sums]
        expected = [y * s + m for y, s, m in zip(values, output_std, output_mean, strict=True)]
        assert output == pytest.approx(expected, rel=1e-12)
    assert dense_chain_of(model) == DenseChain((3, 4, 4, 2), activation, "tanh")


def test_what_is_a_chain_of_dense_layers():
    assert dense_chain_of(IceNet(7, 4, hidden_activation="gelu")) == DenseChain((7, 4, 1), "gelu", "sigmoid")
    assert dense_chain_of(build(name="mlp")) == DenseChain((3, 16, 2), "relu", "none")
    regular = build(name="mlp", hidden_layers=2, dropout=0.1, batch_norm=True)
    assert dense_chain_of(regular) == DenseChain((3, 16, 16, 2), "relu", "none", 0.1, has_batch_norm=True)
    residual = dense_chain_of(build(name="mlp", hidden_layers=2, residual=True))
    assert residual == DenseChain((3, 16, 16, 2), "relu", "none", is_residual=True)
    assert dense_chain_of(build(name="mlp", layer_norm=True)) == DenseChain(
        (3, 16, 2), "relu", "none", has_layer_norm=True
    )
    assert [dense_chain_of(build(name=name)) for name in ("cnn", "unet")] == [None] * 2


@pytest.mark.parametrize("settings", [{"name": "mlp", "hidden_layers": 3}, {"name": "cnn"}, {"name": "unet"}])
def test_a_seed_fixes_the_weights_whatever_the_dtype(settings):
    first, again, double = build(**settings), build(**settings), build(dtype=torch.float64, **settings)
    for a, b, c in zip(first.parameters(), again.parameters(), double.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a.double(), c)
    assert double.output_std.dtype == torch.float64
    others = zip(first.parameters(), build(seed=6, **settings).parameters(), strict=True)
    assert not any(torch.equal(a, b) for a, b in others)


@pytest.mark.parametrize("name", ["mlp", "cnn", "unet"])
def test_dropout_drops_in_training_only(name):
    model, plain = build(name=name, dropout=0.5), build(name=name)
    assert random_layers(model)
    assert not random_layers(plain)
    inputs = torch.randn(8, 3) if name == "mlp" else torch.randn(4, 3, 6, 8)
    assert not torch.equal(model(inputs), model(inputs))
    assert torch.equal(model.eval()(inputs), plain(inputs))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": "icenet", "hidden_layers": 2}, r"model.hidden_layers=2: icenet has no .*name=mlp or cnn or unet"),
        ({"name": "icenet", "dropout": 0.5}, r"model.dropout=0.5: icenet has no such option"),
        ({"name": "icenet", "batch_norm": True}, r"model.batch_norm=true: icenet"),
        ({"name": "icenet", "layer_norm": True}, r"model.layer_norm=true: icenet has no such .*name=mlp$"),
        ({"name": "mlp", "layer_norm": True, "batch_norm": True}, r"model.layer_norm=true: not together .*remove one"),
        ({"name": "mlp", "layer_norm": True, "hidden_size": 1}, r"layer_norm=true: .* with model.hidden_size=1; .*2$"),
        ({"name": "cnn", "residual": True}, r"model.residual=true: cnn has no such option; .*name=mlp$"),
        ({"name": "mlp", "residual": True}, r"model.residual=true: has no effect on a single hidden layer; .* 2$"),
        ({"normalize_outputs": True}, r"model.normalize_outputs=true: icenet .*model.name=mlp$"),
        ({"name": "mlp", "periodic": True}, r"model.periodic=true: mlp .*model.name=cnn or unet"),
        ({"name": "mlp", "kernel_size": 5}, r"model.kernel_size=5: mlp"),
        ({"name": "cnn", "kernel_size": 4}, r"model.kernel_size=4: even.*3 or 5"),
        ({"name": "unet", "kernel_size": 2}, r"model.kernel_size=2: even"),
        ({"name": "unet", "hidden_layers": 40}, r"model.hidden_layers=40: .*at most 8"),
        ({"name": "mlp", "normalize_outputs": True, "output_activation": "sigmoid"}, r"_activation=sigmoid.*remove"),
        ({"name": "torch.nn:Linear", "dropout": 0.1}, r"model.dropout=0.1: has no effect on named code; .*options"),
    ],
)  # fmt: skip
def test_settings_that_do_not_go_together(settings, words):
    with pytest.raises(ConfigError, match=words) as caught:
        build(**settings)
    assert "\n" not in str(caught.value)


def test_what_the_configuration_says_of_a_model():
    names = ("icenet", "mlp", "cnn", "unet", "torch.nn:Linear", None)
    sections = [network_settings(name=name) for name in names]
    assert [section.resolved(None).samples for section in sections] == [
        "points",
        "points",
        "fields",
        "fields",
        None,
        "points",
    ]
    assert [section.resolved(None).normalizes_outputs for section in sections] == [False, True, True, True, True, False]
    assert not network_settings(name="mlp", output_activation="sigmoid").normalizes_outputs
    assert not network_settings(name="mlp", normalize_outputs=False).normalizes_outputs


def test_the_order_of_an_own_models_chain_is_not_guessed():
    own = build(name="torch.nn:Linear")
    assert dense_chain_of(own) is None
    assert random_layers(own)
    assert isinstance(own.network, nn.Linear)
