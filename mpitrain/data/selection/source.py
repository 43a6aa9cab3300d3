"""Where samples come from: files opened once by the root, then read in parts by any rank.

N  samples   F  inputs   O  targets   H, W  rows and columns of a field
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mpitrain.config import RunConfig
from mpitrain.data.files.open import open_field_file
from mpitrain.data.samples import Samples
from mpitrain.data.selection.chunks import SampleChunk
from mpitrain.data.selection.file_list import expand_paths
from mpitrain.data.selection.grid import GridLayout
from mpitrain.data.selection.source_files import OpenFiles, ReadCounter, SourceFile
from mpitrain.data.selection.table import TableLayout, is_table
from mpitrain.errors import DataError

DEFAULT_CHUNK_BYTES = 8 * 2**20


@dataclass(frozen=True)
class SampleSource:
    """All files of a run, validated, and the chunks in which they are read. Can be pickled, so that one rank opens it.

    `kind` is "points" or "fields"; `num_points` counts the positions of the source, below which every grid_index is;
    `grid_shape` is (rows, columns), (1, 1) for a table of points. `chunks` are in the order of file, time, rows; no
    stored block of a variable belongs to two of them. `units` of inputs and targets are by name, "" where unknown.
    Without `layout.has_targets` the samples have none. `max_patterns` is applied by `keeps`, once the selected samples
    are counted.
    """

    kind: str
    files: tuple[SourceFile, ...]
    chunks: tuple[SampleChunk, ...]
    layout: GridLayout | TableLayout
    num_points: int
    grid_shape: tuple[int, int]
    units: Mapping[str, str]
    max_patterns: int | None = None
    notices: tuple[str, ...] = ()
    handles: OpenFiles = field(default_factory=OpenFiles, compare=False, repr=False)

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
        """Whether the files hold the targets; without them, they serve for predictions only."""
        return self.layout.has_targets

    @property
    def leading_names(self) -> tuple[str, ...]:
        """What the files' grid and times are those of: the targets, or without them the inputs."""
        return self.target_names if self.has_targets else self.input_names

    def read(self, chunk: SampleChunk, reads: ReadCounter | None = None) -> Samples:
        """Return the selected samples of a chunk, in the order of the source; values that are no measurement are NaN.

        `reads` counts each stored block that is read. Raises DataError where the file has changed since it was opened
        or cannot be read to the end.
        """
        record = self.files[chunk.file]
        record.check_unchanged()
        return self.layout.read(self.handles.get(record.path), record, chunk, reads)

    def keeps(self, number: npt.NDArray[np.int64], total_selected: int) -> npt.NDArray[np.bool_]:
        """Tell which of the selected samples stay under `max_patterns`: evenly spread, exactly so many.

        `number` (N,) is each sample's place, from 0, among all `total_selected` selected ones.
        """
        most = self.max_patterns
        if most is None or total_selected <= most:
            return np.ones(len(number), dtype=bool)
        # Sample n stays where floor(n * most / total) is another than that of n + 1.
        spread = (number + 1) * most // total_selected - number * most // total_selected
        kept: npt.NDArray[np.bool_] = spread > 0
        return kept

    def check_unchanged(self) -> None:
        """Raise DataError where a file is gone or has changed since the source was opened."""
        for record in self.files:
            record.check_unchanged()

    def check_selection(self, num_selected: int, num_measured: Sequence[int]) -> None:
        """Raise DataError where nothing was selected, or an input or target has no measurement at all.

        `num_measured` (F + O,) counts the values that are measurements over all selected samples, inputs first.
        """
        where = self.files[0].path if len(self.files) == 1 else f"{self.files[0].path} and {len(self.files) - 1} more"
        if num_selected == 0:
            rule = self.layout.rule.words if isinstance(self.layout, GridLayout) else "data.thin_fraction"
            raise DataError(f"{where}: no point is selected by {rule}; change these or the file")
        empty = [
            name
            for name, count in zip((*self.input_names, *self.target_names), num_measured, strict=True)
            if count == 0
        ]
        if empty:
            raise DataError(
                f"{where}: variable '{empty[0]}' holds fill values only, at all {num_selected} selected samples; "
                "take another variable or file"
            )

    def close(self) -> None:
        """Close the files that this process has opened; a later read opens them again."""
        self.handles.close()


def open_source(
    config: RunConfig, target_bytes: int = DEFAULT_CHUNK_BYTES, num_predicted: int | None = None
) -> SampleSource:
    """Open the files of `data.data_path`, and plan how they are read. Reads no values, save of variables without time.

    For one rank, which then broadcasts the source. A chunk holds about `target_bytes` of all variables as float32;
    more where a stored block does. `num_predicted`, for predictions: files may lack all targets, which are so many.
    Raises DataError where a file cannot serve, ConfigError for a mask that is refused.
    """
    from mpitrain.data.selection.opening import open_grid, open_table

    paths = expand_paths(config.data.data_path)
    first = open_field_file(paths[0])
    try:
        opener = open_table if is_table(first, num_predicted is not None) else open_grid
    finally:
        first.close()
    return opener(config, paths, target_bytes, num_predicted)
