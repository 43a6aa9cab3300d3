"""Source code in C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from mpitrain.export.formats.format import SourceFormat

if TYPE_CHECKING:
    from mpitrain.export.source.emulator import Emulator


class C(SourceFormat):
    """C."""

    output = "emulator.c"
    endings = (".c", ".h")
    flags = ("-std=c99", "-O2")
    suffix = ".c"

    type: Literal["c"] = "c"

    def files(self, emulator: Emulator) -> Mapping[str, str]:
        """See `SourceFormat.files`."""
        from mpitrain.export.source.c import c_files

        return c_files(emulator)
