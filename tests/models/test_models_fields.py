"""Networks over fields: shapes of any size, edges, and longitudes that wrap around."""

import pytest
import torch
from networks import network_settings
from torch import nn

from mpitrain.models.build import build_model


def build(dtype=torch.float64, num_inputs=2, num_outputs=3, **settings):
    section = network_settings(**{"hidden_size": 4, "hidden_layers": 2, **settings})
    model = build_model(section, num_inputs, num_outputs, seed=3, dtype=dtype)
    model.set_normalization(
        torch.full((num_inputs,), 0.5), torch.full((num_inputs,), 2.0),
        torch.arange(num_outputs) + 1.0, torch.arange(num_outputs) + 10.0,
    )  # fmt: skip
    return model


def some_fields(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("name", ["cnn", "unet"])
@pytest.mark.parametrize(("height", "width"), [(8, 12), (7, 5), (1, 1), (9, 2)])
def test_any_size_of_field_keeps_its_shape(name, periodic, height, width):
    model = build(name=name, periodic=periodic, kernel_size=5, batch_norm=True, dropout=0.1)
    fields = some_fields(2, 2, height, width).requires_grad_()
    outputs = model(fields)
    assert outputs.shape == (2, 3, height, width)
    outputs.sum().backward()
    assert torch.isfinite(outputs).all()
    assert all(torch.isfinite(p.grad).all() and (p.grad != 0).any() for p in model.parameters() if p.dim() > 1)


@pytest.mark.parametrize(("name", "turn"), [("cnn", 1), ("unet", 4)])
def test_a_turned_globe_gives_the_turned_answer_only_if_periodic(name, turn):
    fields = some_fields(1, 2, 6, 16)
    for periodic in (True, False):
        model = build(name=name, periodic=periodic)
        turned_first, turned_last = model(fields.roll(turn, 3)), model(fields).roll(turn, 3)
        assert torch.allclose(turned_first, turned_last, rtol=0, atol=1e-12) is periodic
        # Poles do not wrap.
        assert not torch.allclose(model(fields.roll(turn, 2)), model(fields).roll(turn, 2), rtol=0, atol=1e-3)


def test_a_cnn_without_periods_is_torchs_layers():
    model, fields = build(name="cnn", hidden_layers=1, hidden_activation="tanh"), some_fields(2, 2, 5, 6)
    weight, bias, last_weight, last_bias = model.parameters()
    hidden = torch.tanh(nn.functional.conv2d((fields - 0.5) / 2, weight, bias, padding=1))
    outputs = nn.functional.conv2d(hidden, last_weight, last_bias)
    scale = torch.arange(3).view(3, 1, 1)
    torch.testing.assert_close(model(fields), outputs * (scale + 10) + scale + 1, rtol=1e-13, atol=0)


def test_a_unet_sees_far_and_keeps_the_near():
    """The fine field reaches the output through the skip, and a far point through the coarse levels."""
    model, fields = build(name="unet", hidden_layers=3, num_outputs=1), some_fields(1, 2, 32, 32).requires_grad_()
    (slope,) = torch.autograd.grad(model(fields)[0, 0, 16, 16], fields)
    assert slope[0, :, 16, 16].abs().min() > 0
    assert slope[0, :, 2, 2].abs().max() > 0
    with torch.no_grad():
        model.network.widen[-1].weight.zero_()
    (slope,) = torch.autograd.grad(model(fields)[0, 0, 16, 16], fields)
    assert slope[0, :, 16, 16].abs().max() > 0
    assert slope[0, :, 2, 2].abs().max() == 0
    shallow = build(name="unet", hidden_layers=1, num_outputs=1)
    (slope,) = torch.autograd.grad(shallow(fields)[0, 0, 16, 16], fields)
    assert slope[0, :, 2, 2].abs().max() == 0


def test_padding_of_an_odd_field_does_not_leak_into_the_batch():
    model, fields = build(name="unet"), some_fields(3, 2, 7, 9)
    together = model(fields)
    torch.testing.assert_close(model(fields[1:2]), together[1:2], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("grid", [None, [5, 6]])
@pytest.mark.parametrize("name", ["cnn", "unet"])
def test_a_linear_part_begins_at_the_given_coefficients(name, grid):
    model, fields = build(name=name, linear_part=True, grid=grid), some_fields(2, 2, 5, 6)
    everywhere, here = some_fields(3, 3), some_fields(3, 3, 5, 6)
    model.network.begin(everywhere, None if grid is None else here)
    weight = everywhere.T[:, :, None, None] + (0 if grid is None else here)  # (O, 1 + F, H, W)
    inputs = torch.cat([torch.ones(2, 1, 5, 6, dtype=torch.float64), (fields - 0.5) / 2], dim=1)
    outputs = (inputs[:, None] * weight).sum(2)
    scale = torch.arange(3).view(3, 1, 1)
    torch.testing.assert_close(model(fields), outputs * (scale + 10) + scale + 1, rtol=1e-12, atol=1e-12)
    model(fields).square().sum().backward()
    assert (model.network.network.output.weight.grad != 0).any(), "the convolutions can learn"


def test_a_network_of_one_grid_refuses_another():
    with pytest.raises(ValueError, match="only the grid of its training data"):
        build(name="cnn", linear_part=True, grid=[5, 6])(some_fields(2, 2, 6, 5))


def test_without_a_linear_part_nothing_is_another():
    plain, other = (build(name="cnn", linear_part=linear).state_dict() for linear in (False, True))
    assert {name.replace("network.network", "network") for name in other} - set(plain) == {
        "network.linear.weight", "network.linear.bias",
    }  # fmt: skip
