"""Build of the compiled reader, once a process has read enough data to benefit from it; kept in the cache."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

from mpitrain.cluster.cpu.kernel_cache import build_or_none
from mpitrain.compiler import find_compiler

# -ffp-contract=off: fused multiply-adds round once, numpy rounds twice.
_FLAGS = (
    "-std=c++17",
    "-O2",
    "-ftree-vectorize",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-shared",
    "-fPIC",
)
_SOURCE = Path(__file__).with_name("kernels.cpp")
# Smaller amounts of data are read in less time than the compilation takes.
WORTH_BUILDING_BYTES = 64 * 2**20


class ReadingKernels:
    """The compiled reader, built once 64 MiB have been read; None before that, or if it cannot be built."""

    def __init__(self) -> None:
        """Build nothing yet: `after` does."""
        self._lock = threading.Lock()
        self._library: ctypes.CDLL | None = None
        self._is_tried = False
        self._read_bytes = 0

    def after(self, num_bytes: int) -> ctypes.CDLL | None:
        """Count `num_bytes` as read, and return the library; None before enough was read, or if it cannot be built."""
        if self._is_tried:
            return self._library
        with self._lock:
            self._read_bytes += num_bytes
            if not self._is_tried and self._read_bytes >= WORTH_BUILDING_BYTES:
                self._library, self._is_tried = load_library(), True
        return self._library


def load_library() -> ctypes.CDLL | None:
    """Return the library, compiled now (about a second) if it is not in the cache; None if it cannot be compiled."""
    compiler = find_compiler("c++", os.environ)
    if compiler is None:
        return None
    library = build_or_none("reading", compiler, _FLAGS, _SOURCE.read_text(), any_cpu=True)
    if library is None:
        return None
    address, count = ctypes.c_void_p, ctypes.c_int64
    for function in (library.decode_float, library.decode_double):
        function.argtypes, function.restype = (address, count, address, count, address), None
    for function in (library.gather_rows, library.scatter_rows):
        function.argtypes, function.restype = (address, address, count, count, address), None
    return library


KERNELS = ReadingKernels()
