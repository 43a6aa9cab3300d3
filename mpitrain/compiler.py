"""The C++ compiler of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

COMPILERS = ("c++", "g++", "clang++")


def find_cpp_compiler(environ: Mapping[str, str]) -> str | None:
    """Return the path of $CXX, else of the first of `COMPILERS` that is on the PATH of `environ`, else None."""
    path = environ.get("PATH", "")
    found = (shutil.which(name, path=path) for name in (environ.get("CXX"), *COMPILERS) if name)
    return next(filter(None, found), None)
