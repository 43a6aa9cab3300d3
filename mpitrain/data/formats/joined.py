"""Files of different variables as one data set: one variable a file, as climate models and reanalyses come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.cf import is_latitude, is_longitude, is_time
from mpitrain.data.describe.times import ranks_of_stamps, read_stamps
from mpitrain.data.files.decoding import read
from mpitrain.data.files.stored_sum import StoredSum
from mpitrain.data.files.variable import FieldFile, Slices, VariableInfo, Variables
from mpitrain.data.formats.open import OnFile as OnFile
from mpitrain.data.formats.open import ignore_file as ignore_file
from mpitrain.data.formats.open import open_field_file, opened
from mpitrain.data.formats.reading import AS_IT_IS, Reading
from mpitrain.errors import DataError

_SAME_PLACE, _MOST_FILES = 1e-3, 64


class JoinedFiles:
    """Open files as one; a variable is that of the first file that has it."""

    def __init__(self, files: Sequence[FieldFile]) -> None:
        self._files = files
        self._of = {name: file for file in reversed(files) for name in (*file.refused, *file.variables)}
        found = ((name, info, file) for file in files for name, info in file.variables.items())
        self.variables = Variables((name, info) for name, info, file in found if self._of[name] is file)

    @property
    def path(self) -> Path:
        """The paths, for people."""
        first, *others = self._files
        return Path(f"{first.path} with {', '.join(file.path.name for file in others)}")

    @property
    def refused(self) -> Mapping[str, str]:
        """See `FieldFile`."""
        return {name: file.refused[name] for name, file in self._of.items() if name in file.refused}

    @property
    def stored_sum(self) -> StoredSum:
        """See `FieldFile`."""
        return self._files[0].stored_sum

    @stored_sum.setter
    def stored_sum(self, value: StoredSum) -> None:
        for file in self._files:
            file.stored_sum = value

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """See `FieldFile`."""
        return self._of[name].read_stored(name, slices)

    def note_of(self, name: str) -> str | None:
        """See `FieldFile`."""
        return self._of[name].note_of(name)

    def close(self) -> None:
        """See `FieldFile`."""
        for file in self._files:
            file.close()


def open_joined(paths: Sequence[Path], reading: Reading = AS_IT_IS) -> FieldFile:
    """Open files as one; see `open_field_file`."""
    files = [open_field_file(path, reading) for path in paths]
    return files[0] if len(files) == 1 else JoinedFiles(files)


@contextmanager
def opened_joined(
    paths: Sequence[Path], on_file: OnFile = ignore_file, reading: Reading = AS_IT_IS
) -> Iterator[FieldFile]:  # fmt: skip
    """Open files as one for the block; see `opened`. Raises DataError where times or places are not the same."""
    with ExitStack() as stack:
        files = [stack.enter_context(opened(path, on_file, reading)) for path in paths]
        for other in files[1:]:
            _check_same(files[0], other)
        yield files[0] if len(files) == 1 else JoinedFiles(files)


def first_of_each_kind(paths: Sequence[Path], reading: Reading) -> list[Path]:
    """Return the first file, with the first of those that have none of its variables but of its dimensions and places.

    They are read together; the first alone where they cannot be.
    """
    kinds: dict[frozenset[str], Path] = {}
    try:
        for path in paths[:_MOST_FILES] if len(paths) > 1 else ():
            with opened(path, reading=reading) as file:
                measured = (name for name, one in file.variables.items() if one.is_numeric and not _is_coordinate(one))
                own = frozenset(measured)
            if not any(own & other for other in kinds):
                kinds[own] = path
        found = list(kinds.values())
        with opened_joined(found, reading=reading):
            return found or list(paths[:1])
    except DataError:
        return list(paths[:1])


def _check_same(first: FieldFile, other: FieldFile) -> None:
    """Raise DataError where a dimension of two files has other sizes, times or places."""
    sizes, others = (
        {name: size for info in file.variables.values() for name, size in zip(info.dimensions, info.shape, strict=True)}
        for file in (first, other)
    )
    common = {name for name in sizes.keys() & others.keys() if name}
    if not common:
        raise DataError(
            f"{other.path}: has no dimension in common with {first.path}, by which their variables could be read "
            "together; write them into one file"
        )
    for name in common:
        if sizes[name] != others[name]:
            raise DataError(
                f"{other.path}: dimension {name} has {others[name]}, in {first.path} {sizes[name]}; files of different "
                "variables are read together where times and places are the same: give files that fit"
            )
    for name, info in first.variables.items():
        own = other.variables.get(name)
        if own is not None and own.shape == info.shape and _is_coordinate(info) and _is_coordinate(own):
            different = _num_different(info, first, own, other)
            if different:
                raise DataError(
                    f"{other.path}: {different} of {max(1, prod(info.shape))} values of '{name}' are not those of "
                    f"{first.path}; give files of the same times and places"
                )


def _num_different(info: VariableInfo, first: FieldFile, own: VariableInfo, other: FieldFile) -> int:
    """Return how many values of a coordinate differ: times as instants, others by a thousandth of a degree or more."""
    stamps = read_stamps(info, first), read_stamps(own, other)
    size = max(1, prod(info.shape))
    if any(one is not None for one in stamps):
        ranks = ranks_of_stamps(stamps, [size, size])
        return size if ranks is None else int((ranks[:size] != ranks[size:]).sum())
    values, others = (
        read(file, one.name, (slice(None),) * len(one.shape)).astype(np.float64)
        for file, one in ((first, info), (other, own))
    )
    return int((~np.isclose(values, others, rtol=0.0, atol=_SAME_PLACE, equal_nan=True)).sum())


def _is_coordinate(info: VariableInfo) -> bool:
    """Tell whether a variable says where or when others are: of its own dimension, a time, or a place."""
    is_own = info.dimensions == (info.short_name,)
    return info.is_numeric and (is_own or is_time(info) or is_latitude(info) or is_longitude(info))
