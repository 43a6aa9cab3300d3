"""`mpitrain export`: one format or another."""

from __future__ import annotations

from dataclasses import replace

from mpitrain.errors import UserError
from mpitrain.export.request import SOURCE_FORMATS, ExportRequest, Say


def run_export(request: ExportRequest, say: Say) -> None:
    """Export as requested, check what was written, and `say` what was checked. For one process, without MPI.

    Raises UserError, CheckpointError, MissingDependencyError, or OutputError where a file cannot be written or answers
    otherwise than the network.
    """
    request = _with_members(request)
    if request.format in SOURCE_FORMATS:
        from mpitrain.export.sources import export_sources

        export_sources(request, say)
    elif request.format == "torchscript":
        from mpitrain.export.network import export

        export(request, say)
    else:
        from mpitrain.export.programs import export_program

        export_program(request, say)


def _with_members(request: ExportRequest) -> ExportRequest:
    """Return the request with an ensemble's members in the place of its folder."""
    from mpitrain.inference.ensemble import is_ensemble, member_folders

    if not is_ensemble(request.run):
        return request
    if request.members:
        raise UserError(f"{request.run}: is an ensemble already; give it alone, or the folders of runs")
    first, *others = member_folders(request.run)
    return replace(request, run=first, members=tuple(others))
