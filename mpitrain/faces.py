"""The face of a room: what other rooms import of it, each name loaded from its file when it is first asked for.

A face costs nothing where a name is not used: `mpitrain.comm` loads neither MPI nor torch before a name needs them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def loaded_on_use(room: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return the `__getattr__` of the package `room`; `names` are what it shows, by the modules that have them."""
    modules = {name: module for module, of_module in names.items() for name in of_module}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(f"{room}.{modules[name]}")
        except AttributeError as error:  # which Python would take for the want of this name
            raise ImportError(f"{room}.{modules[name]} cannot be loaded: {error}") from error
        return getattr(module, name)  # not kept: what replaces the name in its module is seen here too

    return load
