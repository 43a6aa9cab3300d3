"""Train networks on scientific data under MPI, with results equal to a C++ MPI program's."""

from __future__ import annotations

__version__ = "0.1.0"
