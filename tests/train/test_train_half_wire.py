"""`distributed.fp16_allreduce` with our own engines: gradients travel in half the bytes, loss and weight in full."""

import pytest
import torch
from played_runs import MLP, Run, in_turns, points, record_sent

HALF = "distributed.fp16_allreduce=true"
ENGINES = ["training.engine=eager", "training.engine=compiled"]


def one_step(num_ranks, *settings, samples=None):
    """Return each rank's gradient, its loss and what it sent in a step, after the mean over `num_ranks` ranks."""

    def body(communicator):
        run = Run(communicator, (*MLP, *settings), samples)
        sent = record_sent(communicator)
        (loss,) = run.steps(1)
        return run.parameters(), loss, [(tensor.dtype, tensor.numel()) for tensor in sent]

    return in_turns(num_ranks, body)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_gradient_travels_in_float16_and_is_its_rounding(engine):
    sgd = ("training.optimizer.type=sgd", engine)
    exact, half = (one_step(2, *sgd, setting) for setting in ("training.reduction=any", HALF))
    num_parameters = exact[0][0].numel()
    for (weights, loss, sent), (exact_weights, exact_loss, exact_sent) in zip(half, exact, strict=True):
        assert sent == [(torch.float16, num_parameters), (torch.float32, 3)]
        assert exact_sent == [(torch.float32, num_parameters + 3)]
        assert not torch.equal(weights, exact_weights)
        torch.testing.assert_close(weights, exact_weights, rtol=1e-3, atol=1e-4)
        assert loss == exact_loss, "the loss is not exact"
    assert torch.equal(half[0][0], half[1][0])


@pytest.mark.parametrize("engine", ENGINES)
def test_large_sums_do_not_overflow_on_the_way(engine):
    """A whole batch's summed gradient is beyond float16's 65504; its mean, which travels, is not."""
    samples = points(3000)
    settings = (
        "training.global_batch_size=full",
        "model.normalize_outputs=false",
        "training.optimizer.type=sgd",
        engine,
    )
    samples.targets[:] += 300
    for weights, loss, _ in one_step(2, *settings, HALF, samples=samples):
        assert torch.isfinite(weights).all()
        assert loss > 1000
