"""The source of samples: files that the root opens once, and any rank then reads in chunks.

N  samples   F  inputs   O  targets   J, I  rows and columns of the grid
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from mpitrain.config import TargetTransform
from mpitrain.data.describe.times import StoredTimes
from mpitrain.data.files.stored_sum import StoredSum
from mpitrain.data.files.variable import FieldFile, VariableInfo
from mpitrain.data.formats.joined import open_joined
from mpitrain.data.formats.reading import NO_SETTINGS, Reading
from mpitrain.data.random_streams import Stream, keyed_uniform_at
from mpitrain.data.samples import LeftOut, Samples, concatenate, is_measured
from mpitrain.data.selection.chunks import SampleChunk
from mpitrain.data.selection.settings import Selection, expand_paths, refuse_same_file
from mpitrain.data.selection.variable_access import VariableAccess
from mpitrain.data.transforms import outside_domain, transformed
from mpitrain.errors import DataError

MOST_OPEN_FILES = 16


@dataclass(frozen=True)
class SourceFile:
    """One file: its variables by their names in the settings, and its size and time of modification when it was opened.

    `beside`: files with other variables at the same points, read with it as one. `taken`: for this file and each of
    these, the dimension and the positions along it that are read; None: all positions. `first_time`: the number of its
    first time level (of its first sample, for a table) among all files. `times` (T,): days since 1970-01-01 in its
    calendar, if the settings need them; `time`: its time variable, `stamps`: the values of that variable, for grids
    only.
    """

    path: Path
    size_bytes: int
    mtime_ns: int
    num_times: int
    first_time: int
    variables: Mapping[str, VariableAccess] = field(default_factory=dict)
    times: npt.NDArray[np.float64] | None = field(default=None, compare=False)
    reading: Reading = NO_SETTINGS
    time: VariableInfo | None = field(default=None, compare=False, repr=False)
    stamps: StoredTimes | None = field(default=None, compare=False, repr=False)
    beside: tuple[SourceFile, ...] = ()
    taken: tuple[tuple[str, npt.NDArray[np.int64]] | None, ...] = field(default=(None,), compare=False, repr=False)

    @property
    def are_rows(self) -> bool:
        """Whether its time levels are the rows of a table."""
        return any(one.axes.are_rows for one in self.variables.values())

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of the file and of the files beside it."""
        return (self.path, *(one.path for one in self.beside))

    def check_unchanged(self) -> None:
        """Raise DataError if the file, or one beside it, is missing or has changed since it was first opened."""
        for one in self.beside:
            one.check_unchanged()
        try:
            status = self.path.stat()
        except OSError as error:
            raise DataError(
                f"{self.path}: can no longer be read ({error.strerror}); restore it and use --resume"
            ) from error
        if (status.st_size, status.st_mtime_ns) != (self.size_bytes, self.mtime_ns):
            raise DataError(
                f"{self.path}: changed since the run began (it had {self.size_bytes} bytes, now {status.st_size}); "
                "results would mix two data sets: start again on files that do not change during the run"
            )


