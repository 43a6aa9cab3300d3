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
from mpitrain.data.describe.times import Stamps, ranks_of_stamps, read_stamps
from mpitrain.data.files.decoding import read
from mpitrain.data.files.overlay import TakenAlong
from mpitrain.data.files.stored_sum import StoredSum
from mpitrain.data.files.variable import FieldFile, Slices, VariableInfo, Variables
from mpitrain.data.formats.open import OnFile as OnFile
from mpitrain.data.formats.open import ignore_file as ignore_file
from mpitrain.data.formats.open import open_field_file, opened
from mpitrain.data.formats.reading import AS_IT_IS, Reading
from mpitrain.data.units import counts_from_a_date
from mpitrain.errors import DataError

_SAME_PLACE, _MOST_FILES = 1e-3, 64


class JoinedFiles:
    """Open files as one; a variable is that of the first file that has it."""

    def __init__(self, files: Sequence[FieldFile]) -> None:
        self.files = files
        self._of = {name: file for file in reversed(files) for name in (*file.refused, *file.variables)}
        found = ((name, info, file) for file in files for name, info in file.variables.items())
        self.variables = Variables((name, info) for name, info, file in found if self._of[name] is file)

    @property
    def path(self) -> Path:
        """The paths, for people."""
        first, *others = self.files
        return Path(f"{first.path} with {', '.join(file.path.name for file in others)}")

    @property
    def refused(self) -> Mapping[str, str]:
        """See `FieldFile`."""
        return {name: file.refused[name] for name, file in self._of.items() if name in file.refused}

    @property
    def stored_sum(self) -> StoredSum:
        """See `FieldFile`."""
        return self.files[0].stored_sum

    @stored_sum.setter
    def stored_sum(self, value: StoredSum) -> None:
        for file in self.files:
            file.stored_sum = value

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """See `FieldFile`."""
        return self._of[name].read_stored(name, slices)

    def note_of(self, name: str) -> str | None:
        """See `FieldFile`."""
        return self._of[name].note_of(name)

    def close(self) -> None:
        """See `FieldFile`."""
        for file in self.files:
            file.close()


def open_joined(paths: Sequence[Path], reading: Reading = AS_IT_IS) -> FieldFile:
    """Open files as one; see `open_field_file`."""
    return _joined([open_field_file(path, reading) for path in paths])


@contextmanager
def opened_joined(
    paths: Sequence[Path], on_file: OnFile = ignore_file, reading: Reading = AS_IT_IS
) -> Iterator[FieldFile]:  # fmt: skip
    """Open files as one for the block; see `opened`. Raises DataError where times or places are not the same."""
    with ExitStack() as stack:
        files = [stack.enter_context(opened(path, on_file, reading)) for path in paths]
        found = _joined(files)
        if isinstance(found, JoinedFiles):
            for other in found.files[1:]:
                _check_same(found.files[0], other)
        yield found


def stamps_of_levels(file: FieldFile) -> Stamps | None:
    """Return when the levels of a file are; None where no variable or more than one tells."""
    return read_stamps(time_of_levels(file), file)


def parts_of_kinds(
    kinds: Sequence[Sequence[Path]], times: Mapping[Path, Stamps | None]
) -> tuple[list[tuple[Path, ...]], list[str]]:  # fmt: skip
    """Return each file of the first kind with the file of each other kind that has times of it, or no times; and lines.

    Raises DataError where several files have, or no file of the first kind has one.
    """
    paths = [path for kind in kinds for path in kind if times[path] is not None]
    stamps = [one for path in paths if (one := times[path]) is not None]
    sizes = [len(one.values) for one in stamps]
    ranks = ranks_of_stamps(stamps, sizes) if stamps else None
    of = {} if ranks is None else dict(zip(paths, np.split(ranks, np.cumsum(sizes)[:-1]), strict=True))
    found = []
    for number, path in enumerate(kinds[0]):
        beside = [path]
        for kind in kinds[1:]:
            fitting = [one for one in kind if one not in of or path not in of or np.isin(of[one], of[path]).any()]
            fitting = [kind[number]] if not of and len(kind) == len(kinds[0]) else fitting
            if len(fitting) > 1:
                raise DataError(
                    f"{path}: {len(fitting)} files such as {fitting[0]} have times of it; files of different variables "
                    "are read together where one file of each has: join or cut the files"
                )
            beside += fitting
        found += [tuple(beside)] if len(beside) == len(kinds) else []
    if not found:
        raise DataError(
            f"{kinds[0][0]}: files such as {kinds[1][0]} have none of its times; files of different variables are read "
            "together at the times that they have in common"
        )
    return found, _times_left_out(kinds, of)


def _times_left_out(kinds: Sequence[Sequence[Path]], of: Mapping[Path, npt.NDArray[np.int64]]) -> list[str]:
    ranks = [np.concatenate([of[path] for path in kind]) for kind in kinds if all(path in of for path in kind)]
    if len(ranks) < len(("one", "another")):
        return []
    sets = [set(part[part >= 0].tolist()) for part in ranks]
    num_left_out = len(set.union(*sets)) - len(set.intersection(*sets))
    what = f"{kinds[0][0]} and files of other variables beside it"
    return [f"{what}: {num_left_out} times that not all of these have are left out"] if num_left_out else []


def time_of_levels(file: FieldFile) -> VariableInfo | None:
    """Return the times along a dimension of a file, where one variable alone holds such."""
    found = [one for one in file.variables.values() if len(one.shape) == 1 and _holds_times(one)]
    own = [one for one in found if one.dimensions == (one.short_name,)] or found
    return own[0] if len(own) == 1 else None


def _holds_times(info: VariableInfo) -> bool:
    return info.is_numeric and counts_from_a_date(info.units)


def _joined(files: Sequence[FieldFile]) -> FieldFile:
    """Return files as one, at the times that all have which have times."""
    if len(files) == 1:
        return files[0]
    times = [time_of_levels(file) for file in files]
    known = [(file, info) for file, info in zip(files, times, strict=True) if info is not None]
    sizes = [info.shape[0] for _, info in known]
    ranks = ranks_of_stamps([read_stamps(info, file) for file, info in known], sizes) if len(known) > 1 else None
    if ranks is None:
        return JoinedFiles(files)
    parts = np.split(ranks, np.cumsum(sizes)[:-1])
    common = set.intersection(*(set(part[part >= 0].tolist()) for part in parts))
    if not common:
        raise DataError(
            f"{known[1][0].path}: has no time in common with {known[0][0].path}; files of different variables are "
            "read together at the times that they have in common"
        )
    taken = iter(parts)
    found = []
    for file, info in zip(files, times, strict=True):
        if info is not None:
            part = next(taken)
            positions = np.flatnonzero(np.isin(part, list(common)))
            if len(positions) < len(part):
                file = TakenAlong(file, info.dimensions[0], info.dimensions[0], positions)
        found.append(file)
    return JoinedFiles(found)


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
