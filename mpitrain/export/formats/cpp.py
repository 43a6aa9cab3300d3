"""Source code in C++."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from mpitrain.export.formats.format import SourceFormat

if TYPE_CHECKING:
    from mpitrain.export.source.emulator import Emulator


class Cpp(SourceFormat):
    """C++."""

    output = "emulator.hpp"
    endings = (".hpp", ".h", ".hh", ".hxx")
    flags = ("-std=c++17", "-O2")
    suffix = ".cpp"

    type: Literal["c++"] = "c++"

    def files(self, emulator: Emulator) -> Mapping[str, str]:
        """See `SourceFormat.files`."""
        from mpitrain.export.source.c import cpp_files

        return cpp_files(emulator)
