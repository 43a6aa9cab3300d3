"""Choose what a user watches: one bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Literal

from mpitrain.observe.progress import LineProgress, Progress
from mpitrain.observe.terminal import Terminal, open_launcher_terminal, open_stream_terminal

ProgressKind = Literal["auto", "bar", "lines"]


def choose_progress(
    kind: ProgressKind, stderr_is_terminal: bool, controlling_terminal_is_ours: bool
) -> Literal["bar", "lines"]:
    """Bar or lines. `auto` takes the bar where stderr, or the MPI launcher's, is a terminal that shows this run now."""
    if kind == "auto":
        return "bar" if stderr_is_terminal or controlling_terminal_is_ours else "lines"
    return kind


def open_progress(
    kind: ProgressKind,
    *,
    total_steps: int,
    first_step: int,
    stream: IO[str],
    interval_s: float = 3.0,
    environ: Mapping[str, str] | None = None,
) -> Progress:
    """Progress of a run that has done `first_step` of `total_steps` steps. Called on one rank only.

    `stream` is this process's stderr: lines go there. The bar goes to the terminal of this or of the MPI
    launcher's stderr; without one, `bar` falls back to lines: a bar in a file is thousands of control characters.
    """
    environ = os.environ if environ is None else environ
    own = None if kind == "lines" else open_stream_terminal(stream)
    launchers = None if kind == "lines" or own else open_launcher_terminal()
    terminal = own or launchers
    if terminal is not None:
        if choose_progress(kind, _can_draw_on(own, environ), _can_draw_on(launchers, environ)) == "bar":
            from mpitrain.observe.bar import BarProgress  # loads rich, which only the rank that draws pays for

            return BarProgress(terminal, total_steps, first_step)
        terminal.close()
    return LineProgress(stream, total_steps, first_step, interval_s)


def _can_draw_on(terminal: Terminal | None, environ: Mapping[str, str]) -> bool:
    return terminal is not None and environ.get("TERM", "dumb") != "dumb" and terminal.may_write()
