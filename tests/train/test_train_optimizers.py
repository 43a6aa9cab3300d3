"""Adam in two arithmetics, each against its formula."""

import math

import pytest
import torch

from mpitrain.config.training import OPTIMIZERS
from mpitrain.train.optimizers.libtorch_adam import LibtorchAdam
from mpitrain.train.optimizers.state import optimizer_tensors, restore_optimizer

RATE, BETA1, BETA2, EPSILON = 0.01, 0.8, 0.95, 1e-6
NAMES, SHAPES = ["a", "b"], ((13, 7), (2,))


def gradients(num_steps, dtype):
    generator = torch.Generator().manual_seed(1)
    for _ in range(num_steps):
        yield [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in SHAPES]


def parameters(dtype=torch.float64):
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype).requires_grad_() for s in SHAPES]


def walk(optimizer, params, num_steps, dtype=torch.float64, skip=0):
    for step, grads in enumerate(gradients(num_steps, dtype)):
        if step < skip:
            continue
        for parameter, grad in zip(params, grads, strict=True):
            parameter.grad = grad
        optimizer.step()
    return torch.cat([parameter.detach().view(-1) for parameter in params])


def adam_in_plain_python(num_steps, weight_decay=0.0):
    """Kingma and Ba, 2015, algorithm 1, one number at a time."""
    numbers = torch.cat([parameter.detach().view(-1) for parameter in parameters()]).tolist()
    m, v = [0.0] * len(numbers), [0.0] * len(numbers)
    for t, grads in enumerate(gradients(num_steps, torch.float64), start=1):
        for i, g in enumerate(torch.cat([grad.view(-1) for grad in grads]).tolist()):
            g += weight_decay * numbers[i]
            m[i] = BETA1 * m[i] + (1 - BETA1) * g
            v[i] = BETA2 * v[i] + (1 - BETA2) * g * g
            m_hat, v_hat = m[i] / (1 - BETA1**t), v[i] / (1 - BETA2**t)
            numbers[i] -= RATE * m_hat / (math.sqrt(v_hat) + EPSILON)
    return torch.tensor(numbers, dtype=torch.float64)


