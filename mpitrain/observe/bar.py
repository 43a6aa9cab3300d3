"""Progress bar, drawn by rich on the last line of a terminal.

Each drawing is rendered to text and written at once, from the training loop. rich's live display is not used: it runs a
thread beside the training loop and hides the cursor, which stays hidden if a launcher kills the rank.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column

from mpitrain.observe.progress import Clock, Progress, Standing, render_duration, render_rate
from mpitrain.observe.terminal import Terminal

_ERASE_LINE = "\r\x1b[2K"
_WIDE_COLUMNS, _VERY_WIDE_COLUMNS = 120, 200


class BarProgress(Progress):
    """Progress bar drawn every `interval_s` seconds (1.5 ms each), but not while the job is in the background."""

    def __init__(
        self,
        terminal: Terminal,
        total_steps: int,
        first_step: int,
        interval_s: float = 0.5,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(total_steps, first_step, interval_s, clock)
        self._terminal = terminal
        self._drawn = ""
        self._console = Console(file=terminal, force_terminal=True, soft_wrap=False)  # type: ignore[arg-type]

    def note(self, text: str) -> None:
        """Write the text above the bar."""
        if self._terminal.may_write():
            self._terminal.write(f"{_ERASE_LINE}{text}\n{self._drawn}")

    def _show(self, standing: Standing) -> None:
        if self._terminal.may_write():
            self._drawn = self._render(standing)
            self._terminal.write(_ERASE_LINE + self._drawn)

    def _finish(self) -> None:
        if self._drawn and self._terminal.may_write():
            self._terminal.write("\n")
        self._terminal.close()

    def _render(self, standing: Standing) -> str:
        self._console.width = max(self._terminal.columns() - 1, 20)  # the last column would wrap on some terminals
        bar = RichProgress(
            *_columns(standing, self._console.width), console=self._console, auto_refresh=False, expand=True
        )
        bar.add_task("", total=max(standing.total_steps, 1), completed=standing.step)
        with self._console.capture() as capture:
            self._console.print(bar.get_renderable(), end="")
        return capture.get().replace("\n", "")


def _columns(standing: Standing, width: int) -> list[TextColumn | BarColumn]:
    epoch = f"epoch {standing.epoch}/{standing.num_epochs}"
    left = f"{render_duration(standing.time_left_s)} left"
    losses = f"loss {standing.train_loss:.2e}"
    if standing.validation_loss is not None:
        losses += f" val {standing.validation_loss:.2e}"
    steps, rate = f"{standing.step}/{standing.total_steps}", render_rate(standing.rate)
    texts = [steps, rate.replace(" steps", ""), losses, left]
    if width >= _WIDE_COLUMNS:
        texts = [f"step {steps}", rate, losses, f"lr {standing.learning_rate:.1e}", left, standing.remark]
    if width >= _VERY_WIDE_COLUMNS:
        texts.insert(-1, standing.details)
    elif width < _WIDE_COLUMNS // 2:
        texts = [f"loss {standing.train_loss:.2e}", left]
    bar = BarColumn(bar_width=None, style="bright_black", complete_style="cyan", finished_style="green")
    return [_text(epoch), bar, *(_text(text) for text in texts if text)]


def _text(text: str) -> TextColumn:
    return TextColumn(text, markup=False, table_column=Column(no_wrap=True))
