"""Maps as PNG: a variable's first time level, north up; grey: no value, pale: not selected.

J, I  rows and columns
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mpitrain.data import SampleSource, open_coordinates, places_of_levels
from mpitrain.data.selection.chunks import SampleChunk
from mpitrain.durable_files import IMAGE_MARK, check_output, write_durably
from mpitrain.errors import DataError, writing
from mpitrain.observe import MapLook, draw_map, render_png

if TYPE_CHECKING:
    from mpitrain.datatools.inspect import Inspection

_Places = tuple[npt.NDArray[Any], npt.NDArray[Any]] | None


def draw_maps(inspection: Inspection, folder: Path, overwrite: bool = False) -> list[Path]:
    """Write a PNG for each input and target at the first time level, and return their paths.

    Raises DataError if the files have no grid or the settings select nothing, OutputError if a PNG cannot be written.
    """
    source = inspection.source
    if source is None or not source.layout.is_grid:
        raise DataError(
            f"{inspection.files[0]}: no map: {inspection.selection.get('why', 'a table of samples has no grid')}"
        )
    places = _places_of(source)
    selected = _selected_points(source)
    with writing(folder, "give another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        names = (*source.input_names, *source.target_names)
        for name in names:  # check all before the first is drawn
            check_output(_path_of(name, folder), IMAGE_MARK, overwrite=overwrite)
        return [_draw(source, name, selected, places, folder) for name in names]


def _selected_points(source: SampleSource) -> npt.NDArray[np.bool_]:
    """Return a mask (J, I) of the points of the first time level that are samples; (N, 1), of rows, for a table."""
    num_rows, num_columns = shape = _shape_of(source)
    num_times = num_rows if source.files[0].are_rows else 1
    samples = source.read(SampleChunk(0, 0, num_times, 0, source.grid_shape[0]))
    selected = np.zeros(num_rows * num_columns, dtype=bool)
    if source.kind == "fields":
        return np.asarray(samples.weights)[0].any(axis=0) if len(samples) else selected.reshape(shape)
    selected[samples.grid_index] = True
    return selected.reshape(shape)


def _shape_of(source: SampleSource) -> tuple[int, int]:
    """Return the number of rows and columns that are drawn."""
    first = source.files[0]
    return (first.num_times, 1) if first.are_rows else source.grid_shape


def _path_of(name: str, folder: Path) -> Path:
    return folder / f"{name.replace('/', '_')}.png"


def _draw(
    source: SampleSource, name: str, selected: npt.NDArray[np.bool_], places: _Places, folder: Path
) -> Path:  # fmt: skip
    # (J, I), NaN where it has no value
    values = np.broadcast_to(source.layout.first_level(source, name), _shape_of(source))
    units, count = source.units[name], int(selected.sum())
    level = "" if source.files[0].are_rows else ", first time level"
    title = f"{name}{level}: {count:,} selected points; pale: not selected, grey: no value"
    look = MapLook(title, f"{name} ({units})" if units else name)
    figure = draw_map(values, places, look, pale=~selected)
    path = _path_of(name, folder)
    write_durably(path, render_png(figure))
    return path


def _places_of(source: SampleSource) -> _Places:
    """Return longitude and latitude (J, I) of the first time level, None if the files do not contain them."""
    of_levels = places_of_levels(source)
    if of_levels is not None and source.files[0].are_rows:
        first = of_levels[: source.files[0].num_times]
        return first[:, 1:], first[:, :1]
    if of_levels is not None:
        raise DataError(
            f"{source.files[0].path}: no map: each time level is at a single place, which differs each time"
        )
    known = open_coordinates(source)
    found = [known.moving_grid(name, 0) if name in known.moving else known.grids.get(name) for name in ("lon", "lat")]
    if found[0] is None or found[1] is None:
        if 1 in source.grid_shape:
            raise DataError(
                f"{source.files[0].path}: no map: its cells are not ordered in rows and columns, and it has no "
                "longitude and latitude"
            )
        return None
    return found[0], found[1]
