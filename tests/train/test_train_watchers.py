"""What the root shows of steps that come many at a time."""

from types import SimpleNamespace
from typing import Any

import pytest

from mpitrain.config import TrainingSection
from mpitrain.train.callbacks import MeterCallback, RootWatcher
from mpitrain.train.state import TrainingState


class Told:
    """Progress and log that remember."""

    def __init__(self):
        self.updates, self.lines = [], []

    def update(self, *words):
        self.updates.append(words)

    def debug(self, *arguments):
        """Not told here."""

    def info(self, text, *words):
        self.lines.append(text % words)


@pytest.mark.parametrize(
    ("calls", "logged"),
    [
        ([7, 1, 12], [5, 10, 15, 20]),
        ([1] * 11, [5, 10]),
        ([4], []),
        ([5, 5], [5, 10]),
    ],
)
def test_every_due_step_is_logged_with_its_own_loss(calls, logged):
    told, state = Told(), TrainingState(epoch=2)
    watcher = RootWatcher(told, None, told, TrainingSection(log_interval=5, epochs=9), lambda: None)
    for count in calls:
        state.global_step += count
        watcher.on_steps(
            state, [step / 100 for step in range(state.global_step - count + 1, state.global_step + 1)], 0.1
        )
    assert told.lines == [f"step {step}: loss {step / 100:.6e}, learning rate 0.1" for step in logged]
    total = sum(calls)
    assert told.updates[-1] == (total, 3, 9, total / 100, None, 0.1)


def test_the_meter_is_told_which_epoch_is_the_last():
    ends: list[bool] = []
    meter: Any = SimpleNamespace(end=lambda is_last: ends.append(is_last))
    for epoch in range(3):
        MeterCallback(meter, 3).on_steps_end(TrainingState(epoch=epoch))
    assert ends == [False, False, True]
