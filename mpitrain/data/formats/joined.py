"""Files of different variables opened as one data set, such as the output of climate models with one variable per file.

T  time levels of a file
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import reduce
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.cf import is_latitude, is_longitude, is_time
from mpitrain.data.describe.times import GREGORIAN, read_times
from mpitrain.data.files.decoding import read
from mpitrain.data.files.overlay import SelectedAlong
from mpitrain.data.files.stored_sum import StoredSum
from mpitrain.data.files.variable import FieldFile, Slices, VariableInfo, Variables
from mpitrain.data.formats.open import OnFile as OnFile
from mpitrain.data.formats.open import ignore_file as ignore_file
from mpitrain.data.formats.open import open_field_file, opened
from mpitrain.data.formats.reading import NO_SETTINGS, Reading
from mpitrain.data.units import counts_from_a_date
from mpitrain.errors import DataError

Positions = npt.NDArray[np.int64]
_SAME_PLACE, _SAME, _MOST_FILES, _MOST_COMPARED = 1e-3, 1e-5, 64, 10_000_000
_DAY_S, _NO_TIME = 86_400.0, np.iinfo(np.int64).min


class JoinedFiles:
    """Several open files as one; each variable is read from the first file that has it."""

    def __init__(self, files: Sequence[FieldFile], taken: Sequence[tuple[str, Positions] | None]) -> None:
        self.files, self.taken = files, tuple(taken)
        self._of = {name: file for file in reversed(files) for name in (*file.refused, *file.variables)}
        found = ((name, info, file) for file in files for name, info in file.variables.items())
        self.variables = Variables((name, info) for name, info, file in found if self._of[name] is file)

    @property
    def path(self) -> Path:
        """The paths, as text for messages."""
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


class FileTimes(NamedTuple):
    """The time dimension of a file, the instants (T,) of its levels in seconds since 1970, and the calendar."""

    dimension: str
    instants: npt.NDArray[np.int64]
    calendar: str


def times_of_file(file: FieldFile) -> FileTimes | None:
    """Return the times of a file's levels, for means the middle of the interval; None unless one variable has them."""
    found = [one for one in file.variables.values() if len(one.shape) == 1 and _holds_times(one)]
    own = [one for one in found if one.dimensions == (one.short_name,)] or found
    if len(own) != 1:
        return None
    times, calendar, _ = read_times(own[0], file)
    known = np.isfinite(times)
    instants = np.where(known, np.round(np.where(known, times, 0.0) * _DAY_S), _NO_TIME).astype(np.int64)
    return FileTimes(own[0].dimensions[0], instants, calendar)


def _holds_times(info: VariableInfo) -> bool:
    return info.is_numeric and counts_from_a_date(info.units)


def open_joined(paths: Sequence[Path], reading: Reading, taken: Sequence[tuple[str, Positions] | None]) -> FieldFile:
    """Open files as one; see `open_field_file`. `taken` has dimension and positions for each file; None: all."""
    files: list[FieldFile] = []
    try:
        for path in paths:
            files.append(open_field_file(path, reading))
    except DataError:
        for file in files:
            file.close()
        raise
    return _joined(files, taken)


def _joined(files: Sequence[FieldFile], taken: Sequence[tuple[str, Positions] | None]) -> FieldFile:
    found = [
        file if one is None else SelectedAlong(file, one[0], one[0], one[1])
        for file, one in zip(files, taken, strict=True)
    ]
    return found[0] if len(found) == 1 else JoinedFiles(found, taken)


@contextmanager
def open_joined_files(
    paths: Sequence[Path],
    on_file: OnFile = ignore_file,
    reading: Reading = NO_SETTINGS,
    needed_of: Callable[[FieldFile], Collection[str]] = lambda file: (),
) -> Iterator[FieldFile]:
    """Context manager that opens files as one, at the times common to all files with times; see `opened`.

    Parameters
    ----------
    paths : sequence of Path
        One file or more. A variable is read from the first file that has it.
    on_file : callable
        Called with each path before the file is opened, and with None after it is closed without an error. Returns
        whether it reports the file if this process is killed. Default: does nothing.
    reading : Reading
        Format, missing values and format of times; the default is as the files declare them.
    needed_of : callable
        Function of the open file that returns the names of the variables to be read. These are compared if several
        files have them, as coordinates always are. Default: none.

    Yields
    ------
    FieldFile
        Its time levels are in the order of the first file with times.

    Raises
    ------
    DataError
        A file cannot be read, or the files do not match: they share no dimension; a dimension, coordinate or needed
        variable differs; or their times differ and are not unique, or fewer than half of them are common.
    ConfigError, MissingDependencyError
        The code that `data.reader` names cannot be used, or the library of a format is missing.

    Notes
    -----
    Not collective. Latitudes and longitudes match within 0.001 degrees, other values within a relative difference of
    1e-5; a variable of more than 10 million values counts as different. The process exits if the library does not
    return from a damaged file within 20 s of processor time.
    """
    with ExitStack() as stack:
        files = [stack.enter_context(opened(path, on_file, reading)) for path in paths]
        found = _joined(files, _levels_in_common(files) if len(files) > 1 else [None])
        if isinstance(found, JoinedFiles):
            needed = needed_of(found)
            for number, other in enumerate(found.files[1:], 1):
                for first in found.files[:number]:
                    _check_same(first, other, needed)
        yield found