class OpenFiles:
    """The most recently used file handles of this process and thread. Copies, also on other ranks, start empty.

    Threads do not share handles: one thread must not close a file that another, such as the read-ahead thread, reads.
    """

    starts_empty_on_arrival = True  # see `mpitrain.comm.tcp.plain_data`

    def __init__(self) -> None:
        """Start without open files."""
        self._of_thread = threading.local()

    def get(self, file: SourceFile) -> FieldFile:
        """Return the open file; open it if necessary. Raises DataError."""
        handles, path = self._own(), file.paths
        if path not in handles:
            handles[path] = open_joined(path, file.reading, file.taken)
            handles[path].stored_sum = self.stored_sum
        handles.move_to_end(path)
        while len(handles) > MOST_OPEN_FILES:
            handles.popitem(last=False)[1].close()
        return handles[path]

    def close(self) -> None:
        """Close the files that this thread has opened."""
        handles = self._own()
        while handles:
            handles.popitem()[1].close()

    @property
    def stored_sum(self) -> StoredSum:
        """The checksum of the data that this thread has read."""
        self._own()
        found: StoredSum = self._of_thread.stored_sum
        return found

    def _own(self) -> OrderedDict[tuple[Path, ...], FieldFile]:
        of_thread, process = self._of_thread, os.getpid()
        if getattr(of_thread, "process", None) != process:
            # After a fork the parent's handles are kept, but not used: closing one here would disturb the parent.
            of_thread.inherited = getattr(of_thread, "handles", None)
            of_thread.process, of_thread.handles, of_thread.stored_sum = process, OrderedDict(), StoredSum()
        handles: OrderedDict[tuple[Path, ...], FieldFile] = of_thread.handles
        return handles

    def __reduce__(self) -> tuple[type[OpenFiles], tuple[()]]:
        return OpenFiles, ()


