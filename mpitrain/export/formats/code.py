"""A format of the user: a function that writes the network to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpitrain.config import CodeName
from mpitrain.config.named_code import NamedCode
from mpitrain.export.formats.format import ExportFormat

if TYPE_CHECKING:
    from mpitrain.export.request import ExportRequest, Say


class CodeExport(ExportFormat):
    """A format given as a function's name; it is called with the network, the path and some inputs (samples, F)."""

    type: CodeName

    def write(self, request: ExportRequest, say: Say) -> None:
        """See `ExportFormat.write`; the file is not read again."""
        from mpitrain.export.networks import load_networks
        from mpitrain.models.batch_norm import to_exportable

        code, path = NamedCode("--format", self.type), request.output_file
        target, wanted = code.load(), load_networks(request, say)
        network = to_exportable(wanted.model)
        advice = "it is called with the network, the path and some inputs"
        code.run(lambda: target(network, path, wanted.inputs), "it failed", advice)
        say(f"{path}: {wanted.origin}, written by {self.type}; not checked")
