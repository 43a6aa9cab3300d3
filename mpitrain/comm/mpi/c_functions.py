"""MPI's C functions for compiled code that sends messages: their addresses, and handles as integers.

The functions are those of the library that mpi4py has loaded, in that library's ABI: a handle is an int in MPICH and
its derivatives, and a pointer in Open MPI and in the standard ABI of MPI 5.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

from mpitrain.comm.mpi.library import mapped_library_path

if TYPE_CHECKING:
    from mpi4py import MPI


@dataclass(frozen=True)
class CFunctions:
    """Addresses of MPI_Isend, MPI_Irecv and MPI_Testall, the handle of MPI_BYTE, and sizes in bytes."""

    isend: int
    irecv: int
    testall: int
    byte_type: int
    handle_bytes: int
    status_bytes: int


@dataclass(frozen=True)
class CCommunicator:
    """A separate communicator for compiled code, so that its messages match no others; `handle` is 0 on other ranks."""

    handle: int
    _comm: MPI.Comm

    def close(self) -> None:
        """Free the communicator. Collective over its ranks."""
        if self.handle:
            self._comm.Free()


def find_c_functions() -> CFunctions | None:
    """Return the functions of the loaded MPI library; None if they cannot be found. Not collective."""
    from mpi4py import MPI

    library = _library_of(MPI)
    if library is None:
        return None
    isend, irecv, testall = (
        ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        for name in ("MPI_Isend", "MPI_Irecv", "MPI_Testall")
    )
    sizes = MPI._sizeof(MPI.Request), MPI._sizeof(MPI.Status)
    return CFunctions(isend, irecv, testall, MPI._handleof(MPI.BYTE), *sizes)


def _library_of(mpi: ModuleType) -> ctypes.CDLL | None:
    # A symbol lookup in mpi4py's extension module includes the libraries linked to it; a build that loads MPI at run
    # time is linked to none, so try the mapped library too. Compare versions, as a process may map several libraries.
    for path in (mpi.__file__, mapped_library_path()):
        try:
            library = ctypes.CDLL(path) if path else None
            if library is not None and _version_of(library, mpi) == mpi.Get_library_version():
                return library
        except (OSError, AttributeError):  # ctypes: no library, or no such function
            continue
    return None


def _version_of(library: ctypes.CDLL, mpi: ModuleType) -> str:
    text, length = ctypes.create_string_buffer(mpi.MAX_LIBRARY_VERSION_STRING), ctypes.c_int()
    library.MPI_Get_library_version(text, ctypes.byref(length))
    return text.raw[: length.value].decode()


def open_c_communicator(parent: MPI.Intracomm, number: int | None) -> CCommunicator:
    """Return a communicator of the ranks of `parent` that pass a `number`, ordered by it. Collective over `parent`."""
    from mpi4py import MPI

    comm = parent.Split(MPI.UNDEFINED if number is None else 0, number or 0)
    return CCommunicator(0 if number is None else MPI._handleof(comm), comm)


def failure_of(code: int) -> Exception:
    """Return the exception that mpi4py raises if a function returns `code` instead of MPI_SUCCESS."""
    from mpi4py import MPI

    make: Callable[[int], Exception] = MPI.Exception
    return make(code)
