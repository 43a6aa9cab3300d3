"""How values of files are read where the settings say so: their format, what is missing, and how times are written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.ragged import at_observations
from mpitrain.data.files.absolute_time import OF_DATES
from mpitrain.data.files.arrays import ArrayFile
from mpitrain.data.files.overlay import Overlay
from mpitrain.data.files.variable import FieldFile, VariableInfo
from mpitrain.data.units import counts_from_a_date
from mpitrain.errors import DataError, MissingDependencyError, one_line


@dataclass(frozen=True)
class Reading:
    """The settings of `data` that say how values are read. Can be sent to other ranks.

    `reader` are the plain values of `data.reader`. `missing_values` are numbers and words, `time_format` and
    `time_name` the format and the variable of times. |x| from `largest` on is no value, whatever the file says.
    `sampled` are variables of observations: those of their profiles or stations are read at each of them.
    """

    reader: Mapping[str, Any] | None = None
    missing_values: tuple[float | str, ...] = ()
    time_format: str | None = None
    time_name: str | None = None
    largest: float = math.inf
    sampled: tuple[str, ...] = ()

    def apply(self, file: FieldFile) -> FieldFile:
        """Return the file with what the settings say of its values, and with text of tables as numbers and times.

        Raises DataError where the named times are not written as `time_format` says, MissingDependencyError.
        """
        file = self._with_text_read(file)
        numbers = tuple(float(one) for one in self.missing_values if not isinstance(one, str))
        if numbers or self.largest < math.inf:
            file = Overlay(file)
            for name, info in list(file.variables.items()):
                file.variables[name] = replace(info, missing=numbers, largest=self.largest)
        file = self._with_times(file)
        return at_observations(file, self.sampled) if self.sampled else file

    @property
    def words(self) -> tuple[str, ...]:
        """The words that stand for a missing value: of a number, the number as text too."""
        return tuple(one if isinstance(one, str) else f"{one:.15g}" for one in self.missing_values)

    def _with_text_read(self, file: FieldFile) -> FieldFile:
        """Return the file with its columns of text as numbers or times where they are, else with a note of why not."""
        if not isinstance(file, ArrayFile):
            return file
        found, notes = [], {}
        for name, info in file.variables.items():
            if info.is_text and len(info.shape) == 1 and info.shape[0]:
                read = self._read_text(file.load(name))
                if isinstance(read, str):
                    notes[name] = read
                else:
                    found.append((_info(info, read[1]), read[0]))
        return Overlay(file, found, is_stored=True, notes=notes) if found or notes else file

    def _read_text(self, texts: npt.NDArray[Any]) -> tuple[npt.NDArray[np.float64], Mapping[str, str]] | str:
        try:
            import pyarrow as pa
        except ImportError:
            return f"holds text, such as '{one_line(str(texts[0]))}', expected numbers; name another"
        from mpitrain.data.files.tables.text import numbers_of_text

        try:
            column = pa.chunked_array([pa.array(texts, from_pandas=True)])
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            return f"holds objects, such as '{one_line(str(texts[0]))[:30]}', expected numbers; name another"
        return numbers_of_text(column, self.words, self.time_format)

    def _with_times(self, file: FieldFile) -> FieldFile:
        """Return the file with the times of `time_name` decoded by `time_format`; itself without these."""
        info = file.variables.get(self.time_name or "")
        if self.time_format is None or info is None or info.units:
            return file
        key = f"data.time_format={json.dumps(self.time_format)}"
        if counts_from_a_date(self.time_format) and info.is_numeric:
            units = {**info.attributes, "units": self.time_format}
            file = Overlay(file)
            file.variables[info.name] = replace(info, attributes=units)
            return file
        try:
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(f"{file.path}: {key} needs pyarrow: python -m pip install pyarrow") from error
        from mpitrain.data.files.tables.dates import days_of_numbers

        stored = file.read_stored(info.name, (slice(None),) * len(info.shape))
        if info.is_numeric:
            days = days_of_numbers(stored.astype(np.float64).reshape(-1), self.time_format)
            found = f"holds {stored.reshape(-1)[0]}, which is no such time" if days is None else (days, OF_DATES)
        else:
            texts = stored.view(f"S{stored.shape[-1]}")[..., 0] if stored.dtype == "S1" else stored
            found = self._read_text(np.char.decode(texts, "utf-8") if texts.dtype.kind == "S" else texts)
        if isinstance(found, str):
            raise DataError(f"{file.path}: variable '{info.name}' {found} ({key})")
        shape = stored.shape[:1] if stored.dtype == "S1" else info.shape
        return Overlay(file, [(_info(info, found[1], shape), found[0].reshape(shape))], is_stored=True)


AS_IT_IS = Reading()
"""Without settings: as files say."""


def _info(info: VariableInfo, attributes: Mapping[str, str], shape: tuple[int, ...] | None = None) -> VariableInfo:
    """Return what is known of a variable whose values are numbers (N,) in memory."""
    shape = info.shape if shape is None else shape
    kept = {**info.attributes, **attributes}
    return VariableInfo(info.name, info.dimensions[: len(shape)], shape, "<f8", kept)
