"""Starting a module of this package in another process, from any directory."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

NO_IMPORTS_FROM_HERE = {"PYTHONSAFEPATH": "1"}
"""The environment variable for -P, for Python processes started by another program, e.g. torchrun or a scheduler."""
_PACKAGE_HOME = str(Path(__file__).parents[2])


def run_module(name: str) -> list[str]:
    """Return the command that runs a module of this package, as a list of arguments.

    Parameters
    ----------
    name : str
        Full name of the module, for example "mpitrain.comm.agent".

    Returns
    -------
    list of str
        This process's Python, its options and the module; arguments of the module may be appended.

    Notes
    -----
    It has -P, since Python would otherwise import from the current directory, which may contain another user's files.
    """
    return [sys.executable, "-P", "-m", name]


def finding_package(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with a PYTHONPATH by which the command of `run_module` finds this package if not installed.

    Parameters
    ----------
    environ : mapping of str to str
        Environment variables for the new process; not changed.

    Returns
    -------
    dict of str to str
        A copy of `environ`, with the folder that contains this package first in PYTHONPATH. Without this addition if
        PYTHONPATH contains the folder already, or the package is installed in site-packages or dist-packages.
    """
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if _PACKAGE_HOME in paths or "-packages" in _PACKAGE_HOME:
        return dict(environ)
    return {**environ, "PYTHONPATH": os.pathsep.join([_PACKAGE_HOME, *paths])}
