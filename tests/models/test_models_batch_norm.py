"""Batch norm of virtual ranks: torch's own for one full slice, the whole batch's for synchronised slices."""

import copy

import pytest
import torch
from torch import nn

from mpitrain.models.batch_norm import (
    VirtualBatchNorm,
    batch_norm_layers,
    find_batch_context,
    moment_length,
    take_batch_sums,
    to_exportable,
    update_running_statistics,
    use_virtual_batch_norm,
)

SHAPES = {"points": (12, 3), "fields": (6, 3, 4, 5)}


def torchs(kind, dtype=torch.float32, momentum=0.1):
    layer = (nn.BatchNorm1d if kind == "points" else nn.BatchNorm2d)(3, momentum=momentum)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, -2.0, 0.5]))
        layer.bias.copy_(torch.tensor([0.1, 0.2, 0.3]))
        layer.running_mean.copy_(torch.tensor([4.0, 0.0, -1.0]))
    return layer.to(dtype)


def ours(kind, dtype=torch.float32, momentum=0.1):
    return use_virtual_batch_norm(torchs(kind, dtype, momentum))


def some(kind, dtype=torch.float32):
    values = torch.randn(SHAPES[kind], generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return (values * 3 + 5).to(dtype)


def run(layer, inputs):
    inputs = inputs.clone().requires_grad_()
    outputs = layer(inputs)
    (outputs * torch.sin(torch.arange(outputs.numel()).view_as(outputs))).sum().backward()
    return outputs.detach(), inputs.grad, layer.weight.grad, layer.bias.grad


def assert_all_close(found, expected, tolerance):
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 1e-13)])
@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("weighted", [False, True], ids=["no weights", "weights of 1"])
@pytest.mark.parametrize("kind", SHAPES)
def test_one_full_slice_is_torchs_batch_norm(kind, weighted, momentum, dtype, tolerance):
    expected_layer, layer = torchs(kind, dtype, momentum), ours(kind, dtype, momentum)
    assert list(layer.state_dict()) == list(expected_layer.state_dict())
    for number in range(3):
        inputs = some(kind, dtype) + number
        find_batch_context(layer).row_weights = torch.ones(SHAPES[kind][0]) if weighted else None
        layer.zero_grad()
        expected_layer.zero_grad()
        assert_all_close(run(layer, inputs), run(expected_layer, inputs), tolerance)
        before = layer.running_mean.clone()
        update_running_statistics(layer, take_batch_sums(layer))
        assert not torch.equal(layer.running_mean, before)
        assert_all_close(layer.buffers(), expected_layer.buffers(), tolerance)
    assert torch.equal(layer.eval()(inputs), layer.to_torch()(inputs))


@pytest.mark.parametrize("kind", SHAPES)
def test_rows_of_weight_zero_count_for_nothing(kind):
    inputs = some(kind, torch.float64)
    filled = torch.cat([inputs, torch.full_like(inputs[:2], 1e3)])
    alone, layer = ours(kind, torch.float64), ours(kind, torch.float64)
    find_batch_context(layer).row_weights = torch.tensor([1.0] * len(inputs) + [0.0] * 2)
    torch.testing.assert_close(layer(filled)[:-2], alone(inputs), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(take_batch_sums(layer), take_batch_sums(alone), rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("real_rows", [0, 1])
def test_a_slice_of_one_row_or_none_stays_finite(real_rows):
    layer, inputs = ours("points"), torch.zeros(4, 3)
    find_batch_context(layer).row_weights = torch.tensor([1.0] * real_rows + [0.0] * (4 - real_rows))
    inputs = inputs.requires_grad_()
    outputs = layer(inputs)
    (outputs[:real_rows].sum() + 0 * outputs.sum()).backward()
    assert all(torch.isfinite(tensor).all() for tensor in (outputs, inputs.grad, layer.weight.grad))
    update_running_statistics(layer, take_batch_sums(layer))
    assert all(torch.isfinite(buffer).all() for buffer in layer.buffers())


@pytest.mark.parametrize("kind", SHAPES)
def test_slices_summed_give_the_whole_batchs_running_statistics(kind):
    """Uneven slices far from zero, in float32: the sums are about the running mean, so that little is lost."""
    inputs = some(kind) + 2000
    layer, whole = ours(kind), torchs(kind)
    for one in (layer, whole):
        one.running_mean.fill_(2005)
    whole(inputs)
    total = torch.zeros(moment_length(layer))
    for rows in (slice(0, 1), slice(1, 4), slice(4, None)):
        layer(inputs[rows])
        total += take_batch_sums(layer)
    update_running_statistics(layer, total)
    assert_all_close(layer.buffers(), whole.buffers(), 1e-5)
    assert int(layer.num_batches_tracked) == 1


@pytest.mark.parametrize("kind", SHAPES)
def test_synchronised_slices_are_one_batch(kind):
    """`synchronise` adds the other slices' sums; gradients flow back through all of them."""
    whole, inputs = torchs(kind, torch.float64), some(kind, torch.float64)
    expected = run(whole, inputs)
    layer = ours(kind, torch.float64)
    cut = 4
    parts = [inputs[:cut].clone().requires_grad_(), inputs[cut:].clone().requires_grad_()]
    weights = [None, torch.tensor([1.0] * (len(inputs) - cut) + [0.0])]
    padded = [parts[0], torch.cat([parts[1], torch.full_like(parts[1][:1], 77.0)])]

    def sums_of(number):
        find_batch_context(layer).row_weights = weights[number]
        seen = []
        find_batch_context(layer).synchronise = lambda sums: seen.append(sums) or sums
        layer(padded[number])
        return seen[0]

    outputs = []
    for number in (0, 1):
        other = sums_of(1 - number)
        find_batch_context(layer).row_weights = weights[number]
        find_batch_context(layer).synchronise = lambda sums, other=other: sums + other
        outputs.append(layer(padded[number])[: len(parts[number])])
    joined = torch.cat(outputs)
    (joined * torch.sin(torch.arange(joined.numel()).view_as(joined))).sum().backward()
    gradients = torch.cat([part.grad for part in parts])
    assert_all_close((joined.detach(), gradients, layer.weight.grad, layer.bias.grad), expected, 1e-10)


def model_of_two():
    torch.manual_seed(0)
    layers = [
        nn.Linear(3, 4),
        nn.BatchNorm1d(4),
        nn.ReLU(),
        nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2, affine=False)),
    ]
    return nn.Sequential(*layers)


