"""Search for the C, C++ and Fortran compilers of this machine."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

# Language: the environment variable with the user's choice, then the usual names.
_NAMES = {
    "c": ("CC", "cc", "gcc", "clang"),
    "c++": ("CXX", "c++", "g++", "clang++"),
    "fortran": ("FC", "gfortran", "flang", "flang-new"),
}


def find_compiler(language: str, environ: Mapping[str, str]) -> str | None:
    """Return the path of $CC, $CXX or $FC, else of the first usual compiler on the PATH in `environ`, else None."""
    variable, *usual = _NAMES[language]
    path = environ.get("PATH", "")
    found = (shutil.which(name, path=path) for name in (environ.get(variable), *usual) if name)
    return next(filter(None, found), None)
