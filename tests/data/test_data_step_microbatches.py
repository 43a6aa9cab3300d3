"""A step's slices read at once are those read one by one, wherever the virtual ranks' samples lie in one memory."""

from dataclasses import replace

import pytest
import torch
from test_data_batches import all_batches, samples_in_memory

from mpitrain.data.dataset.batches import VirtualRankBatches, plan_batches
from mpitrain.data.dataset.step_microbatches import StepMicrobatches, StepMicrobatchesInMemory, open_step_microbatches

PLAN = plan_batches(97, 27, 8)  # shares of 12 and 13, the last slices padded


def in_one_memory():
    """The batches of 8 virtual ranks, whose samples follow one another as distribute() lays them."""
    apart = all_batches(97, PLAN)
    columns = zip(
        *((own.samples.padded_inputs, own.samples.padded_targets, own.samples.padded_weights) for own in apart),
        strict=True,
    )
    lengths = [len(own.samples) + 1 for own in apart]
    parts = zip(*(torch.cat(column).split(lengths) for column in columns), strict=True)
    return [_batches(own, *tensors) for own, tensors in zip(apart, parts, strict=True)]


def in_shared_tensors():
    """The same batches, where each virtual rank's rows lie scattered in tensors that all of them share."""
    everything = samples_in_memory(0, torch.arange(1.0, 98)[:, None].expand(-1, 3), torch.arange(1.0, 98))
    apart = all_batches(97, PLAN)
    tensors = everything.padded_inputs, everything.padded_targets, everything.padded_weights
    places = [torch.cat([own.samples.targets[:, 0].long() - 1, torch.tensor([97])]) for own in apart]
    return [_batches(own, *tensors, places=rows) for own, rows in zip(apart, places, strict=True)]


def _batches(own, inputs, targets, weights, **more):
    samples = replace(own.samples, padded_inputs=inputs, padded_targets=targets, padded_weights=weights, **more)
    return VirtualRankBatches(samples, PLAN, seed=3, shuffle=True)


@pytest.mark.parametrize("batches_of", [in_one_memory, in_shared_tensors])
def test_slices_read_at_once_are_those_read_one_by_one(batches_of):
    at_once, one_step_per_call = open_step_microbatches(batches_of()), StepMicrobatches(all_batches(97, PLAN))
    assert isinstance(at_once, StepMicrobatchesInMemory)
    for epoch in range(3):
        for slices in (at_once, one_step_per_call):
            slices.start_epoch(epoch)
        for step in range(PLAN.steps_per_epoch):
            for chosen in (slice(None), slice(0, 4), slice(5, 7), slice(7, 8)):
                _assert_equal(at_once.stacked(step, chosen), one_step_per_call.stacked(step, chosen))
            _assert_equal(at_once.joined(step), one_step_per_call.joined(step))
            for own, other in zip(at_once.apart(step), one_step_per_call.apart(step), strict=True):
                _assert_equal(own, other)


def _assert_equal(own, other):
    assert own.virtual_rank == other.virtual_rank
    for name in ("inputs", "targets", "weights"):
        assert torch.equal(getattr(own, name), getattr(other, name)), name


def test_samples_in_several_memories_are_an_error():
    with pytest.raises(ValueError, match="are not contiguous in memory"):
        open_step_microbatches(all_batches(97, PLAN))
