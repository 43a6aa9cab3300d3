"""Settings for reading the values of files: format, missing values and format of times."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.ragged import at_observations
from mpitrain.data.files.absolute_time import OF_DATES
from mpitrain.data.files.arrays import ArrayFile
from mpitrain.data.files.decoding import read
from mpitrain.data.files.overlay import Overlay
from mpitrain.data.files.variable import FieldFile, VariableInfo, texts_of
from mpitrain.data.units import counts_from_a_date
from mpitrain.errors import DataError, MissingDependencyError, reason_of

_Read = tuple[npt.NDArray[np.float64], Mapping[str, str]] | str


@dataclass(frozen=True)
class Reading:
    """The settings of `data` for reading values. Can be pickled and sent to other ranks.

    `reader` are the values of `data.reader`. `missing_values` are numbers and text; `time_format` and `time_name` are
    the format and the variable of times. |x| >= `largest` is missing, whatever the file declares. `sampled` are
    variables of observations: variables of their profiles or stations are repeated for each observation.
    """

    reader: Mapping[str, Any] | None = None
    missing_values: tuple[float | str, ...] = ()
    time_format: str | None = None
    time_name: str | None = None
    largest: float = math.inf
    sampled: tuple[str, ...] = ()

    def apply(self, file: FieldFile) -> FieldFile:
        """Return the file with the settings applied to its variables, and with text columns as numbers and times.

        Raises DataError if the times of `time_name` do not match `time_format`, and MissingDependencyError.
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
    def missing_texts(self) -> tuple[str, ...]:
        """The text that means a missing value, including the numbers as text."""
        return tuple(one if isinstance(one, str) else f"{one:.15g}" for one in self.missing_values)

    def _with_text_read(self, file: FieldFile) -> FieldFile:
        """Return the file with text columns converted to numbers or times, or with a note why they are not."""
        if not isinstance(file, ArrayFile):
            return file
        found, notes, time = [], {}, self._time_variable(file)
        for name, info in file.variables.items():
            if info.is_text and len(info.shape) == 1 and info.shape[0]:
                column = partial(file.text_column or partial(_column_of, file), name)
                read = self._read_text(column, time is not None and time.name == name)
                if isinstance(read, str):
                    notes[name] = read
                else:
                    found.append((_info(info, read[1]), read[0]))
        return Overlay(file, found, is_stored=True, notes=notes) if found or notes else file

    def _read_text(self, column: Callable[[int | None], Any], is_time: bool) -> _Read:
        try:
            import pyarrow as pa
        except ImportError:
            return "holds text, expected numbers; name another, or install pyarrow: python -m pip install pyarrow"
        from mpitrain.data.files.tables.text import numbers_of_text

        pattern = self.time_format if self.time_format is not None and "%" in self.time_format else None
        try:
            return numbers_of_text(column, self.missing_texts, pattern, is_time and pattern is not None)
        except (pa.ArrowException, UnicodeDecodeError) as error:
            return f"holds neither text nor numbers ({reason_of(error)}); name another"

    def _time_variable(self, file: FieldFile) -> VariableInfo | None:
        """Return the variable `time_name`, also by its name without groups if that is unique; None if there is none."""
        found = [one for one in file.variables.values() if one.short_name == self.time_name]
        return file.variables.get(self.time_name or "", found[0] if len(found) == 1 else None)

    def _with_times(self, file: FieldFile) -> FieldFile:
        """Return the file with the times of `time_name` decoded by `time_format`; unchanged without these settings."""
        info = self._time_variable(file)
        if self.time_format is None or info is None or counts_from_a_date(info.units):
            return file
        if counts_from_a_date(self.time_format) and info.is_numeric:
            file = Overlay(file)
            file.variables[info.name] = replace(info, attributes={**info.attributes, "units": self.time_format})
            return file
        found: Any = file.note_of(info.name) if info.is_text and isinstance(file, ArrayFile | Overlay) else None
        if found is None:
            found = self._read_digits(file, info) if info.is_numeric else self._read_letters(file, info)
        if isinstance(found, str):
            raise DataError(f"{file.path}: variable '{info.name}' {found}")
        shape = info.shape[: found[0].ndim]
        return Overlay(file, [(_info(info, OF_DATES, shape), found[0].reshape(shape))], is_stored=True)

    def _read_digits(self, file: FieldFile, info: VariableInfo) -> _Read:
        try:
            from mpitrain.data.files.tables.dates import days_of_numbers

            numbers = read(file, info.name, (slice(None),) * len(info.shape)).astype(np.float64)
            days = days_of_numbers(numbers.reshape(-1), str(self.time_format))
        except ImportError as error:
            raise MissingDependencyError(
                f"{file.path}: data.time_format needs pyarrow: python -m pip install pyarrow"
            ) from error
        if isinstance(days, int):
            value = numbers.reshape(-1)[days]
            return f"holds {value:.15g} in row {days + 1}, which does not match data.time_format='{self.time_format}'"
        return days.reshape(info.shape), OF_DATES

    def _read_letters(self, file: FieldFile, info: VariableInfo) -> _Read:
        """Return the times in text variables of NetCDF, HDF5 or Zarr, strings or arrays of single characters."""
        texts = texts_of(file.read_stored(info.name, (slice(None),) * len(info.shape)))
        return self._read_text(lambda num_first: _arrow(texts.reshape(-1)[:num_first]), True)


def _column_of(file: ArrayFile, name: str, num_first: int | None) -> Any:
    return _arrow(file.load(name)[:num_first])


def _arrow(texts: npt.NDArray[Any]) -> Any:
    import pyarrow as pa

    return pa.chunked_array([pa.array(texts, from_pandas=True)])


NO_SETTINGS = Reading()
"""Reading without settings: values as the files declare them."""


def _info(info: VariableInfo, attributes: Mapping[str, str], shape: tuple[int, ...] | None = None) -> VariableInfo:
    """Return the description of a variable that was converted to float64 values in memory."""
    shape = info.shape if shape is None else shape
    kept = {**info.attributes, **attributes}
    return VariableInfo(info.name, info.dimensions[: len(shape)], shape, "<f8", kept)