def _levels_in_common(files: Sequence[FieldFile]) -> list[tuple[str, Positions] | None]:
    """Return dimension and positions to select in each file, in the order of the first with times; None selects all."""
    times = [times_of_file(file) for file in files]
    known = [(file, one) for file, one in zip(files, times, strict=True) if one is not None]
    if all(np.array_equal(one.instants, known[0][1].instants) for _, one in known):
        return [None] * len(files)
    for file, one in known:
        if len(np.unique(one.instants)) < len(one.instants) or _NO_TIME in one.instants:
            raise DataError(
                f"{file.path}: has a duplicate or missing time, and times other than those of {known[0][0].path}; "
                "to read files of different variables together, their times must be unique"
            )
    common = reduce(np.intersect1d, (one.instants for _, one in known))
    if 2 * len(common) < min(len(one.instants) for _, one in known):
        sizes = ", ".join(f"{len(one.instants)} in {file.path}" for file, one in known)
        raise DataError(
            f"{known[1][0].path}: {len(common)} times are common to all files that are read together ({sizes}); give "
            "files of the same times"
        )
    wanted = known[0][1].instants[np.isin(known[0][1].instants, common)]
    return [None if one is None else (one.dimension, _places_of(wanted, one.instants)) for one in times]


def _places_of(wanted: npt.NDArray[np.int64], instants: npt.NDArray[np.int64]) -> Positions:
    order = np.argsort(instants)
    return order[np.searchsorted(instants[order], wanted)]


def _check_times(kinds: Sequence[Sequence[Path]], times: Mapping[Path, FileTimes | None]) -> None:
    """Raise DataError for different calendars, and for a file with a single time among files with more."""
    known = [(path, levels) for kind in kinds for path in kind if (levels := times[path]) is not None]
    for path, one in known[1:]:
        first_path, first = known[0]
        if one.calendar != first.calendar and not {one.calendar, first.calendar} <= GREGORIAN:
            raise DataError(
                f"{path}: its calendar is '{one.calendar}', that of {first_path} is '{first.calendar}'; give files of "
                "one calendar"
            )
    num_levels = max((len(one.instants) for _, one in known), default=0)
    for kind in kinds:
        only = times[kind[0]] if len(kind) == 1 else None
        if only is not None and len(only.instants) == 1 and (num_levels > 1 or max(map(len, kinds)) > 1):
            raise DataError(
                f"{kind[0]}: has one time, the other files have more; if its data do not depend on time, remove the "
                f"dimension {only.dimension}, for example with 'ncwa -a {only.dimension}'"
            )


def parts_of_kinds(
    kinds: Sequence[Sequence[Path]], times: Mapping[Path, FileTimes | None]
) -> tuple[list[tuple[Path, ...]], list[str]]:  # fmt: skip
    """Return each file of the first kind with the file of each other kind that shares most of its times, and notices.

    Files of the first kind without a match are left out. If several files share as many times and both kinds have
    equally many files, they are matched by position. Raises DataError if no files match, or several match one.
    """
    _check_times(kinds, times)
    found = []
    for number, path in enumerate(kinds[0]):
        matched, common = [path], None if (own := times[path]) is None else own.instants
        for kind in kinds[1:]:
            one = _fitting(kind, common, times, number if len(kind) == len(kinds[0]) else None, path)
            if one is None:
                break
            matched.append(one)
            levels = times[one]
            common = common if levels is None or common is None else np.intersect1d(common, levels.instants)
        found += [tuple(matched)] if len(matched) == len(kinds) else []
    if not found:
        raise DataError(
            f"{kinds[0][0]}: files such as {kinds[1][0]} have no time in common with it; files of different variables "
            "are read together at their common times"
        )
    return found, _times_left_out(kinds, times, found)


