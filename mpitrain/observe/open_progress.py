"""Choose the display of progress: a bar on a terminal, otherwise a plain line every few seconds."""

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
    """Return the progress display of a run that has done `first_step` of `total_steps` steps. For one rank only.

    Lines are written to `stream`, this process's stderr. The bar is drawn on the terminal of `stream`, or of the MPI
    launcher's stderr; without a terminal `bar` falls back to lines, because a bar in a file is thousands of control
    characters. `auto` chooses the bar if the terminal can draw it and the job is in the foreground.
    """
    environ = os.environ if environ is None else environ
    terminal = None if kind == "lines" else open_stream_terminal(stream) or open_launcher_terminal()
    if terminal is not None:
        if kind == "bar" or (environ.get("TERM", "dumb") != "dumb" and terminal.may_write()):
            from mpitrain.observe.bar import BarProgress  # loads rich, which only the drawing rank needs

            return BarProgress(terminal, total_steps, first_step)
        terminal.close()
    return LineProgress(stream, total_steps, first_step)
