"""Derivatives of every model with vector inputs, against finite differences, in Python and in its file."""

import pytest
import torch
from networks import network_settings

from mpitrain.models.build import build_model
from mpitrain.models.jacobian import input_jacobian, scalar_jacobian

MODELS = {
    "icenet": {},
    "icenet, two functions": {"name": "icenet", "hidden_activation": "tanh", "output_activation": "gelu"},
    "mlp": {"name": "mlp", "hidden_layers": 3, "hidden_activation": "gelu", "batch_norm": True, "dropout": 0.5},
    "mlp, sigmoid": {"name": "mlp", "hidden_activation": "sigmoid", "output_activation": "tanh"},
    "own": {"name": "torch.nn:Linear"},
}


def build(settings, num_outputs=2):
    model = build_model(network_settings(**settings), 3, num_outputs, seed=2, dtype=torch.float64)
    with torch.no_grad():
        statistics = ([1, -2, 3], [0.5, 2, 1], [5, 6][:num_outputs], [10, 0.1][:num_outputs])
        model.set_normalization(*(torch.tensor(values) for values in statistics))
    return model


def some_inputs():
    return torch.randn((4, 3), generator=torch.Generator().manual_seed(3), dtype=torch.float64)


@pytest.mark.parametrize("settings", MODELS.values(), ids=MODELS)
def test_the_jacobian_is_the_quotient_of_small_differences(settings):
    model, inputs, step = build(settings), some_inputs(), 1e-6
    outputs, jacobian = input_jacobian(model, inputs)
    assert model.training
    assert outputs.shape == (4, 2)
    assert jacobian.shape == (4, 2, 3)
    model.eval()
    assert torch.equal(outputs, model(inputs).detach())
    for feature in range(3):
        shift = torch.zeros(3, dtype=torch.float64)
        shift[feature] = step
        quotient = (model(inputs + shift) - model(inputs - shift)).detach() / (2 * step)
        torch.testing.assert_close(jacobian[:, :, feature], quotient, rtol=1e-6, atol=1e-7)
    assert torch.equal(model.jac(inputs), jacobian)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_one_output_without_its_axis():
    model, inputs = build({}, 1), some_inputs()
    outputs, jacobian = scalar_jacobian(model, inputs)
    y = outputs[:, None]
    assert jacobian.shape == (4, 3)
    formula = y * (1 - y) * (model.fc2.weight @ model.fc1.weight).detach() / model.input_std
    torch.testing.assert_close(jacobian, formula, rtol=1e-12, atol=0)


def test_a_caller_without_gradients_gets_derivatives_and_keeps_its_mode():
    model, inputs = build(MODELS["mlp, sigmoid"]), some_inputs()
    with torch.no_grad():
        assert torch.equal(input_jacobian(model, inputs)[1], model.jac(inputs))
        assert not torch.is_grad_enabled()


def test_fields_have_no_such_jacobian():
    model = build({"name": "cnn"})
    with pytest.raises(ValueError, match="two dimensions"):
        model.jac(torch.randn(2, 3, 4, 4, dtype=torch.float64))
