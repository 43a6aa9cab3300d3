"""Stopping by signals: a signal only sets a flag, on which all ranks agree between two steps."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# One Ctrl-C may come twice, from the terminal and by way of a launcher that passes on what it was sent.
_SAME_S = 0.3
# SIGUSR1: what job scripts ask the scheduler to send before the time limit. SIGTERM: the scheduler's own.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """Whether this rank has been asked to stop, and by what."""

    def __init__(self) -> None:
        self.signal_name: str | None = None
        self._since_s = 0.0

    @property
    def is_set(self) -> bool:
        """True once a signal has come."""
        return self.signal_name is not None

    def set_by(self, number: int, frame: FrameType | None = None) -> None:
        """Signal handler: remember, and let the step in flight end."""
        now_s = time.monotonic()
        if number == signal.SIGINT and self.is_set and now_s - self._since_s > _SAME_S:
            raise KeyboardInterrupt  # a second Ctrl-C: the user will not wait for the checkpoint
        if not self.is_set:
            self._since_s = now_s
        self.signal_name = signal.Signals(number).name


@contextmanager
def listen_for_stop() -> Iterator[StopRequest]:
    """Turn stop signals into a flag while the block runs."""
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
