"""Stopping by signals: a signal only sets a flag, which all ranks combine between two steps."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# One Ctrl-C may arrive twice: from the terminal, and from a launcher that forwards its signals.
_SAME_S = 0.3
# SIGUSR1: job scripts let the scheduler send it before the time limit. SIGTERM: the scheduler's default.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """Whether this rank has received a stop signal, and which one.

    Attributes
    ----------
    signal_name : str or None
        The name of the last signal, such as "SIGTERM"; None before one has been received.

    Notes
    -----
    The flag belongs to one rank. The engine combines the flags of all ranks in each step, so that all ranks stop after
    the same step.
    """

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._since_s = 0.0

    @property
    def is_set(self) -> bool:
        """True once a signal has been received."""
        return self.signal_name is not None

    def set_by(self, number: int, frame: FrameType | None = None) -> None:
        """Handle a signal: set the flag, so that the step in progress is completed first.

        Parameters
        ----------
        number : int
            The number of the signal.
        frame : frame, optional
            Passed by Python to signal handlers; not used.

        Raises
        ------
        KeyboardInterrupt
            The signal is Ctrl-C, more than 0.3 s after the first signal: one Ctrl-C may arrive twice.
        """
        now_s = time.monotonic()
        if number == signal.SIGINT and self.is_set and now_s - self._since_s > _SAME_S:
            raise KeyboardInterrupt  # the user does not want to wait for the checkpoint
        if not self.is_set:
            self._since_s = now_s
        self.signal_name = signal.Signals(number).name


@contextmanager
def listen_for_stop() -> Iterator[StopRequest]:
    """Yield a flag that stop signals set while the block runs; the former signal handlers are restored at its end."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # Python delivers signals to the main thread only
        return
    before = {number: signal.signal(number, request.set_by) for number in STOP_SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