def settings(**changes):
    values = {"learning_rate": RATE, "beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON, **changes}
    return OPTIMIZERS.validate(values)


@pytest.mark.parametrize("arithmetic", ["plain", "reference"])
@pytest.mark.parametrize("num_steps", [1, 2, 50])
def test_adam_is_the_formula(arithmetic, num_steps):
    params = parameters()
    found = walk(settings().build(params, arithmetic), params, num_steps)
    torch.testing.assert_close(found, adam_in_plain_python(num_steps), rtol=1e-12, atol=1e-14)


def test_weight_decay_is_added_to_the_gradient():
    params = parameters()
    found = walk(settings(weight_decay=0.3).build(params), params, 20)
    torch.testing.assert_close(found, adam_in_plain_python(20, 0.3), rtol=1e-12, atol=1e-14)


def test_standard_adam_is_torchs_own_to_the_bit():
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    optimizer = settings().build(ours)
    assert type(optimizer) is torch.optim.Adam
    # The plain loop: the fused kernel may differ in the last bits, on larger networks than this one.
    assert (optimizer.defaults["foreach"], optimizer.defaults["fused"]) == (False, False)
    expected = torch.optim.Adam(theirs, lr=RATE, betas=(BETA1, BETA2), eps=EPSILON)
    assert torch.equal(walk(optimizer, ours, 40, torch.float32), walk(expected, theirs, 40, torch.float32))


@pytest.mark.parametrize(
    ("kind", "options", "theirs"),
    [
        ("adamw", {"weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, RATE, (BETA1, BETA2), EPSILON, 0.1)),
        ("sgd", {"weight_decay": 0.1}, lambda p: torch.optim.SGD(p, RATE, weight_decay=0.1)),
        ("sgd", {"momentum": 0.9}, lambda p: torch.optim.SGD(p, RATE, 0.9)),
    ],
    ids=["adamw", "sgd", "sgd with momentum"],
)
def test_other_optimizers_are_torchs_own(kind, options, theirs):
    ours, expected = parameters(torch.float32), parameters(torch.float32)
    found = walk(settings(type=kind, **options).build(ours), ours, 20, torch.float32)
    assert torch.equal(found, walk(theirs(expected), expected, 20, torch.float32))


def test_libtorchs_adam_is_its_own_order_of_operations_to_the_bit():
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    found = walk(settings().build(ours, "reference"), ours, 40, torch.float32)
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in theirs]
    with torch.no_grad():
        for t, grads in enumerate(gradients(40, torch.float32), start=1):
            for p, g, (m, v) in zip(theirs, grads, moments, strict=True):
                m.mul_(BETA1).add_(g, alpha=1 - BETA1)
                v.mul_(BETA2).addcmul_(g, g, value=1 - BETA2)
                denominator = (v.sqrt() / (1 - BETA2**t) ** 0.5).add_(EPSILON)
                p.addcdiv_(m, denominator, value=-RATE / (1 - BETA1**t))
    assert torch.equal(found, torch.cat([p.detach().view(-1) for p in theirs]))
    python_torch = parameters(torch.float32)
    other = walk(settings().build(python_torch), python_torch, 40, torch.float32)
    assert not torch.equal(found, other), "this case would not tell the two arithmetics apart"
    torch.testing.assert_close(found, other, rtol=1e-4, atol=1e-5)


def test_a_parameter_without_a_gradient_is_left_alone():
    params = parameters()
    before = params[1].detach().clone()
    optimizer = LibtorchAdam(params, RATE, (BETA1, BETA2), EPSILON)
    params[0].grad = torch.ones_like(params[0])
    optimizer.step()
    assert torch.equal(params[1], before)
    assert params[1] not in optimizer.state


def test_the_learning_rate_of_the_moment_is_used():
    params = parameters()
    optimizer = LibtorchAdam(params[1:], RATE, (BETA1, BETA2), EPSILON)
    before = params[1].detach().clone()
    optimizer.param_groups[0]["lr"] = 0.25
    params[1].grad = torch.tensor([2.0, -3.0], dtype=torch.float64)
    optimizer.step()
    # Adam's first step is as long as the learning rate, whatever the gradient.
    torch.testing.assert_close(before - params[1], torch.tensor([0.25, -0.25]).double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("arithmetic", ["plain", "reference"])
def test_a_restored_optimizer_goes_on_with_the_same_bits(arithmetic):
    straight = parameters(torch.float32)
    expected = walk(settings().build(straight, arithmetic), straight, 12, torch.float32)
    first = parameters(torch.float32)
    optimizer = settings().build(first, arithmetic)
    walk(optimizer, first, 5, torch.float32)
    saved = optimizer_tensors(optimizer, NAMES)
    assert set(saved) == {f"optimizer.{name}.{key}" for name in NAMES for key in ("step", "exp_avg", "exp_avg_sq")}
    assert float(saved["optimizer.a.step"]) == 5
    moment = saved["optimizer.a.exp_avg"].clone()
    second = [parameter.detach().clone().requires_grad_() for parameter in first]
    walk(optimizer, first, 6, torch.float32, skip=5)
    assert torch.equal(saved["optimizer.a.exp_avg"], moment), "what was saved is no copy"
    assert float(saved["optimizer.a.step"]) == 5
    resumed = settings().build(second, arithmetic)
    restore_optimizer(resumed, NAMES, saved)
    assert torch.equal(walk(resumed, second, 12, torch.float32, skip=5), expected)


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_one_kernel_for_the_update_is_the_loop_to_rounding_and_restores(kind):
    settings = OPTIMIZERS.validate({"type": kind, "learning_rate": RATE, "weight_decay": 0.1, "momentum": 0.5})
    results = {}
    for is_fused in (False, True):
        params = parameters()
        results[is_fused] = walk(settings.build(params, "fused" if is_fused else "plain"), params, 5)
    torch.testing.assert_close(results[True], results[False], rtol=1e-10, atol=1e-12)
    first, second = parameters(), parameters()
    begun = settings.build(first, "fused")
    walk(begun, first, 2)
    with torch.no_grad():
        for own, saved in zip(second, first, strict=True):
            own.copy_(saved)
    resumed = settings.build(second, "fused")
    assert resumed.param_groups[0]["fused"] is True
    restore_optimizer(resumed, NAMES, optimizer_tensors(begun, NAMES))
    assert torch.equal(walk(resumed, second, 5, skip=2), results[True])
