"""Source code in C++."""

from __future__ import annotations

from typing import Literal

from mpitrain.export.formats.format import SourceFormat


class Cpp(SourceFormat):
    """C++."""

    output = "emulator.hpp"
    source = "mpitrain.export.source.c:cpp_files"
    endings = (".hpp", ".h", ".hh", ".hxx")
    flags = ("-std=c++17", "-O2")
    suffix = ".cpp"

    type: Literal["c++"] = "c++"
