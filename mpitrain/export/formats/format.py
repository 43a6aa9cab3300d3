"""Base classes of the formats of `mpitrain export`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from mpitrain.config import TypedComponent, object_at

if TYPE_CHECKING:
    from mpitrain.export.request import ExportRequest, Say
    from mpitrain.export.source.emulator import Emulator


class ExportFormat(TypedComponent):
    """Base class of file formats for the network of a run, or of an ensemble.

    A subclass defines its `type`, and either `writer` or `write`.
    """

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
        """Write the requested network, check it, and `say` what was checked. For one process, without MPI.

        Parameters
        ----------
        request : ExportRequest
            The options of the command; the network is written to `request.output_file`.
        say : callable
            Receives each line of the report, a str.

        Raises
        ------
        UserError
            The request does not fit the format or the network.
        CheckpointError
            The checkpoint is damaged.
        MissingDependencyError
            A package that the format needs is not installed.
        OutputError
            A file cannot be written, or its outputs differ from the network's.
        NotImplementedError
            The class has neither `writer` nor its own `write`.
        """
        if not self.writer:
            raise NotImplementedError
        object_at(self.writer)(request, say)


class SourceFormat(ExportFormat):
    """Base class of formats of source code, which is compiled and checked by its own self-test.

    A subclass defines its `type`, `source`, `flags` and `suffix`.
    """

    needs_torch = False
    writer = "mpitrain.export.sources:export_sources"
    flags: ClassVar[tuple[str, ...]] = ()
    """Compiler flags for the self-test."""
    suffix: ClassVar[str] = ""
    """Extension of the files to compile."""
    source: ClassVar[str] = ""
    """Function that implements `files`, as package.module:name; imported only when `files` is called."""

    def files(self, emulator: Emulator) -> Mapping[str, str]:
        """Return the source files of the network and of its self-test.

        Parameters
        ----------
        emulator : Emulator
            Networks, variables, and samples with their expected results.

        Returns
        -------
        mapping of str to str
            The text of each file, by file name.
        """
        texts: Mapping[str, str] = object_at(self.source)(emulator)
        return texts

    def write(self, request: ExportRequest, say: Say) -> None:
        """See `ExportFormat.write`."""
        object_at(self.writer)(self, request, say)
