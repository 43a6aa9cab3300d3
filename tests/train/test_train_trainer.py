"""The loop: what it asks of the engine, when it saves, when it stops, and how it goes on."""

import itertools
import math
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from played_ranks import on_played_ranks, played_ranks_of
from torch import nn

from mpitrain.comm.agreement import is_agreed
from mpitrain.config import RunConfig, TrainingSection
from mpitrain.errors import StoppedError, TrainingError
from mpitrain.train import trainer
from mpitrain.train.callbacks import Callback
from mpitrain.train.checkpoint.store import Checkpoint
from mpitrain.train.engines.contract import StepResult
from mpitrain.train.engines.weights_digest import CrcOfWeights
from mpitrain.train.stop_request import StopRequest
from mpitrain.train.trainer import Trainer

STEPS = 3


class ScriptedEngine:
    """An engine whose losses the test writes; each step adds 1 to the weight."""

    steps_per_epoch, global_batch_size = STEPS, 64
    has_drifted, shares_running_statistics, average = False, True, None

    def __init__(self, model, validation=(), losses=(), stop_at=None):
        self.optimizer = torch.optim.Adam(model.parameters())
        self.weights_digest = CrcOfWeights([])
        self.model, self.validation, self.losses, self.stop_at = model, list(validation), list(losses), stop_at
        self.calls, self.loss_sums = [], 0.0

    def start_epoch(self, epoch, first_step=0):
        self.calls.append(("start", epoch))
        self.loss_sums = 0.0

    def take_steps(self, first_step, num_steps, learning_rate, stop_requested):
        self.calls.append((first_step, learning_rate))
        number = sum(call[0] != "start" for call in self.calls)
        with torch.no_grad():
            self.model.weight += 1
        self.loss_sums += 1
        return StepResult([self.losses.pop(0) if self.losses else 0.5], stop_requested or number == self.stop_at)

    def epoch_loss(self):
        return self.loss_sums / STEPS

    def validation_loss(self):
        return self.validation.pop(0) if self.validation else None

    def describe_failure(self):
        return "rank 0 on here"

    def gather_state(self):
        return {"epoch_loss_sums": torch.tensor([self.loss_sums], dtype=torch.float64)}

    def restore_state(self, state):
        self.loss_sums = float(state["epoch_loss_sums"][0])


class Recorder(Callback):
    """A callback and checkpoint store: it remembers its calls."""

    def __init__(self):
        self.steps, self.epochs, self.saved = [], [], []

    def on_steps(self, state, losses, learning_rate):
        self.steps.append((state.global_step, state.step_in_epoch, *losses))

    def on_epoch(self, state, learning_rate, wall_time_s):
        assert wall_time_s >= 0
        self.epochs.append((state.epoch, state.train_loss, state.validation_loss, learning_rate))

    def on_checkpoint(self, tensors, state, kind):
        self.saved.append(
            (kind, state.global_step, {name: value.clone() for name, value in tensors.items()}, state.to_manifest())
        )

    @property
    def saves(self):
        return [(kind, step) for kind, step, _, _ in self.saved]


class Loop:
    def __init__(self, communicator, engine_options=None, stop_request=None, **training):
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        self.model, self.seen, self.engine = model, Recorder(), ScriptedEngine(model, **(engine_options or {}))
        config = RunConfig(training=TrainingSection(**training))
        self.trainer = Trainer(
            config.training, played_ranks_of(communicator), model, self.engine, [self.seen],
            stop_request or StopRequest(),
        )  # fmt: skip


def alone(body):
    return on_played_ranks(1, body)[0]


def fitted(engine_options=None, expected_error=None, **training):
    def body(communicator):
        loop = Loop(communicator, engine_options, **training)
        if expected_error is None:
            loop.trainer.fit()
        else:
            with pytest.raises(expected_error) as raised:
                loop.trainer.fit()
            loop.error = raised.value
            assert is_agreed(raised.value), "other ranks would be aborted instead of ending together"
        return loop

    return alone(body)


def test_every_step_of_every_epoch_in_order():
    schedule = {"type": "step", "step_size": 1, "gamma": 0.5}
    loop = fitted(epochs=3, scheduler=schedule)
    rates = [0.001, 0.0005, 0.00025]
    assert loop.engine.calls == [
        call for epoch in range(3) for call in (("start", epoch), *((step, rates[epoch]) for step in range(STEPS)))
    ]
    assert loop.seen.steps == [(n + 1, n % STEPS + 1, 0.5) for n in range(9)]
    assert loop.seen.epochs == [(epoch + 1, 1.0, None, rates[epoch]) for epoch in range(3)]
    assert (loop.trainer.state.epoch, loop.trainer.state.global_step) == (3, 9)