@dataclass(frozen=True, kw_only=True)
class SampleLayout(ABC):
    """How the files of a source hold its samples: on a grid, or as a table of ready samples. Can be pickled.

    `kind` is "points" or "fields"; `rule_text` describes the settings that select samples. Names are as the settings
    spell them; samples have no targets, (N, 0), if the files do not hold them. `statics` (1, J or 1, I or 1) are the
    decoded variables without time, which every file repeats, by name; none for a table. `lag_step_days` is the time
    step that lags count, 0 if they count levels, None without lags. `repeats` (T,) is the level of the source that each
    level repeats, in which case it is no sample, otherwise -1; None if no level repeats another.
    """

    selection: Selection
    kind: str
    input_names: tuple[str, ...]
    target_names: tuple[str, ...]
    rule_text: str
    has_targets: bool = True
    statics: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    lag_step_days: float | None = None
    repeats: npt.NDArray[np.int64] | None = None
    is_grid: ClassVar[bool]

    @property
    def is_area_weighted(self) -> bool:
        """Whether statistics are weighted by area."""
        return self.is_grid and self.selection.is_area_weighted

    @property
    def read_targets(self) -> tuple[str, ...]:
        """The targets that samples have."""
        return self.target_names if self.has_targets else ()

    def thinned(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which samples at positions (N,) remain after thinning; depends only on the seed and the position."""
        fraction = self.selection.thin_fraction
        if fraction >= 1.0:
            return np.ones(len(numbers), dtype=bool)
        return keyed_uniform_at((self.selection.seed, Stream.THINNING), numbers) < fraction

    @property
    def static_mask(self) -> npt.NDArray[np.bool_] | None:
        """Mask (J, I) of where all conditions on `statics` alone hold; None if there is no condition on them alone."""
        return None

    def rows_by_place(self, source: SampleSource) -> npt.NDArray[np.bool_] | None:
        """Return at which time levels (T,), each at one location, conditions on location hold; None without any."""
        return None

    def lines_of(self, left_out: LeftOut, num_points: int) -> list[str]:
        """Return a line for each reason why some of the `num_points` points are not samples."""
        return []

    @abstractmethod
    def read(self, source: SampleSource, chunk: SampleChunk) -> Samples:
        """Return the selected samples of a chunk of `source`, which has this layout."""

    @abstractmethod
    def references(self, name: str) -> tuple[str, ...]:
        """Return the names in `SourceFile.variables` that an input or target needs."""

    def levels_with_samples(self, source: SampleSource) -> npt.NDArray[np.bool_]:
        """Return which time levels (T,) may have samples, judging by their times alone."""
        return np.ones(sum(record.num_times for record in source.files), dtype=bool)

    @abstractmethod
    def first_level(self, source: SampleSource, name: str) -> npt.NDArray[Any]:
        """Return the first time level (J, I) of a variable, or the rows (N, 1) of the first file; NaN where missing."""


@dataclass(frozen=True)
class SampleSource:
    """All validated files of a run and their chunks. Can be pickled: one rank opens it. No method is collective."""

    files: tuple[SourceFile, ...]
    """In the order of their time levels."""
    chunks: tuple[SampleChunk, ...]
    """In the order of file, time, rows; no stored block of a variable belongs to two chunks, except for lags."""
    layout: SampleLayout
    """How the files hold the samples."""
    num_points: int
    """Number of positions in the source; every grid_index is below it."""
    grid_shape: tuple[int, int]
    """(rows, columns), (1, 1) for a table of points."""
    units: Mapping[str, str]
    """Units of inputs, targets and the variables that they need, by name; "" if unknown."""
    notices: tuple[str, ...] = ()
    """Notices for the user."""
    first_held_out: int | None = None
    """First time level (sample, for a table) of the files for validation only; None if there are none."""
    handles: OpenFiles = field(default_factory=OpenFiles, compare=False, repr=False)

    @property
    def selection(self) -> Selection:
        """The settings of the source."""
        return self.layout.selection

    @property
    def kind(self) -> str:
        """The kind of the samples: "points" or "fields"."""
        return self.layout.kind

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of all files."""
        return tuple(path for file in self.files for path in file.paths)

    @property
    def are_undated_rows(self) -> bool:
        """Whether the time levels are rows of tables without times."""
        return all(file.are_rows and file.time is None for file in self.files)

    @property
    def max_patterns(self) -> int | None:
        """The maximum number of samples, None for any number; `keeps` applies it after the samples are counted."""
        return self.selection.max_patterns

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs' names, as the settings spell them."""
        return self.layout.input_names

    @property
    def target_names(self) -> tuple[str, ...]:
        """The targets' names, as the settings spell them."""
        return self.layout.target_names

    @property
    def has_targets(self) -> bool:
        """Whether the files hold the targets; without targets they can be used for predictions only."""
        return self.layout.has_targets

    @property
    def leading_references(self) -> tuple[str, ...]:
        """The names in `SourceFile.variables` that targets, or without targets inputs, need; they define the grid."""
        leading = self.target_names if self.has_targets else self.input_names
        return tuple(one for name in leading for one in self.layout.references(name))

    def handle(self, number: int) -> FieldFile:
        """Return an open file. Raises DataError if it has changed since the source was opened."""
        self.files[number].check_unchanged()
        return self.handles.get(self.files[number])

    def read(self, chunk: SampleChunk) -> Samples:
        """Return the selected samples of a chunk.

        Returns
        -------
        Samples
            In the order of the source; missing values are NaN. `max_patterns` is not applied.

        Raises
        ------
        DataError
            The file has changed or cannot be read to the end, or a target is outside the domain of its transform.
        """
        samples = self.layout.read(self, chunk)
        transforms = self.selection.target_transforms
        return self._transformed(samples, transforms, chunk) if transforms and self.has_targets else samples

    def read_with_sum(self, chunk: SampleChunk) -> tuple[Samples, int]:
        """Return the samples of `read`, and a checksum of the data read from the files (see `StoredSum`)."""
        self.handles.stored_sum.take()
        samples = self.read(chunk)
        return samples, self.handles.stored_sum.take()

    def _transformed(
        self, samples: Samples, transforms: Mapping[str, TargetTransform], chunk: SampleChunk
    ) -> Samples:  # fmt: skip
        """Return samples with transformed targets. Raises DataError if a value is outside a transform's domain."""
        targets = samples.targets.copy()
        for column, name in enumerate(samples.target_names):
            if name in transforms:
                wrong = self._outside(samples, column, transforms[name])
                if wrong:
                    raise DataError(self._no_transform(column, name, transforms[name], chunk.file))
                targets[:, column] = transformed(transforms[name], targets[:, column])
        return replace(samples, targets=targets)

    @staticmethod
    def _outside(samples: Samples, column: int, transform: TargetTransform) -> int:
        values = samples.targets[:, column]
        return int(np.count_nonzero(outside_domain(transform, values) & is_measured(values)))

    def _no_transform(self, column: int, name: str, transform: TargetTransform, file: int) -> str:
        """Return the error message for a file with values outside; reads the whole file to count them."""
        parts = [self.layout.read(self, chunk) for chunk in self.chunks if chunk.file == file]
        count, total = sum(self._outside(part, column, transform) for part in parts), sum(map(len, parts))
        words, inside = {
            "log": ("above 0", f"{name} > 0"),
            "logit": ("above 0 and below 1", f"{name} > 0 and {name} < 1"),
            "power": ("0 or above", f"{name} >= 0"),
        }[transform.kind]
        return (
            f"{self.files[file].path}: target '{name}' must be {words} for model.output_transforms="
            f"{{{name}: {transform.description}}}; {count} values of {total} selected samples are not; exclude them by "
            f'domain.mask="{inside}", or use another transform'
        )

    def left_out(self, counted: LeftOut) -> LeftOut:
        """Return the numbers of points that are no samples: those `counted` in chunks, and those in no chunk."""
        if self.kind == "fields" or not self.layout.is_grid:
            return counted
        rows = sum((one.time_stop - one.time_start) * (one.row_stop - one.row_start) for one in self.chunks)
        return counted._replace(by_rule=counted.by_rule + self.num_points - rows * self.grid_shape[1])

    def read_all(self) -> Samples:
        """Return all samples of the source, in its order, without the limit `max_patterns`; they must fit in memory.

        Raises DataError as `read` does, and if nothing is selected.
        """
        parts = [self.read(chunk) for chunk in self.chunks]
        if not any(map(len, parts)):
            self.check_selection(0, [])
        return concatenate(parts)

    def keeps(self, number: npt.NDArray[np.int64], total_selected: int) -> npt.NDArray[np.bool_]:
        """Return which (N,) of the selected samples are kept: exactly `max_patterns` of all, evenly spread.

        `number` (N,) is the index of each sample, from 0, among all `total_selected` selected ones.
        """
        most = self.max_patterns
        if most is None or total_selected <= most:
            return np.ones(len(number), dtype=bool)
        # Sample n is kept if floor(n * most / total) differs from floor((n + 1) * most / total).
        spread = (number + 1) * most // total_selected - number * most // total_selected
        return spread > 0

    def refuse_again(self, selection: Selection, key: str) -> None:
        """Raise DataError if a file of `selection`, which the setting `key` names, is one of this source's."""
        used, used_as = self.paths, "data.data_path or data.validation_path"
        refuse_same_file(selection, used, expand_paths(selection.files), key, used_as)

    def check_unchanged(self) -> None:
        """Raise DataError if a file is missing or has changed since the source was opened."""
        for record in self.files:
            record.check_unchanged()

    def check_selection(self, num_selected: int, num_measured: Sequence[int]) -> None:
        """Raise DataError if nothing was selected, or an input or target has no measurement at all.

        `num_measured` (F + O,) counts the values that are measurements over all selected samples, inputs first.
        """
        paths = self.files[0].path if len(self.files) == 1 else f"{self.files[0].path} and {len(self.files) - 1} more"
        if num_selected == 0:
            raise DataError(
                f"{paths}: no point is selected; the rule is: {self.layout.rule_text}; change these settings or "
                "the file"
            )
        empty = [
            name
            for name, count in zip((*self.input_names, *self.target_names), num_measured, strict=True)
            if count == 0
        ]
        if empty:
            raise DataError(
                f"{paths}: variable '{empty[0]}' holds fill values only, at all {num_selected} selected samples; "
                "take another variable or file"
            )

    def close(self) -> None:
        """Close the files that this process has opened; a later read opens them again."""
        self.handles.close()
