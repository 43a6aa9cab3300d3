"""A trainer for a running model, in C++ with a C header and a Fortran module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mpitrain.export.formats.format import ExportFormat

if TYPE_CHECKING:
    from mpitrain.export.request import ExportRequest, Say


class Trainer(ExportFormat):
    """A trainer."""

    output = "trainer.cpp"
    needs_torch = False
    endings = (".cpp", ".cc", ".cxx")

    type: Literal["trainer"] = "trainer"

    def write(self, request: ExportRequest, say: Say) -> None:
        """See `ExportFormat.write`."""
        from mpitrain.export.trainer.write import write_trainer

        write_trainer(request, say)