@pytest.mark.parametrize(
    ("epochs", "save_interval", "expected"),
    [(1, 10, [3]), (5, 2, [6, 12, 15]), (4, 2, [6, 12]), (3, 1, [3, 6, 9])],
)
def test_checkpoints_every_interval_and_once_at_the_end(epochs, save_interval, expected):
    loop = fitted(epochs=epochs, save_interval=save_interval)
    assert loop.seen.saves == [("step", step) for step in expected]


@pytest.mark.parametrize(
    ("epoch_s", "expected"), [(1000.0, [3, 6, 9, 12, 15]), (30.0, [6, 12, 15]), (25.0, [9, 15]), (0.0, [12, 15])]
)
def test_long_epochs_are_saved_more_often_by_the_clock_of_the_root(monkeypatch, epoch_s, expected):
    """Each epoch where one takes a minute: a kill loses no more than that and the epoch that runs."""

    def body(communicator):
        # Two readings an epoch: at its start and at its end.
        readings[threading.get_ident()] = itertools.count(step=epoch_s if communicator.rank == 0 else 3 * epoch_s)
        loop = Loop(communicator, epochs=5, save_interval=4)
        loop.trainer.fit()
        return loop.seen.saves

    readings: dict[int, Iterator[float]] = {}
    clock = SimpleNamespace(monotonic=lambda: next(readings[threading.get_ident()]))
    monkeypatch.setattr(trainer, "time", clock)
    saves = [("step", step) for step in expected]
    assert on_played_ranks(2, body) == [saves, saves]


def test_an_epoch_that_holds_what_is_done_once_decides_for_itself_alone(monkeypatch):
    readings = iter([0.0, 500.0, *(500.0 + 0.1 * number for number in range(100))])
    monkeypatch.setattr(trainer, "time", SimpleNamespace(monotonic=lambda: next(readings)))
    loop = fitted(epochs=6, save_interval=4)
    assert loop.seen.saves == [("step", step) for step in (3, 12, 18)]


def test_the_best_weights_are_kept_and_saved_once():
    validation = [0.4, 0.2, 0.3, 0.2, 0.25]
    loop = fitted({"validation": validation}, epochs=5, save_interval=1)
    assert loop.trainer.state.best_epoch == 2, "an equal loss later is no better one"
    assert loop.trainer.state.best_loss == 0.2
    assert loop.trainer.best_weights["weight"].item() == 6
    assert loop.model.weight.item() == 15
    assert [step for kind, step in loop.seen.saves if kind == "best"] == [3, 6]
    last = loop.seen.saved[-1]
    assert last[0] == "step"
    assert (last[2]["model.weight"].item(), last[2]["best.weight"].item()) == (15, 6)


@pytest.mark.parametrize(
    ("patience", "min_epochs", "stops_after"), [(1, 0, 3), (2, 0, 4), (1, 5, 5), (3, 0, 8), (None, 0, 8)]
)
def test_early_stopping(patience, min_epochs, stops_after):
    validation = [0.5, 0.4, 0.45, 0.46, 0.39, 0.41, 0.42, 0.43]
    if (patience, min_epochs) == (1, 5):
        validation = [0.5, 0.4, 0.45, 0.46, 0.47, 0.1, 0.1, 0.1]
    loop = fitted(
        {"validation": validation}, epochs=8, save_interval=100, early_stopping_patience=patience, min_epochs=min_epochs
    )
    assert loop.trainer.state.epoch == stops_after
    assert loop.trainer.state.stopped_early == (stops_after < 8 or patience == 3)
    assert [step for kind, step in loop.seen.saves if kind == "step"] == [STEPS * stops_after]


@pytest.mark.parametrize(("max_steps", "epoch", "in_epoch"), [(1, 0, 1), (4, 1, 1), (6, 2, 0), (7, 2, 1)])
def test_max_steps_stops_with_a_checkpoint(max_steps, epoch, in_epoch):
    loop = fitted(expected_error=StoppedError, epochs=5, max_steps=max_steps)
    assert loop.error.exit_code == 5
    assert f"stopped by training.max_steps={max_steps} at step {max_steps}, " in str(loop.error)
    assert "--resume" in str(loop.error)
    assert loop.seen.saves == [("step", max_steps)]
    state = loop.seen.saved[-1][3]
    assert (state["epoch"], state["step_in_epoch"], state["global_step"]) == (epoch, in_epoch, max_steps)


def test_max_steps_at_the_end_is_no_stop():
    loop = fitted(epochs=2, max_steps=6)
    assert loop.seen.saves == [("step", 6)]


