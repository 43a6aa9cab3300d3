"""Dropout: each slice of each step draws numbers of its own, which no number of (played) ranks changes."""

import pytest
import torch
from played_runs import MLP, Run, fitted_hashes, in_turns, run_alone
from torch import nn

DROPOUT = (*MLP, "model.dropout=0.3")
BATCH_NORM = ("model.batch_norm=true", "distributed.sync_batch_norm=true")
ACCUMULATED = ("training.gradient_accumulation_steps=2",)


def masks(*settings, epochs=(0,)):
    """What the first layer's dropout left out, in the order of its calls: tanh gives no zeros of its own."""
    run, seen = run_alone(*DROPOUT, "training.engine=eager", "model.hidden_size=40", *settings), []
    first = next(module for module in run.model.modules() if isinstance(module, nn.Dropout))
    first.register_forward_hook(lambda *call: seen.append((call[2] == 0).tolist()) if first.training else None)
    for epoch in epochs:
        run.steps(epoch=epoch)
    return seen


@pytest.mark.parametrize(
    "more", [(), ACCUMULATED, BATCH_NORM, (*BATCH_NORM, "training.gradient_checkpointing=true")],
    ids=["plain", "accumulated", "sync batch norm", "sync batch norm, checkpointed"],
)  # fmt: skip
def test_any_number_of_ranks_draws_the_same_numbers(more):
    (one,) = fitted_hashes(1, *DROPOUT, *more)
    for num_ranks in (2, 3, 4, 8):
        assert fitted_hashes(num_ranks, *DROPOUT, *more) == [one] * num_ranks


@pytest.mark.parametrize("more", [(), BATCH_NORM], ids=["plain", "sync batch norm"])
def test_dropout_and_its_seed_have_an_effect(more):
    hashes = {fitted_hashes(1, *MLP, *more, setting)[0] for setting in ("model.dropout=0", "model.dropout=0.3")}
    assert len(hashes) == 2
    assert masks(*more) == masks(*more)
    assert masks(*more) != masks(*more, "seed=1")


@pytest.mark.parametrize("more", [(), ACCUMULATED, BATCH_NORM], ids=["plain", "accumulated", "sync batch norm"])
def test_every_step_slice_and_part_draws_numbers_of_its_own(more):
    seen = masks(*more, epochs=(0, 1))
    assert len(seen) == 2 * 4 * 4 * (2 if more is ACCUMULATED else 1)  # epochs, steps, slices, parts
    assert len({str(mask) for mask in seen}) == len(seen)
    share = sum(cell for mask in seen for row in mask for cell in row) / sum(len(row) for mask in seen for row in mask)
    assert share == pytest.approx(0.3, abs=0.05)


@pytest.mark.parametrize("more", [(), BATCH_NORM], ids=["plain", "sync batch norm"])
def test_the_caller_s_random_state_stays(more):
    run = run_alone(*DROPOUT, *more)
    before = torch.get_rng_state()
    run.steps(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_the_process_has_drawn_before_does_not_matter():
    def body(communicator):
        torch.rand(communicator.rank + 5)
        run = Run(communicator, DROPOUT)
        torch.rand(communicator.rank + 7)
        run.fit()
        return run.sha256()

    assert set(in_turns(2, body)) == set(fitted_hashes(1, *DROPOUT))
