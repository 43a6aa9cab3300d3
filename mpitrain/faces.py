"""Lazy public names of a subpackage: each name is imported from its module when it is first used.

A name that is not used costs nothing: `mpitrain.comm` loads neither MPI nor torch until one of its names needs them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_attributes(room: str, names: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Return a `__getattr__` for the subpackage `room`; `names` maps each of its modules to the public names in it."""
    modules = {name: module for module, of_module in names.items() for name in of_module}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        try:
            module = importlib.import_module(f"{room}.{modules[name]}")
        except AttributeError as error:  # Python would report it as a missing attribute of the subpackage
            raise ImportError(f"{room}.{modules[name]} cannot be loaded: {error}") from error
        return getattr(module, name)  # not cached: if the module's attribute is replaced, the new value is returned

    return load
