"""Progress of a run: base class, and a plain line of text every few seconds."""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO

Clock = Callable[[], float]


@dataclass(frozen=True)
class Standing:
    """State of a run; `rate` in steps per second and `time_left_s` are None before the second measurement."""

    step: int
    total_steps: int
    epoch: int
    num_epochs: int
    train_loss: float
    validation_loss: float | None
    learning_rate: float
    rate: float | None
    time_left_s: float | None
    details: str = ""
    remark: str = ""


class Progress(contextlib.AbstractContextManager["Progress"]):
    """Display of a run's progress. `update` takes well under 2 us unless a display is due.

    The first update and, on `close`, the last one are always shown.
    """

    def __init__(self, total_steps: int, first_step: int, interval_s: float, clock: Clock = time.monotonic) -> None:
        self._total_steps = total_steps
        self._interval_s = interval_s
        self._clock = clock
        self._due_s = float("-inf")
        self._latest: tuple[int, int, int, float, float | None, float] | None = None
        self._rate = _Rate(first_step, clock())
        self.details = ""
        """Short text on samples per second, shares of the step's time, and memory."""
        self.remark = ""
        """Further text, such as which rank is the slowest."""

    def update(
        self,
        step: int,
        epoch: int,
        num_epochs: int,
        train_loss: float,
        validation_loss: float | None,
        learning_rate: float,
    ) -> None:
        """Report that `step` optimiser steps are done since the start of the run, in `epoch`, counted from 1."""
        self._latest = (step, epoch, num_epochs, train_loss, validation_loss, learning_rate)
        if self._clock() >= self._due_s:
            self._show_latest()

    @abstractmethod
    def note(self, text: str) -> None:
        """Show one line of text that stays."""

    def close(self) -> None:
        """Show the last update and end the display; a second call does nothing."""
        self._show_latest()
        self._latest = None
        self._finish()

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def _show(self, standing: Standing) -> None: ...

    @abstractmethod
    def _finish(self) -> None: ...

    def _show_latest(self) -> None:
        if self._latest is None:
            return
        now_s = self._clock()
        step = self._latest[0]
        rate = self._rate.at(step, now_s)
        time_left_s = max(self._total_steps - step, 0) / rate if rate else None
        self._show(Standing(step, self._total_steps, *self._latest[1:], rate, time_left_s, self.details, self.remark))
        self._due_s = now_s + self._interval_s


class LineProgress(Progress):
    """Progress as a plain line on `stream` every `interval_s` seconds."""

    def __init__(
        self, stream: IO[str], total_steps: int, first_step: int, interval_s: float = 3.0, clock: Clock = time.monotonic
    ) -> None:
        super().__init__(total_steps, first_step, interval_s, clock)
        self._stream = stream
        self._last_line = ""

    def note(self, text: str) -> None:
        """Write the text as a separate line."""
        # OSError: the reader has closed its end; ValueError: the stream is closed. Neither ends the run.
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text + "\n")
            self._stream.flush()

    def _show(self, standing: Standing) -> None:
        key = render_line(standing, with_speed=False)
        if key != self._last_line:  # the last update may have been shown already
            self.note(render_line(standing))
            self._last_line = key

    def _finish(self) -> None:
        """Do nothing: the caller closes the stream."""


def render_line(standing: Standing, with_speed: bool = True) -> str:
    """Return a line without control characters: `step 120/600 (20 %)  epoch 12/60  train loss 1.2e-03 ...`."""
    percent = 100 * standing.step // max(standing.total_steps, 1)
    parts = [
        f"step {standing.step}/{standing.total_steps} ({percent} %)",
        f"epoch {standing.epoch}/{standing.num_epochs}",
        f"train loss {standing.train_loss:.3e}",
    ]
    if standing.validation_loss is not None:
        parts.append(f"validation loss {standing.validation_loss:.3e}")
    parts.append(f"learning rate {standing.learning_rate:.1e}")
    if with_speed and standing.rate is not None:
        parts.append(f"{render_rate(standing.rate)}  {render_duration(standing.time_left_s)} left")
    if with_speed:
        parts += [text for text in (standing.details, standing.remark) if text]
    return "  ".join(parts)


def render_rate(rate: float | None) -> str:
    """Return steps per second with three digits; "" for None."""
    return "" if rate is None else f"{rate:.0f} steps/s" if rate >= 100 else f"{rate:.3g} steps/s"


def render_duration(seconds: float | None) -> str:
    """Return a duration as `1:02:03` or `2:03`; `-:--` if it is unknown."""
    if seconds is None or seconds != seconds or seconds > 1e8:
        return "-:--"
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"


def render_wall_time(seconds: float) -> str:
    """Return a duration as `12.3 s`; like `render_duration` from one minute."""
    return f"{seconds:.1f} s" if seconds < 60 else render_duration(seconds)


class _Rate:
    """Smoothed steps per second: the mean of the rate so far and that of the latest interval."""

    def __init__(self, first_step: int, now_s: float) -> None:
        self._step = first_step
        self._time_s = now_s
        self._rate: float | None = None

    def at(self, step: int, now_s: float) -> float | None:
        # the rate of a shorter interval, as before the last update of a run, would be mostly noise
        if step > self._step and now_s >= self._time_s + 0.1:
            newest = (step - self._step) / (now_s - self._time_s)
            self._rate = newest if self._rate is None else 0.5 * (self._rate + newest)
            self._step, self._time_s = step, now_s
        return self._rate
