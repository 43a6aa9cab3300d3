"""Batch norm in the engines: torch's own formula, and the same bits on any number of (played) ranks."""

import pytest
import torch
from played_runs import MLP, RATE, Run, fitted_hashes, in_turns, one_step, points, record_sent, run_alone, runs
from torch import nn

from mpitrain.errors import StoppedError
from mpitrain.models.batch_norm import batch_norm_layers, to_exportable

BATCH_NORM = (*MLP, "model.batch_norm=true", "training.engine=eager")
COMPILED = (*MLP, "model.batch_norm=true", "model.dropout=0.2", "training.engine=compiled")
SYNC = (*BATCH_NORM, "distributed.sync_batch_norm=true")
EXACT = ("training.dtype=float64", "training.optimizer.type=sgd")
# 96 samples make three full batches; of 116 the last one is short in every slice.
NUM_SAMPLES = [96, 116]


def torchs_own(run):
    """A copy of the run's network with torch's own layers, in training mode."""
    plain = to_exportable(run.model).train()
    plain.zero_grad()
    return plain


def real_rows(piece):
    is_sample = piece.weights[:, 0] == 1
    return piece.inputs[is_sample], piece.targets[is_sample]


def summed_loss(model, inputs, targets):
    return nn.functional.mse_loss(model(inputs) / model.output_std, targets / model.output_std, reduction="sum")


def statistics(model):
    return [torch.as_tensor(buffer) for name, buffer in model.named_buffers() if "running" in name]


def flat_gradient(model):
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters()])


@pytest.mark.parametrize("num_samples", NUM_SAMPLES)
def test_synchronised_moments_are_torch_s_over_the_whole_batch(num_samples):
    run = run_alone(*SYNC, *EXACT, samples=points(num_samples))
    run.engine.start_epoch(0)
    assert run.engine.steps_per_epoch == -(-num_samples // 32)
    for step in range(run.engine.steps_per_epoch):
        plain = torchs_own(run)
        inputs, targets = real_rows(run.engine.joined_microbatch(step))
        (summed_loss(plain, inputs, targets) / targets.numel()).backward()
        one_step(run.engine, step, RATE)
        torch.testing.assert_close(run.gradient(), flat_gradient(plain), rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(statistics(run.model), statistics(plain), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("num_samples", NUM_SAMPLES)
def test_without_synchronisation_each_slice_is_normalised_by_itself(num_samples):
    run = run_alone(*BATCH_NORM, *EXACT, samples=points(num_samples))
    run.engine.start_epoch(0)
    for step in range(run.engine.steps_per_epoch):
        plain, first = torchs_own(run), batch_norm_layers(run.model)[0]
        before, pieces = first.running_mean.clone(), [real_rows(piece) for piece in run.engine.microbatches(step)]
        num_targets = sum(targets.numel() for _, targets in pieces)
        (sum(summed_loss(plain, *piece) for piece in pieces) / num_targets).backward()
        # The running statistics are the whole batch's; the first layer sees what no normalisation has touched.
        inputs = (torch.cat([piece[0] for piece in pieces]) - run.model.input_mean) / run.model.input_std
        with torch.no_grad():
            expected = 0.9 * before + 0.1 * run.model.network.layers[0].linear(inputs).mean(0)
        one_step(run.engine, step, RATE)
        torch.testing.assert_close(run.gradient(), flat_gradient(plain), rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(first.running_mean, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    "more",
    [(), ("training.gradient_accumulation_steps=2",), ("training.gradient_checkpointing=true",)],
    ids=["plain", "accumulated", "checkpointed"],
)
@pytest.mark.parametrize("settings", [BATCH_NORM, SYNC], ids=["unsync", "sync"])
def test_any_number_of_ranks_gives_the_same_bits_with_padding(settings, more):
    (one,) = fitted_hashes(1, *settings, *more)
    for num_ranks in (2, 3, 4, 8):
        assert fitted_hashes(num_ranks, *settings, *more) == [one] * num_ranks


def test_checkpointed_blocks_and_accumulated_parts_have_their_effect():
    plain, checkpointed, accumulated = (
        fitted_hashes(1, *SYNC, *more)
        for more in ((), ("training.gradient_checkpointing=true",), ("training.gradient_accumulation_steps=2",))
    )
    assert checkpointed == plain
    assert accumulated != plain, "moments of a part are not those of the batch"


def test_synchronised_differs_from_unsynchronised():
    losses = [runs(1, *settings, what=Run.steps)[0] for settings in (BATCH_NORM, SYNC, MLP)]
    assert len({tuple(own) for own in losses}) == 3


def test_a_layer_synchronises_once_each_way():
    """Two layers: two sums on the way forth, two on the way back, and the gradient; of all slices of a rank at once."""

    def body(communicator):
        run = Run(communicator, SYNC)
        sent = record_sent(communicator)
        run.steps(1)
        return [len(tensor) for tensor in sent]

    sums = 1 + 2 * 9
    lengths = in_turns(2, body)[0]
    assert lengths[:-1] == [sums] * 4
    assert lengths[-1] > 4 * sums


@pytest.mark.parametrize("settings", [BATCH_NORM, SYNC, COMPILED], ids=["unsync", "sync", "compiled"])
def test_a_resumed_run_keeps_running_statistics(settings):
    straight = run_alone(*settings).fit()
    first = run_alone(*settings, "training.max_steps=3")
    with pytest.raises(StoppedError):
        first.fit()
    resumed = run_alone(*settings)
    resumed.trainer.resume(first.checkpoint)
    assert all(map(torch.equal, statistics(resumed.model), statistics(first.model)))
    assert not all(map(torch.equal, statistics(resumed.model), statistics(run_alone(*settings).model)))
    assert resumed.fit().sha256() == straight.sha256()
