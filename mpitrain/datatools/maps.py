"""Maps as PNG: a variable's first time level, land grey, points that are not selected pale."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.selection.chunks import SampleChunk
from mpitrain.data.selection.names import LATITUDE, QUANTITIES, quantity_of
from mpitrain.data.selection.source import SampleSource
from mpitrain.durable_files import write_durably
from mpitrain.errors import DataError, OutputError
from mpitrain.observe.figures import draw_field, new_figure, render_png

if TYPE_CHECKING:
    from mpitrain.datatools.inspect import Inspection

_VEIL = 0.7
_WIDTH_INCH = 8.0


def draw_maps(inspection: Inspection, folder: Path) -> list[Path]:
    """Write a PNG for each input and target of the first time level, and return their paths.

    Raises DataError where the files hold no grid or the settings select nothing, OutputError if it cannot be written.
    """
    source = inspection.source
    if source is None or not source.layout.is_grid:
        raise DataError(
            f"{inspection.files[0]}: no map: {inspection.selection.get('why', 'a table of samples has no grid')}"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        selected = _selected_points(source)
        return [_draw(source, name, selected, folder) for name in (*source.input_names, *source.target_names)]
    except OSError as error:
        raise OutputError(
            f"{folder}: maps cannot be written ({error.strerror or error}); give another folder"
        ) from error


def _selected_points(source: SampleSource) -> npt.NDArray[np.bool_]:
    """Return which points (J, I) of the first time level are samples."""
    num_rows, num_columns = source.grid_shape
    samples = source.read(_first_level(source))
    selected = np.zeros(num_rows * num_columns, dtype=bool)
    if source.kind == "fields":
        return np.asarray(samples.weights)[0].any(axis=0) if len(samples) else selected.reshape(source.grid_shape)
    selected[samples.grid_index] = True
    return selected.reshape(source.grid_shape)


def _first_level(source: SampleSource) -> SampleChunk:
    return SampleChunk(file=0, time_start=0, time_stop=1, row_start=0, row_stop=source.grid_shape[0])


def _draw(source: SampleSource, name: str, selected: npt.NDArray[np.bool_], folder: Path) -> Path:
    values = _level(source, name)
    height_inch = _WIDTH_INCH * min(1.2, max(0.35, values.shape[0] / values.shape[1])) + 1.0
    figure, axes = new_figure(_WIDTH_INCH, height_inch)
    drawn = draw_field(axes, values, _origin(source), cmap="viridis")
    # Marks on each point would hide the values: what is not selected is veiled instead.
    veil = np.zeros((*selected.shape, 4))  # red, green, blue, opacity
    veil[..., :3], veil[..., 3] = 1.0, np.where(selected | ~np.isfinite(values), 0.0, _VEIL)
    axes.imshow(veil, origin=_origin(source), aspect="auto", interpolation="nearest")
    units = source.units[name]
    figure.colorbar(drawn, ax=axes, label=f"{name} ({units})" if units else name)
    axes.set_title(
        f"{name}, first time level: {int(selected.sum())} selected points, others pale, grey without value", fontsize=10
    )
    path = folder / f"{name.replace('/', '_')}.png"
    write_durably(path, render_png(figure))
    return path


def _level(source: SampleSource, name: str) -> npt.NDArray[Any]:
    """Return the first time level (J, I) of a variable, NaN where it has no value."""
    return np.broadcast_to(source.first_level(name), source.grid_shape)


def _origin(source: SampleSource) -> Any:
    """Say whether row 0 is drawn below: where latitudes grow with the rows, or are not known."""
    for name, values in source.layout.statics.items():
        if quantity_of(name) is QUANTITIES[LATITUDE] and values.shape[1] > 1:
            return "lower" if np.nanmean(values[0, -1]) >= np.nanmean(values[0, 0]) else "upper"
    return "lower"
