"""Gradient checkpointing: the same gradients to the bit, from fewer kept activations."""

import copy

import pytest
import torch
from networks import network_settings

from mpitrain.models.batch_norm import take_batch_sums
from mpitrain.models.build import build_model
from mpitrain.models.checkpointing import apply_gradient_checkpointing, remove_gradient_checkpointing

MODELS = [
    {"name": "icenet"},
    {"name": "mlp", "hidden_layers": 4, "hidden_size": 32, "dropout": 0.3, "batch_norm": True},
    {"name": "cnn", "hidden_layers": 3, "dropout": 0.3, "periodic": True},
    {"name": "unet", "hidden_layers": 2, "hidden_size": 4, "batch_norm": True},
    {"name": "torch.nn:GRUCell"},
]


def kept_and_gradients(model, inputs):
    kept = {}

    def keep(tensor):
        kept[tensor.data_ptr()] = tensor.numel()
        return tensor

    torch.manual_seed(4)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(inputs).square().sum()
    sums = take_batch_sums(model)
    return sum(kept.values()), torch.autograd.grad(loss, list(model.parameters())), sums


@pytest.mark.parametrize("settings", MODELS, ids=lambda settings: settings["name"])
def test_gradients_are_the_same_bits_and_less_is_kept(settings):
    model = build_model(network_settings(**settings), 3, 2, seed=1)
    inputs = torch.randn(3, 3, 10, 12) if settings["name"] in ("cnn", "unet") else torch.randn(64, 3)
    kept, gradients, sums = kept_and_gradients(model, inputs)
    names = list(model.state_dict())
    apply_gradient_checkpointing(model)
    apply_gradient_checkpointing(model)
    kept_less, same_gradients, same_sums = kept_and_gradients(model, inputs)
    assert all(torch.equal(a, b) for a, b in zip(gradients, same_gradients, strict=True))
    assert torch.equal(sums, same_sums)
    assert kept_less < kept
    assert list(model.state_dict()) == names
    with torch.no_grad():
        model.eval()(inputs)
    remove_gradient_checkpointing(model.train())
    assert kept_and_gradients(model, inputs)[0] == kept


def test_a_copy_computes_with_its_own_weights():
    model = build_model(network_settings(name="mlp"), 3, 2, seed=1)
    apply_gradient_checkpointing(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert other(torch.randn(4, 3)).abs().max() == 0
    assert model(torch.randn(4, 3)).abs().max() > 0
