"""What the loop decides on all ranks together: learning rates by their formulas, and when to stop."""

import math
from types import SimpleNamespace

import pytest
import torch
from played_runs import MLP, Run, in_turns, one_step, record_sent, run_alone, runs

BASE = 0.01
SCHEDULED = ("training.epochs=8", f"training.optimizer.learning_rate={BASE}")


def rates(num_ranks, *settings):
    """The learning rate of each epoch; all ranks' are the same."""
    one, *others = in_turns(num_ranks, lambda communicator: Run(communicator, (*SCHEDULED, *settings)).fit().rates)
    assert all(other == one for other in others)
    return one


@pytest.mark.parametrize(
    ("num_ranks", "settings", "factor"),
    [
        (4, "", 1),
        (1, "training.learning_rate_scaling=linear", 32 / 64),
        (4, "training.learning_rate_scaling=linear", 32 / 64),
        (4, "training.learning_rate_scaling=sqrt training.global_batch_size=16", math.sqrt(16 / 64)),
        (2, "training.learning_rate_scaling=linear training.global_batch_size=null training.batch_size=16", 32 / 64),
        (4, "training.learning_rate_scaling=linear training.learning_rate_scaling_by=world_size", 4),
        (4, "training.learning_rate_scaling=sqrt training.learning_rate_scaling_by=world_size", 2),
        (1, "training.learning_rate_scaling=linear training.learning_rate_scaling_by=world_size", 1),
        (4, "training.learning_rate_scaling_by=world_size", 1),
    ],
)
def test_scaling_by_batch_and_by_ranks(num_ranks, settings, factor):
    assert rates(num_ranks, "training.epochs=1", *settings.split()) == pytest.approx([BASE * factor], rel=1e-14)


@pytest.mark.parametrize(
    ("schedule", "formula"),
    [
        ("none", lambda epoch: BASE),
        ("step training.scheduler.step_size=2 training.scheduler.gamma=0.1", lambda epoch: BASE * 0.1 ** (epoch // 2)),
        (
            "cosine training.scheduler.min_learning_rate=0.001",
            lambda epoch: 0.001 + (BASE - 0.001) * (1 + math.cos(math.pi * epoch / 5)) / 2,
        ),
    ],
)
def test_warm_up_comes_before_the_schedule(schedule, formula):
    found = rates(1, *f"training.scheduler.type={schedule} training.scheduler.warmup_epochs=3".split())
    assert found[:3] == pytest.approx([BASE / 3, 2 * BASE / 3, BASE], rel=1e-14)
    assert found[3:] == pytest.approx([formula(epoch) for epoch in range(5)], rel=1e-13)


def scripted(run, own_losses):
    """Make the engine measure `own_losses[epoch]` on this rank, and add them up with the real reduction."""
    engine, communicator = run.engine, run.ranks.tensors

    def validation_loss():
        total = torch.tensor([own_losses[run.trainer.state.epoch]], dtype=torch.float64)
        communicator.all_reduce(total)
        return float(total)

    engine.validation_loss = validation_loss
    return run


def test_plateaus_are_counted_from_the_loss_of_all_ranks():
    def body(communicator):
        schedule = "training.scheduler.type=plateau training.scheduler.patience=1 training.scheduler.gamma=0.5"
        run = Run(communicator, (*SCHEDULED, *schedule.split()))
        # Rank 0's alone falls for ever; the sum stays from epoch 2 on.
        falling = [8.0, 7, 6, 5, 4, 3, 2, 1]
        rising = [8.0, 7, 8, 9, 10, 11, 12, 13]
        return scripted(run, falling if communicator.rank == 0 else rising).fit().rates

    # Two epochs without a better one after epoch 2 (14): the rate falls for epoch 5, and again for epoch 7.
    expected = [BASE] * 4 + [BASE / 2] * 2 + [BASE / 4] * 2
    assert in_turns(2, body) == [pytest.approx(expected)] * 2


@pytest.mark.parametrize(("min_epochs", "stops_after"), [(0, 4), (6, 6), (20, 8)])
def test_all_ranks_stop_early_in_the_same_epoch(min_epochs, stops_after):
    def body(communicator):
        early = ("training.early_stopping_patience=2", f"training.min_epochs={min_epochs}")
        run = Run(communicator, (*SCHEDULED, *early))
        losses = [[8.0, 7, 6, 5, 4, 3, 2, 1], [0.0, 0, 9, 9, 9, 9, 9, 9], [0.0] * 8][communicator.rank]
        scripted(run, losses).fit()
        return run.trainer.state.epoch, run.trainer.state.stopped_early, run.sha256()

    outcomes = in_turns(3, body)
    assert len(set(outcomes)) == 1
    assert outcomes[0][:2] == (stops_after, stops_after < 8)


def test_real_validation_losses_agree_on_all_ranks():
    settings = ("data.validation_split=0.3", *MLP, "training.early_stopping_patience=1")
    results = in_turns(3, lambda communicator: Run(communicator, settings).fit().trainer.state)
    (one,) = in_turns(1, lambda communicator: Run(communicator, settings).fit().trainer.state)
    assert [state == one for state in results] == [True] * 3
    assert one.validation_loss is not None


def test_the_rate_reaches_the_weights():
    """Plain descent: a step is the rate times the gradient."""
    run = run_alone("training.optimizer.type=sgd", "training.epochs=1", *MLP, "training.learning_rate_scaling=linear")
    seen, take_steps = [], run.engine.take_steps

    def recorded(first_step, num_steps, rate, stop):
        before = run.parameters()
        result = take_steps(first_step, 1, rate, stop)
        seen.append(SimpleNamespace(rate=rate, change=float((run.parameters() - before).norm())))
        return result

    run.engine.take_steps = recorded
    run.fit()
    assert {one.rate for one in seen} == {0.0005}
    double = run_alone("training.optimizer.type=sgd", *MLP)
    double.engine.start_epoch(0)
    before = double.weights()
    one_step(double.engine, 0, 0.001)
    assert float((double.weights() - before).norm()) == pytest.approx(2 * seen[0].change, rel=1e-3)


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_that_nothing_is_held_out_is_found_once(engine):
    """Each later epoch then ends without a message for it."""

    def body(run):
        run.engine.start_epoch(0)
        sent = record_sent(run.ranks.cpu)
        losses = [run.engine.validation_loss() for _ in range(3)]
        return losses, len(sent)

    for losses, num_sent in runs(2, *MLP, f"training.engine={engine}", what=body):
        assert (losses, num_sent) == ([None] * 3, 1)
