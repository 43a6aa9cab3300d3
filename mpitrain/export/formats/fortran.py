"""Source code in Fortran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from mpitrain.export.formats.format import SourceFormat
from mpitrain.export.source.words import FORTRAN_FLAG

if TYPE_CHECKING:
    from mpitrain.export.source.emulator import Emulator


class Fortran(SourceFormat):
    """Fortran."""

    output = "emulator.f90"
    endings = (".f90", ".F90", ".f08")
    flags = ("-O2", FORTRAN_FLAG)
    suffix = ".f90"

    type: Literal["fortran"] = "fortran"

    def files(self, emulator: Emulator) -> Mapping[str, str]:
        """See `SourceFormat.files`."""
        from mpitrain.export.source.fortran import fortran_files

        return fortran_files(emulator)
