"""Batches: every sample once an epoch, slices of one shape, padding that weighs nothing."""

import numpy as np
import pytest
import torch

from mpitrain.data.dataset.batches import BatchPlan, VirtualRankBatches, VirtualRankSamples, members_of, plan_batches
from mpitrain.data.random_streams import keyed_permutation

NUM_FEATURES = 3


@pytest.mark.parametrize(
    ("num_samples", "batch_size", "num_virtual_ranks", "rows", "steps"),
    [
        (640, 64, 8, 8, 10), (641, 64, 8, 8, 11), (648, 64, 8, 8, 11),  # shares of 80, 81, 81
        (640, 60, 8, 8, 10), (640, 1, 8, 1, 80),  # rounded up to a multiple of V
        (640, "full", 8, 80, 1), (641, "full", 8, 81, 1), (5, "full", 8, 1, 1),
        (640, 10_000, 8, 80, 1), (5, 64, 8, 1, 1),  # never more rows than samples
        (100, 30, 1, 30, 4), (1, 1, 1, 1, 1),
    ],
)  # fmt: skip
def test_plan(num_samples, batch_size, num_virtual_ranks, rows, steps):
    plan = plan_batches(num_samples, batch_size, num_virtual_ranks)
    assert plan == BatchPlan(num_samples, num_virtual_ranks, rows, steps)
    assert plan.global_batch_size == rows * num_virtual_ranks


def all_batches(num_samples, plan, seed=3, shuffle=True):
    """Batches of every virtual rank; target i and inputs (i, i, i) tell which sample it is, counted from 1."""
    batches = []
    for v in range(plan.num_virtual_ranks):
        numbers = torch.from_numpy(members_of(v, plan.num_virtual_ranks, num_samples)) + 1.0
        inputs = numbers[:, None].expand(-1, NUM_FEATURES)
        batches.append(VirtualRankBatches(samples_in_memory(v, inputs, numbers), plan, seed, shuffle))
    return batches


def samples_in_memory(v, inputs, targets):
    padded = [torch.cat([rows, rows.new_zeros((1, *rows.shape[1:]))]) for rows in (inputs, targets[:, None])]
    weights = torch.cat([torch.ones_like(targets), targets.new_zeros(1)])[:, None]
    return VirtualRankSamples(v, *padded, weights, np.arange(len(targets)))


def epoch_of(batches, plan, epoch):
    for own in batches:
        own.start_epoch(epoch)
    return [own.microbatch(step) for step in range(plan.steps_per_epoch) for own in batches]


def samples_of(pieces):
    return [int(number) for piece in pieces for number in piece.targets[piece.weights == 1]]


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("batch_size", [1, 8, 24, 27, 1000, "full"])
@pytest.mark.parametrize("num_samples", [1, 7, 8, 9, 97, 160])
def test_every_sample_is_seen_once_an_epoch(num_samples, batch_size, shuffle):
    plan = plan_batches(num_samples, batch_size, 8)
    batches = all_batches(num_samples, plan, shuffle=shuffle)
    for epoch in range(3):
        pieces = epoch_of(batches, plan, epoch)
        assert sorted(samples_of(pieces)) == list(range(1, num_samples + 1))
        for piece in pieces:
            assert piece.inputs.shape == (plan.microbatch_rows, NUM_FEATURES)
            assert piece.targets.shape == piece.weights.shape == (plan.microbatch_rows, 1)
            padding = piece.weights[:, 0] == 0
            assert torch.equal(padding, piece.targets[:, 0] == 0), "weight and sample do not go together"
            assert torch.equal(piece.inputs, piece.targets.expand(-1, NUM_FEATURES))
            assert not padding[:-1].logical_and(~padding[1:]).any(), "padding lies before a sample"


@pytest.mark.parametrize("batch_size", [1, 8, 25, 31, 96])
@pytest.mark.parametrize("num_samples", [96, 97, 160])
def test_an_exact_batch_has_as_many_samples_as_are_asked_for(num_samples, batch_size):
    plan = plan_batches(num_samples, batch_size, 8, is_exact=True)
    assert plan.global_batch_size == batch_size
    for shuffle in (False, True):
        pieces = epoch_of(all_batches(num_samples, plan, shuffle=shuffle), plan, 2)
        steps = [samples_of(pieces[first : first + 8]) for first in range(0, len(pieces), 8)]
        assert {len(step) for step in steps[:-1]} <= {batch_size}
        assert sorted(number for step in steps for number in step) == list(range(1, num_samples + 1))
        if not shuffle:  # one batch after the other of what lies in the file
            assert all(sorted(step) == list(range(step[0], step[0] + len(step))) for step in map(sorted, steps))


def test_exact_batches_of_equal_microbatches_are_those_of_before():
    before, exact = (plan_batches(97, 24, 8, is_exact=is_exact) for is_exact in (False, True))
    assert exact.steps_per_epoch == before.steps_per_epoch
    for epoch in range(2):
        first, second = (epoch_of(all_batches(97, plan), plan, epoch) for plan in (before, exact))
        assert all(torch.equal(one.targets, other.targets) for one, other in zip(first, second, strict=True))


def test_each_epoch_and_each_virtual_rank_has_its_own_order():
    plan = plan_batches(800, 400, 8)
    batches = all_batches(800, plan)
    orders = []
    for epoch in range(3):
        pieces = epoch_of(batches, plan, epoch)
        for v in range(8):
            targets = torch.cat([piece.targets[:, 0] for piece in pieces if piece.virtual_rank == v])
            ranked = ((targets - 1 - v) / 8).long()
            assert ranked.tolist() == keyed_permutation((3, 2, epoch, v), 100).tolist()
            orders.append(tuple(ranked.tolist()))
    assert len(set(orders)) == 24


def test_one_batch_of_all_samples_is_not_shuffled():
    plan = plan_batches(800, "full", 8)
    for epoch in range(2):
        for v, piece in enumerate(epoch_of(all_batches(800, plan), plan, epoch)):
            assert piece.targets[:, 0].tolist() == [v + 8 * number + 1 for number in range(100)]


def test_an_epochs_order_does_not_depend_on_the_epochs_before():
    plan = plan_batches(97, 24, 8)
    straight, resumed = all_batches(97, plan), all_batches(97, plan)
    for epoch in range(4):
        wanted = samples_of(epoch_of(straight, plan, epoch))
    assert samples_of(epoch_of(resumed, plan, 3)) == wanted
    assert samples_of(epoch_of(all_batches(97, plan, seed=4), plan, 3)) != wanted


def test_without_shuffling_samples_keep_the_files_order():
    plan = plan_batches(16, 8, 8)
    assert samples_of(epoch_of(all_batches(16, plan, shuffle=False), plan, 5)) == list(range(1, 17))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batches_keep_the_dtype(dtype):
    plan = plan_batches(9, 8, 8)
    own = VirtualRankBatches(
        samples_in_memory(1, torch.ones((1, 3), dtype=dtype), torch.ones(1, dtype=dtype)), plan, 0, True
    )
    own.start_epoch(0)
    piece = own.microbatch(1)
    assert {piece.inputs.dtype, piece.targets.dtype, piece.weights.dtype} == {dtype}
    assert piece.weights.tolist() == [[0]]
