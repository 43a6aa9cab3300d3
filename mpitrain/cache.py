"""Where things that are built once are kept."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder of what is built: $MPITRAIN_CACHE, else $XDG_CACHE_HOME/mpitrain, else ~/.cache/mpitrain."""
    chosen = os.environ.get("MPITRAIN_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mpitrain"
