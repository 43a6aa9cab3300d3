"""The network: its formula, its derivative, and weights that a seed fixes."""

import math

import pytest
import torch
from networks import build_icenet
from torch import nn

from mpitrain.models.icenet import IceNet

MEAN, STD = torch.linspace(-3, 30, 7), torch.linspace(0.1, 4, 7)


def network(activation="none", hidden_size=5, dtype=torch.float64):
    model = build_icenet(7, hidden_size, activation, seed=2, dtype=dtype)
    with torch.no_grad():
        model.set_normalization(MEAN, STD)
    return model


def some_inputs():
    # Around the mean, so that no sigmoid saturates.
    return MEAN + STD * torch.randn((6, 7), generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize(("hidden_size", "num_parameters"), [(2, 19), (16, 145)])
def test_number_of_parameters(hidden_size, num_parameters):
    model = build_icenet(7, hidden_size, "none", seed=0)
    assert sum(parameter.numel() for parameter in model.parameters()) == num_parameters


def test_names_and_shapes_are_the_cpp_modules():
    model = build_icenet(7, 16, "none", seed=0)
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == {
        "fc1.weight": (16, 7), "fc1.bias": (16,), "fc2.weight": (1, 16), "fc2.bias": (1,),
    }  # fmt: skip
    assert [name for name, _ in model.named_parameters()] == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]
    buffers = dict(model.named_buffers())
    assert buffers["input_mean"].tolist() == [0] * 7
    assert buffers["input_std"].tolist() == [1] * 7


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("none", lambda x: x),
        ("sigmoid", lambda x: 1 / (1 + math.exp(-x))),
        ("relu", lambda x: max(x, 0.0)),
        ("gelu", lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2),
    ],
)
def test_the_forward_formula_in_plain_python(activation, function):
    model, inputs = network(activation), some_inputs()
    w1, b1, w2, b2 = (parameter.tolist() for parameter in model.parameters())
    mean, std = model.input_mean.tolist(), model.input_std.tolist()
    outputs = model(inputs)
    assert outputs.shape == (6, 1)
    for row, output in zip(inputs.tolist(), outputs.view(-1).tolist(), strict=True):
        x = [(value - m) / s for value, m, s in zip(row, mean, std, strict=True)]
        hidden = [function(sum(a * b for a, b in zip(w, x, strict=True)) + b) for w, b in zip(w1, b1, strict=True)]
        total = sum(a * b for a, b in zip(w2[0], hidden, strict=True)) + b2[0]
        assert output == pytest.approx(1 / (1 + math.exp(-total)), rel=1e-13)


def test_the_jacobian_in_physical_units_is_the_formula():
    model, inputs = network(), some_inputs().requires_grad_()
    outputs = model(inputs)
    (by_autograd,) = torch.autograd.grad(outputs.sum(), inputs)
    y = outputs.detach()
    formula = y * (1 - y) * (model.fc2.weight @ model.fc1.weight).detach() / model.input_std
    torch.testing.assert_close(by_autograd, formula, rtol=1e-13, atol=0)
    assert formula.abs().min() > 1e-4


def test_a_seed_fixes_the_weights_and_leaves_the_callers_numbers():
    torch.manual_seed(99)
    expected_next = torch.rand(3)
    torch.manual_seed(99)
    first, again, other = (build_icenet(7, 4, "none", seed) for seed in (5, 5, 6))
    assert torch.equal(torch.rand(3), expected_next)
    for a, b, c in zip(first.parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


def test_weights_are_drawn_in_the_cpp_programs_order():
    model = build_icenet(7, 4, "none", seed=5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        fc1, fc2 = nn.Linear(7, 4), nn.Linear(4, 1)
        for layer in (fc1, fc2):
            nn.init.xavier_normal_(layer.weight)
    for found, expected in zip(model.parameters(), (*fc1.parameters(), *fc2.parameters()), strict=True):
        assert torch.equal(found, expected)


def test_double_precision_starts_from_the_same_weights():
    single, double = (build_icenet(7, 4, "none", 5, dtype) for dtype in (torch.float32, torch.float64))
    assert all(torch.equal(a.double(), b) for a, b in zip(single.parameters(), double.parameters(), strict=True))
    assert double.input_mean.dtype == torch.float64


def test_an_unknown_activation_is_not_guessed():
    with pytest.raises(KeyError):
        IceNet(7, 4, hidden_activation="softplus")


def test_a_network_that_waits_for_a_files_numbers_draws_none(monkeypatch):
    """Drawing for a network without memory would load torch's compiler, which takes seconds."""
    monkeypatch.setattr(nn.init, "xavier_normal_", lambda weight: pytest.fail("weights are drawn"))
    with torch.device("meta"):
        assert IceNet(7, 16, 1).fc1.weight.is_meta
