"""Settings of malloc that keep freed memory in the process for reuse, instead of returning it to the system.

Blocks of files and activations are arrays of megabytes, allocated and freed all the time. Whenever the system provides
new pages for them it clears the pages, which takes as long as reading the data (glibc manual, "Malloc Tunable
Parameters").
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

# Constants of malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# MOST_KEPT_BYTES is kept at the top of the heap; LARGEST_ARRAY_BYTES is the largest value that glibc allows.
MOST_KEPT_BYTES, LARGEST_ARRAY_BYTES = 64 * 2**20, 32 * 2**20


def keep_freed_memory(environ: Mapping[str, str]) -> None:
    """Let this process keep up to MOST_KEPT_BYTES of freed memory, unless the user has set malloc's variables.

    Arrays larger than LARGEST_ARRAY_BYTES are returned to the system as before. Does nothing without glibc.
    """
    is_set_by_user = "malloc" in environ.get("GLIBC_TUNABLES", "") or any(
        name.startswith("MALLOC_") for name in environ
    )
    if is_set_by_user:
        return
    import ctypes

    with suppress(OSError, AttributeError):
        set_option = ctypes.CDLL(None).mallopt
        set_option(_M_MMAP_THRESHOLD, LARGEST_ARRAY_BYTES)
        set_option(_M_TRIM_THRESHOLD, MOST_KEPT_BYTES)


def give_back_freed_memory() -> None:
    """Return freed memory to the system, for example after the start, which needs more memory than the training."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
