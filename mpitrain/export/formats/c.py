"""Source code in C."""

from __future__ import annotations

from typing import Literal

from mpitrain.export.formats.format import SourceFormat


class C(SourceFormat):
    """C."""

    output = "emulator.c"
    source = "mpitrain.export.source.c:c_files"
    endings = (".c", ".h")
    flags = ("-std=c99", "-O2")
    suffix = ".c"

    type: Literal["c"] = "c"
