"""Choose what a user watches: one bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Literal

from mpitrain.observe.progress import LineProgress, Progress
from mpitrain.observe.terminal import open_launcher_terminal, open_stream_terminal

ProgressKind = Literal["auto", "bar", "lines"]


def open_progress(
    kind: ProgressKind,
    *,
    total_steps: int,
    first_step: int,
    stream: IO[str],
    environ: Mapping[str, str] | None = None,
) -> Progress:
    """Progress of a run that has done `first_step` of `total_steps` steps. Called on one rank only.

    `stream` is this process's stderr: lines go there. The bar goes to the terminal of this or of the MPI
    launcher's stderr; without one, `bar` falls back to lines: a bar in a file is thousands of control characters.
    `auto` takes the bar where that terminal can draw it and shows this run now.
    """
    environ = os.environ if environ is None else environ
    terminal = None if kind == "lines" else open_stream_terminal(stream) or open_launcher_terminal()
    if terminal is not None:
        if kind == "bar" or (environ.get("TERM", "dumb") != "dumb" and terminal.may_write()):
            from mpitrain.observe.bar import BarProgress  # loads rich, which only the rank that draws pays for

            return BarProgress(terminal, total_steps, first_step)
        terminal.close()
    return LineProgress(stream, total_steps, first_step)
