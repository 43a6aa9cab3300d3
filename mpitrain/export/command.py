"""`mpitrain export`: one format or another."""

from __future__ import annotations

from mpitrain.errors import UserError
from mpitrain.export.request import SOURCE_FORMATS, ExportRequest, Say


def run_export(request: ExportRequest, say: Say) -> None:
    """Export as requested, check what was written, and `say` what was checked. For one process, without MPI.

    Raises UserError, CheckpointError, MissingDependencyError, or OutputError where a file cannot be written or answers
    otherwise than the network.
    """
    if request.members and request.format not in SOURCE_FORMATS:
        raise UserError(
            f"--format {request.format}: holds one network; give one RUN_FOLDER, or --format c, c++ or fortran for an "
            "ensemble"
        )
    if request.format in SOURCE_FORMATS:
        from mpitrain.export.sources import export_sources

        export_sources(request, say)
    elif request.format == "torchscript":
        from mpitrain.export.network import export

        export(request, say)
    else:
        from mpitrain.export.programs import export_program

        export_program(request, say)
