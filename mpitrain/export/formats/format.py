"""What a format of `mpitrain export` is to the rest of the package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from mpitrain.config import TypedComponent, object_at

if TYPE_CHECKING:
    from mpitrain.export.request import ExportRequest, Say
    from mpitrain.export.source.emulator import Emulator


class ExportFormat(TypedComponent):
    """A format that a run's network, or an ensemble's, is written in."""

    output: ClassVar[str] = "model.out"
    """The file that is written by default."""
    needs_torch: ClassVar[bool] = True
    """Whether writing it needs torch."""
    endings: ClassVar[tuple[str, ...]] = ()
    """Ends of names that the file may have; any where there are none."""
    is_by_ending: ClassVar[bool] = True
    """Whether a file with such an end is of this format where none is asked for."""
    writer: ClassVar[str] = ""
    """What does as `write` says: a function at package.module:name, imported by `write` alone."""

    type: str
    """Which format."""

    def write(self, request: ExportRequest, say: Say) -> None:
        """Write what is requested, check it, and `say` what was checked. Raises as `run_export`."""
        if not self.writer:
            raise NotImplementedError
        object_at(self.writer)(request, say)


class SourceFormat(ExportFormat):
    """Source code, believed once its self-test has passed."""

    needs_torch = False
    writer = "mpitrain.export.sources:export_sources"
    flags: ClassVar[tuple[str, ...]] = ()
    """What the compiler is given for the self-test."""
    suffix: ClassVar[str] = ""
    """The end of the names of files to compile."""
    source: ClassVar[str] = ""
    """What does as `files` says: a function at package.module:name, imported by `files` alone."""

    def files(self, emulator: Emulator) -> Mapping[str, str]:
        """Return the texts of the files by their names."""
        texts: Mapping[str, str] = object_at(self.source)(emulator)
        return texts

    def write(self, request: ExportRequest, say: Say) -> None:
        """See `ExportFormat.write`."""
        object_at(self.writer)(self, request, say)
