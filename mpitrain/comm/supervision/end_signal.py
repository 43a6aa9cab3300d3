"""The signal by which a supervisor ends its rank with an exit code, also while the rank holds Python's lock."""

from __future__ import annotations

import ctypes
import signal

from mpitrain.errors import LaunchError

# The C library's _exit takes the signal's number for the exit code.
END_SIGNAL = signal.Signals(LaunchError.exit_code)


def let_end_signal_exit() -> None:
    """Let END_SIGNAL end this process with the exit code of a wrong launch, whatever it does."""
    # Installed below Python, whose own handlers wait for a lock that a hanging MPI call holds.
    library = ctypes.CDLL(None)
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.signal.restype = ctypes.c_void_p
    library.signal(int(END_SIGNAL), ctypes.cast(library._exit, ctypes.c_void_p))
