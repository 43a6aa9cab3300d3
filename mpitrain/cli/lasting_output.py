"""Standard output and error that do not end a run if they fail: closed pipe, closed stream, full disk."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

from mpitrain.cluster.node_log import write_into_node_log


class LastingOutput(io.FileIO):
    """Output file descriptor that discards text that cannot be written; `failure` is the last error except EPIPE."""

    failure: OSError | None = None

    def write(self, content: Any, /) -> int:
        """Write `content`, or discard all of it after an error."""
        try:
            return super().write(content)
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.failure = error
            return len(memoryview(content).cast("B"))


def outlive_readers() -> LastingOutput:
    """Replace standard output and error by streams that ignore errors; return the raw stream of standard output.

    A long training continues after the end of a reader such as `| head`, and its exit code is unaffected. Closed
    descriptors are first opened on the null device: otherwise the next file opened, data or a checkpoint, would get
    descriptor 0, 1 or 2 and receive what libraries print.
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
    """Return a text stream with the attributes of `before`, which is None if its descriptor was closed.

    Characters that its encoding lacks (for example ASCII in a batch system) become escapes.
    """
    errors = getattr(before, "errors", "strict")
    return io.TextIOWrapper(
        io.BufferedWriter(output),
        encoding=getattr(before, "encoding", "utf-8"),
        errors="backslashreplace" if errors in ("strict", "surrogateescape") else errors,
        line_buffering=bool(getattr(before, "line_buffering", True)),
        write_through=bool(getattr(before, "write_through", False)),
    )
