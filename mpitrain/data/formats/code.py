"""Format of the user or of a library: the name of a function or class that reads a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mpitrain.config import CodeComponent, CodeName
from mpitrain.config.named_code import reason
from mpitrain.data.formats.format import Format
from mpitrain.errors import DataError, MpitrainError

if TYPE_CHECKING:
    from mpitrain.data.files.variable import FieldFile


class CodeFormat(CodeComponent, Format):
    """A format given by the name of a callable, which receives the path of the file and the options.

    It returns a mapping of variable names to arrays, (dimensions, array) or (dimensions, array, attributes); or an open
    file with the methods of `FieldFile`.
    """

    setting = "data.reader"
    kind = Format

    type: CodeName

    def build(self, path: Path) -> FieldFile:
        """See `Format.build`."""
        self.check()
        own, target = self.own(), self.code.load()
        return self._guarded(path, lambda: target(path, **self.options) if own is None else own.build(path))

    def _guarded(self, path: Path, read: Any) -> FieldFile:
        from mpitrain.data.files.arrays import file_of

        try:
            return file_of(path, read())
        except MpitrainError:
            raise
        except (Exception, SystemExit) as error:
            raise DataError(f"{path}: data.reader={self.type} cannot read it ({reason(error)})") from error