@pytest.mark.parametrize("at_step", [2, 3])
def test_a_signal_on_one_rank_stops_all_with_a_checkpoint(at_step):
    def body(communicator):
        request = StopRequest()
        loop = Loop(communicator, {"stop_at": at_step}, request, epochs=5)
        if communicator.rank == 1:
            count_down = _after(loop.engine.take_steps, at_step, lambda: setattr(request, "signal_name", "SIGUSR1"))
            loop.engine.take_steps = count_down
        with pytest.raises(StoppedError) as raised:
            loop.trainer.fit()
        return str(raised.value), loop.seen.saves

    messages = on_played_ranks(3, body)
    where = f"step {at_step}, epoch {1 if at_step < STEPS else 2}"
    text = f"stopped by SIGUSR1 at {where}; a checkpoint is saved: continue with --resume"
    assert messages == [(text, [("step", at_step)])] * 3


def _after(step, count, action):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        if len(calls) == count:
            action()
        return step(*arguments)

    return counted


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_training(loss):
    loop = fitted({"losses": [0.5, 0.5, 0.5, 0.5, loss]}, expected_error=TrainingError, epochs=5)
    assert loop.error.exit_code == 4
    assert str(loop.error).startswith(f"the loss became {loss} at step 5, epoch 2 (rank 0 on here); lower training.opt")
    assert loop.trainer.state.global_step == 4
    assert loop.seen.saves == [], "the ruined weights were saved"


def test_a_validation_loss_that_is_not_finite_ends_the_training():
    loop = fitted({"validation": [0.5, math.nan]}, expected_error=TrainingError, epochs=5)
    assert str(loop.error).startswith("the validation loss became nan after step 6, epoch 2; lower training.optimizer")


@pytest.mark.parametrize("max_steps", [2, 3, 5])
def test_a_resumed_training_goes_on_where_it_stopped(max_steps):
    validation = [0.4, 0.2, 0.3]
    straight = fitted({"validation": list(validation)}, epochs=3, save_interval=1)
    first = fitted({"validation": list(validation)}, StoppedError, epochs=3, save_interval=1, max_steps=max_steps)
    _, _, tensors, state = next(saved for saved in reversed(first.seen.saved) if saved[0] == "step")

    def body(communicator):
        loop = Loop(communicator, {"validation": validation[state["epoch"] :]}, epochs=3, save_interval=1)
        loop.trainer.resume(Checkpoint(None, tensors, state, {}))
        loop.trainer.fit()
        return loop

    resumed = alone(body)
    assert resumed.trainer.state == straight.trainer.state
    assert resumed.seen.steps == straight.seen.steps[max_steps:]
    assert resumed.seen.epochs == straight.seen.epochs[state["epoch"] :]
    assert torch.equal(resumed.model.weight, straight.model.weight)
    assert torch.equal(resumed.trainer.best_weights["weight"], straight.trainer.best_weights["weight"])
    assert next(call for call in resumed.engine.calls if call[0] == "start") == ("start", state["epoch"])


@pytest.mark.parametrize("max_steps", [6, 7, 9, 11])
def test_the_best_weights_of_before_the_stop_are_still_the_best_after_it(max_steps: int) -> None:
    """The best epoch is the second, of 6 steps that add 1 each; what comes after the stop is better than the first."""
    validation = [0.4, 0.2, 0.3, 0.25]
    first = fitted({"validation": list(validation)}, StoppedError, epochs=4, save_interval=1, max_steps=max_steps)
    _, _, tensors, state = next(saved for saved in reversed(first.seen.saved) if saved[0] == "step")

    def body(communicator):
        loop = Loop(communicator, {"validation": validation[state["epoch"] :]}, epochs=4, save_interval=1)
        loop.trainer.resume(Checkpoint(None, tensors, state, {}))
        loop.trainer.fit()
        return loop

    resumed = alone(body)
    assert (resumed.trainer.state.best_loss, resumed.trainer.state.best_epoch) == (0.2, 2)
    assert resumed.trainer.state.epochs_without_improvement == 2
    assert resumed.trainer.best_weights["weight"].item() == 6
    assert resumed.model.weight.item() == 12
    saved_last = resumed.seen.saved[-1][2]
    assert (saved_last["model.weight"].item(), saved_last["best.weight"].item()) == (12, 6)
    assert {kind for kind, _ in resumed.seen.saves} == {"step"}, "they are on the disk"


def test_a_training_that_stopped_early_stays_stopped_when_resumed():
    options = {"epochs": 8, "early_stopping_patience": 1}
    loop = fitted({"validation": [0.5, 0.6]}, **options)
    _, _, tensors, state = next(saved for saved in reversed(loop.seen.saved) if saved[0] == "step")

    def body(communicator):
        again = Loop(communicator, **options)
        again.trainer.resume(Checkpoint(None, tensors, state, {}))
        again.trainer.fit()
        return again.seen.steps

    assert alone(body) == []
