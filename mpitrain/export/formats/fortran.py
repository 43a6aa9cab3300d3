"""Source code in Fortran."""

from __future__ import annotations

from typing import Literal

from mpitrain.export.formats.format import SourceFormat
from mpitrain.export.source.words import FORTRAN_FLAG


class Fortran(SourceFormat):
    """Fortran."""

    output = "emulator.f90"
    source = "mpitrain.export.source.fortran:fortran_files"
    endings = (".f90", ".F90", ".f08")
    flags = ("-O2", FORTRAN_FLAG)
    suffix = ".f90"

    type: Literal["fortran"] = "fortran"
