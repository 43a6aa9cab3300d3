"""The command `mpitrain export`: find the format and write the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from mpitrain.comm import require_torch
from mpitrain.config.component import Room
from mpitrain.durable_files import check_ending
from mpitrain.errors import UserError, writing
from mpitrain.export.formats.format import ExportFormat
from mpitrain.export.request import ExportRequest, Say

EXPORTS = Room("--format", "mpitrain.export.formats", is_name=True)


def run_export(request: ExportRequest, say: Say) -> None:
    """Export as requested, check what was written, and `say` what was checked. For one process, without MPI.

    Raises UserError, CheckpointError, MissingDependencyError, or OutputError if a file cannot be written or its
    outputs differ from the network's.
    """
    request = _with_members(request)
    found = _format_of(request)
    if found.type != "saber" and (request.names or request.mask_variable or request.mask_range):
        raise UserError("--name, --mask-variable and --mask-range belong to --format saber: give that, or none of them")
    if found.needs_torch:
        require_torch(f"--format {found.type}")
    if request.gpu_callable and found.type != "fortran":
        raise UserError("--gpu-callable belongs to --format fortran: give that, or leave the flag out")
    if request.profile and found.type != "mom6":
        raise UserError("--profile belongs to --format mom6: give that, or leave the flag out")
    found.write(replace(request, output=_output_of(request, found), format=request.format or found.type), say)


def _format_of(request: ExportRequest) -> ExportFormat:
    """Return the requested format, by its name or by the file's extension. Raises UserError if it is unknown."""
    name = request.format or str(EXPORTS.default)
    if not request.format and request.output is not None:
        formats = {name: EXPORTS.component(name) for name in EXPORTS.table}
        endings = {
            name: one.endings for name, one in formats.items() if issubclass(one, ExportFormat) and one.is_by_ending
        }
        with writing(request.output, "give a name with one of these, or --format too"):
            check_ending(request.output, (ending for some in endings.values() for ending in some))
        name = next(name for name, some in endings.items() if request.output.suffix in some)
    try:
        found: ExportFormat = EXPORTS.validate(name)
        return found
    except ValidationError as error:
        known = f"{', '.join(EXPORTS.table)}, or a function of your own as package.module:name"
        raise UserError(f"--format {name}: unknown; give one of {known}") from error


def _output_of(request: ExportRequest, found: ExportFormat) -> Path:
    """Return the path of the file to write. Raises UserError for a folder, or an extension of another format."""
    path = request.output or Path(found.output)
    if path.is_dir():
        raise UserError(f"--output {path}: is a folder; give a file such as {path / found.output}")
    if found.endings and path.suffix not in found.endings:
        raise UserError(
            f"--output {path}: --format {found.name} writes {' or '.join(found.endings)}; give "
            f"{path.with_suffix(Path(found.output).suffix)}"
        )
    return path


def _with_members(request: ExportRequest) -> ExportRequest:
    """Return the request with the folder of an ensemble replaced by those of its members."""
    from mpitrain.inference.ensemble import is_ensemble, member_folders

    if not is_ensemble(request.run):
        return request
    if request.members:
        raise UserError(f"{request.run}: is an ensemble already; give it alone, or the folders of runs")
    first, *others = member_folders(request.run)
    return replace(request, run=first, members=tuple(others))
