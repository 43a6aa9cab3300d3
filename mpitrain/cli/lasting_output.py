"""Standard output and error whose failure does not end a run: a pipe without a reader, a closed stream, a full disk."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

from mpitrain.cluster.node_log import write_into_node_log


class LastingOutput(io.FileIO):
    """A file descriptor to write to. What cannot be written is lost; `failure` says why, unless nobody listens."""

    failure: OSError | None = None

    def write(self, content: Any, /) -> int:
        """Write, or lose, all of `content`."""
        try:
            return super().write(content)
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.failure = error
            return len(memoryview(content).cast("B"))


def outlive_readers() -> LastingOutput:
    """Put lasting streams in place of standard output and error; return what is below standard output.

    A training has run for hours when `| head` has read enough: it goes on, and its exit code is its own. A closed
    descriptor is opened on the null device first: else the next file that is opened, data or a checkpoint, would get
    its number, and with it what a library prints.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    write_into_node_log(os.environ)
    outputs = [LastingOutput(number, "w", closefd=False) for number in (1, 2)]
    sys.stdout, sys.stderr = (
        _text_over(output, stream) for output, stream in zip(outputs, (sys.stdout, sys.stderr), strict=True)
    )
    return outputs[0]


def _text_over(output: LastingOutput, before: Any) -> io.TextIOWrapper:
    """Return a text stream like the one before; None was one whose descriptor was closed.

    Letters of units and names that its encoding lacks, such as of ASCII in a batch system, become escapes.
    """
    errors = getattr(before, "errors", "strict")
    return io.TextIOWrapper(
        io.BufferedWriter(output),
        encoding=getattr(before, "encoding", "utf-8"),
        errors="backslashreplace" if errors in ("strict", "surrogateescape") else errors,
        line_buffering=bool(getattr(before, "line_buffering", True)),
        write_through=bool(getattr(before, "write_through", False)),
    )