def test_the_layers_of_a_model_share_a_context_and_a_vector():
    model = use_virtual_batch_norm(model_of_two())
    assert [layer.num_features for layer in batch_norm_layers(model)] == [4, 2]
    assert moment_length(model) == 9 + 5
    assert {id(layer.context) for layer in batch_norm_layers(model)} == {id(find_batch_context(model))}
    assert torch.equal(take_batch_sums(model), torch.zeros(14))
    model(torch.randn(6, 3))
    sums = take_batch_sums(model)
    assert sums[[0, 9]].tolist() == [6, 6]
    assert not sums.requires_grad
    assert torch.equal(take_batch_sums(model), torch.zeros(14))
    assert moment_length(nn.Linear(2, 2)) == take_batch_sums(nn.Linear(2, 2)).numel() == 0
    assert find_batch_context(nn.Linear(2, 2)) is None


def test_a_copy_has_its_own_shared_context():
    model = use_virtual_batch_norm(model_of_two())
    find_batch_context(model).synchronise = lambda sums: sums
    other = copy.deepcopy(model)
    contexts = {id(layer.context) for layer in batch_norm_layers(other)}
    assert len(contexts) == 1
    assert find_batch_context(other) is not find_batch_context(model)
    assert find_batch_context(other).synchronise is None


def test_the_exportable_copy_is_torchs_and_the_model_stays():
    model = use_virtual_batch_norm(model_of_two())
    model(torch.randn(6, 3))
    update_running_statistics(model, take_batch_sums(model))
    plain = to_exportable(model)
    assert not batch_norm_layers(plain)
    assert isinstance(plain[1], nn.BatchNorm1d)
    assert list(plain.state_dict()) == list(model.state_dict()) == list(model_of_two().state_dict())
    assert len(batch_norm_layers(model)) == 2
    assert model.training
    inputs = torch.randn(5, 3)
    assert torch.equal(plain(inputs), model.eval()(inputs))
    plain[1].running_mean.zero_()
    assert model[1].running_mean.abs().max() > 0


def test_the_dtype_of_a_narrow_input_comes_back():
    layer = ours("points")
    for weights in (None, torch.ones(12)):
        find_batch_context(layer).row_weights = weights
        assert layer(some("points").bfloat16()).dtype == torch.bfloat16
    assert isinstance(layer, VirtualBatchNorm)
    assert take_batch_sums(layer).dtype == torch.float32


def test_the_exportable_layer_has_every_option_of_the_users_own():
    own = nn.Sequential(nn.BatchNorm1d(3, eps=0.1, momentum=0.3, affine=False))
    (layer,) = use_virtual_batch_norm(own)
    exported = layer.to_torch()
    assert (exported.eps, exported.momentum, exported.affine) == (0.1, 0.3, False)