def _fitting(
    kind: Sequence[Path], common: npt.NDArray[np.int64] | None, times: Mapping[Path, FileTimes | None],
    number: int | None, path: Path,
) -> Path | None:  # fmt: skip
    """Return the file of a kind that matches `path`; None if none shares a time. Raises DataError if several match."""
    if common is None or any(times[one] is None for one in kind):
        fitting = list(kind)
    else:
        counts = [len(np.intersect1d(common, levels.instants)) for one in kind if (levels := times[one]) is not None]
        fitting = [one for one, count in zip(kind, counts, strict=True) if count and count == max(counts)]
    if len(fitting) > 1 and number is not None and kind[number] in fitting:
        fitting = [kind[number]]
    if len(fitting) > 1:
        raise DataError(
            f"{path}: {len(fitting)} files such as {fitting[0]} match it: they share as many times with it, or times "
            "are unknown; give as many files of each variable, or one"
        )
    return fitting[0] if fitting else None


def _times_left_out(
    kinds: Sequence[Sequence[Path]], times: Mapping[Path, FileTimes | None], parts: Sequence[tuple[Path, ...]]
) -> list[str]:  # fmt: skip
    every = {
        one
        for kind in kinds
        for path in kind
        if (levels := times[path]) is not None
        for one in levels.instants.tolist()
    }
    kept: set[int] = set()
    for part in parts:
        known = [levels.instants for path in part if (levels := times[path]) is not None]
        kept |= set(reduce(np.intersect1d, known).tolist()) if known else set()
    files = f"{kinds[0][0]} and files of other variables beside it"
    return [f"{files}: {len(every - kept)} times that not all of them have are left out"] if every - kept else []


def first_of_each_kind(paths: Sequence[Path], reading: Reading) -> list[Path]:
    """Return the first file, and each further file that shares no variable with the files chosen before it.

    Parameters
    ----------
    paths : sequence of Path
        One file or more; the first 64 are opened.
    reading : Reading
        Format, missing values and format of times.

    Returns
    -------
    list of Path
        Files that can be opened together, in the order of `paths`. Coordinates do not count as variables. The first
        file alone if a file cannot be read, or the files cannot be read together.

    Raises
    ------
    ConfigError, MissingDependencyError
        As `open_joined_files`.
    """
    kinds: dict[frozenset[str], Path] = {}
    try:
        for path in paths[:_MOST_FILES] if len(paths) > 1 else ():
            with opened(path, reading=reading) as file:
                measured = (name for name, one in file.variables.items() if one.is_numeric and not _is_coordinate(one))
                own = frozenset(measured)
            if not any(own & other for other in kinds):
                kinds.setdefault(own, path)  # several files may have coordinates only
        found = list(kinds.values()) or list(paths[:1])
        with open_joined_files(found, reading=reading):
            return found
    except DataError:
        return list(paths[:1])


def _check_same(first: FieldFile, other: FieldFile, needed: Collection[str]) -> None:
    """Raise DataError if two files share no dimension, or differ in the size of one or in a common coordinate."""
    sizes, others = first.variables.dimension_sizes, other.variables.dimension_sizes
    common = {name for name in sizes.keys() & others.keys() if name}
    if not common:
        raise DataError(
            f"{other.path}: has no dimension in common with {first.path}, so that their variables cannot be read "
            "together; write them into one file"
        )
    for name in common:
        if sizes[name] != others[name]:
            raise DataError(
                f"{other.path}: dimension {name} has size {others[name]}, in {first.path} {sizes[name]}; give files of "
                "different variables with the same times and places"
            )
    for name, info in first.variables.items():
        own = other.variables.get(name)
        is_compared = len(info.shape) <= 1 or _is_coordinate(info) or name in needed
        if own is not None and is_compared and not _holds_times(info) and not _are_equal(info, first, own, other):
            raise DataError(
                f"{other.path}: '{name}' differs from that of {first.path}; give files of the same places and labels, "
                "and each variable in one file only"
            )


def _are_equal(info: VariableInfo, first: FieldFile, own: VariableInfo, other: FieldFile) -> bool:
    """Tell whether a variable has equal values in two files: latitude and longitude within 0.001 degrees."""
    every = (slice(None),) * len(info.shape)
    if own.shape != info.shape or prod(info.shape) > _MOST_COMPARED:
        return False
    if not (info.is_numeric and own.is_numeric):
        with suppress(TypeError, ValueError):
            return np.array_equal(first.read_stored(info.name, every), other.read_stored(own.name, every))
        return False
    values, others = (read(file, one.name, every).astype(np.float64) for file, one in ((first, info), (other, own)))
    apart = _SAME_PLACE if is_latitude(info) or is_longitude(info) else 0.0
    return bool(np.allclose(values, others, rtol=0.0 if apart else _SAME, atol=apart, equal_nan=True))


def _is_coordinate(info: VariableInfo) -> bool:
    """Tell whether a variable is a coordinate: a coordinate variable, a time, a latitude or a longitude."""
    is_own = info.dimensions == (info.short_name,)
    return info.is_numeric and (is_own or is_time(info) or is_latitude(info) or is_longitude(info))
