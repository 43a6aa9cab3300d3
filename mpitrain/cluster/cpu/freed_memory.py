"""Memory that was freed and is wanted again at once: kept by the process, not given back to the system.

Parts of files and activations are arrays of megabytes that come and go. Each time the system hands their pages out
anew, it clears them: that takes as long as reading what goes into them (glibc manual, "Malloc Tunable Parameters").
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

# malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The most that glibc allows for the second; the first is what stays at the end of the heap.
MOST_KEPT_BYTES, LARGEST_ARRAY_BYTES = 64 * 2**20, 32 * 2**20


def keep_freed_memory(environ: Mapping[str, str]) -> None:
    """Let this process keep up to MOST_KEPT_BYTES that are free; nothing where the user's variables say otherwise.

    Arrays larger than LARGEST_ARRAY_BYTES are given back as ever. Other C libraries than glibc have no such setting.
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
    """Give what is free now back to the system, as after a start, most of whose memory is not wanted again."""
    import ctypes

    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
