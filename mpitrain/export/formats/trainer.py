"""A trainer for a running model, in C++ with a C header and a Fortran module."""

from __future__ import annotations

from typing import Literal

from mpitrain.export.formats.format import ExportFormat


class Trainer(ExportFormat):
    """A trainer."""

    output = "trainer.cpp"
    writer = "mpitrain.export.trainer.write:write_trainer"
    needs_torch = False
    endings = (".cpp", ".cc", ".cxx")

    type: Literal["trainer"] = "trainer"
