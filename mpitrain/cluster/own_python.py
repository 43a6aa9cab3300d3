"""Starting a module of this package in another process, wherever that is started."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

NO_IMPORTS_FROM_HERE = {"PYTHONSAFEPATH": "1"}
"""Variables of -P, for Python processes that other programs start, such as torchrun or a scheduler."""
_PACKAGE_HOME = str(Path(__file__).parents[2])


def run_module(name: str) -> list[str]:
    """Return the words that run a module of this package.

    With -P: the current directory may be a stranger's folder, and Python would look for each module in it first.
    """
    return [sys.executable, "-P", "-m", name]


def finding_package(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which the process of `run_module` finds this package, which need not be installed."""
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if _PACKAGE_HOME in paths or "-packages" in _PACKAGE_HOME:
        return dict(environ)
    return {**environ, "PYTHONPATH": os.pathsep.join([_PACKAGE_HOME, *paths])}
