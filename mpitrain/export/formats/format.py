"""Base classes of the formats of `mpitrain export`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from mpitrain.config import TypedComponent, object_at

if TYPE_CHECKING:
    from mpitrain.export.request import ExportRequest, Say
    from mpitrain.export.source.emulator import Emulator


class ExportFormat(TypedComponent):
    """A file format for the network of a run, or of an ensemble."""

    output: ClassVar[str] = "model.out"
    """Name of the file that is written by default."""
    needs_torch: ClassVar[bool] = True
    """Whether writing it needs torch."""
    endings: ClassVar[tuple[str, ...]] = ()
    """Allowed extensions of the file name; any if empty."""
    is_by_ending: ClassVar[bool] = True
    """Whether a file name with one of these extensions selects this format if no format is given."""
    writer: ClassVar[str] = ""
    """Function that implements `write`, as package.module:name; imported only when `write` is called."""

    type: str
    """Name of the format."""

    def write(self, request: ExportRequest, say: Say) -> None:
        """Write the requested network, check it, and `say` what was checked. Raises as `run_export`."""
        if not self.writer:
            raise NotImplementedError
        object_at(self.writer)(request, say)


class SourceFormat(ExportFormat):
    """Source code, checked by its self-test."""

    needs_torch = False
    writer = "mpitrain.export.sources:export_sources"
    flags: ClassVar[tuple[str, ...]] = ()
    """Compiler flags for the self-test."""
    suffix: ClassVar[str] = ""
    """Extension of the files to compile."""
    source: ClassVar[str] = ""
    """Function that implements `files`, as package.module:name; imported only when `files` is called."""

    def files(self, emulator: Emulator) -> Mapping[str, str]:
        """Return the text of each file, by file name."""
        texts: Mapping[str, str] = object_at(self.source)(emulator)
        return texts

    def write(self, request: ExportRequest, say: Say) -> None:
        """See `ExportFormat.write`."""
        object_at(self.writer)(self, request, say)
