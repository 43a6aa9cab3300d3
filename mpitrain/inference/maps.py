"""Pictures of a prediction file as PNG: where the prediction is how far off, and prediction against data.

T  time levels   J, I  rows and columns   N  points
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.times import dates_of
from mpitrain.data.units import counts_from_a_date
from mpitrain.durable_files import PICTURE, check_output, write_durably
from mpitrain.errors import writing
from mpitrain.observe import MapLook, draw_map, error_look, render_png
from mpitrain.observe.figures import draw_density, new_figure, require_matplotlib

Array = npt.NDArray[Any]
_MOST_POINTS, _MOST_LEVELS, _MOST_ROWS = 200_000, 64, 4_000_000


def draw_prediction(path: Path, folder: Path, overwrite: bool = False) -> list[Path]:
    """Draw maps of prediction and error, and a scatter plot, for each target of the file; return their paths.

    Without targets in the file, the prediction's map alone, where the file says where its points are. Maps are of the
    first time level that has a prediction; a scatter plot is of evenly spread values where there are many. Raises
    OutputError where the folder cannot be written, MissingDependencyError without matplotlib.
    """
    require_matplotlib("--maps")
    import netCDF4

    drawn: list[Path] = []
    with writing(folder, "give another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        with netCDF4.Dataset(str(path)) as dataset:
            for target, predicted in _targets(dataset):
                for label, view in _levels(dataset, target, predicted):
                    drawn += _draw_target(view, target, predicted, folder, label, overwrite)
    return drawn


class _OneLevel:
    """A variable of the file at one position along one of its dimensions."""

    def __init__(self, variable: Any, axis: int, position: int) -> None:
        self._variable, self._axis, self._position = variable, axis, position
        self.dimensions, self.shape = (
            tuple(one for number, one in enumerate(all_) if number != axis)
            for all_ in (variable.dimensions, variable.shape)
        )
        self.ndim, self.size = len(self.shape), int(np.prod(self.shape))
        self.units = getattr(variable, "units", "")

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, key: Any) -> Any:
        parts = list(key) if isinstance(key, tuple) else [key]
        parts += [slice(None)] * (self.ndim - len(parts))
        parts.insert(self._axis, self._position)
        return self._variable[tuple(parts)]


def _levels(dataset: Any, target: str, predicted: str) -> Iterator[tuple[str, Any]]:
    """Yield which level it is, and the file with that level of a target alone: of many the first, middle and last."""
    along = dataset.variables[predicted].dimensions
    axis = next((n for n, one in enumerate(along) if getattr(dataset.variables.get(one), "axis", "") == "Z"), None)
    if axis is None:
        yield "", dataset
        return
    coordinate = dataset.variables[along[axis]]
    count, units = len(coordinate), getattr(coordinate, "units", "")
    for position in sorted({0, count // 2, count - 1}):
        label = f"{along[axis]} {float(coordinate[position]):g} {units}".strip()
        views = {
            name: _OneLevel(dataset.variables[name], axis, position)
            for name in (target, predicted)
            if name in dataset.variables
        }
        yield label, SimpleNamespace(variables={**dataset.variables, **views})


@dataclass(frozen=True)
class _Shape:
    """How a variable of the file lies in time and space: `is_map` where one time level of it can be drawn as a map."""

    has_times: bool
    is_map: bool
    level: int
    places: tuple[Array, Array] | None
    when: str


def _targets(dataset: Any) -> list[tuple[str, str]]:
    """Return each target's name, which the file may lack, and its prediction's."""
    if "aice_ffnn" in dataset.variables:
        return [("aice", "aice_ffnn")]
    names = [name for name in dataset.variables if name + "_predicted" in dataset.variables]
    names = names or [name.removesuffix("_predicted") for name in dataset.variables if name.endswith("_predicted")]
    return [(name, name + "_predicted") for name in names]


def _draw_target(dataset: Any, target: str, predicted: str, folder: Path, level: str, overwrite: bool) -> list[Path]:
    shape = _shape_of(dataset, predicted)
    of_level = f", {level}" if level else ""
    stem = "_".join([target, *re.findall(r"[\w.-]+", level)])
    units = getattr(dataset.variables[predicted], "units", "")
    unit = f" {units}" if units not in ("", "1") else ""
    label = f"{target} ({units})" if unit else target
    pictures: dict[str, bytes] = {}
    has_truth = target in dataset.variables
    if shape.is_map:
        answer = _level(dataset, predicted, shape)
        pale = np.isfinite(answer) & ~np.isfinite(_level(dataset, target, shape)) if has_truth else None
        is_partly_pale = pale is not None and pale.any() and not pale[np.isfinite(answer)].all()
        of_pale = "; pale where the data has no value" if is_partly_pale else ""
        look = MapLook(f"{target}{of_level}, predicted{shape.when}{of_pale}", label)
        figure = draw_map(answer, shape.places, look, pale if is_partly_pale else None)
        pictures[f"{stem}_predicted.png"] = render_png(figure)
    if has_truth:
        truth, answers = (_spread_values(dataset, name, shape) for name in (target, predicted))
        pictures[f"{stem}_scatter.png"] = _scatter(truth, answers, f"{target}{of_level}", unit)
    if has_truth and shape.is_map:
        error = answer - _level(dataset, target, shape)
        of_samples = ", trained on and held out alike" if "sample_role" in dataset.variables else ""
        look = error_look(f"{target}{of_level}, predicted minus data{shape.when}{of_samples}", label, error)
        pictures[f"{stem}_error.png"] = render_png(draw_map(error, shape.places, look))
    for name, content in pictures.items():
        check_output(folder / name, PICTURE, overwrite=overwrite)
        write_durably(folder / name, content)
    return [folder / name for name in pictures]


def _shape_of(dataset: Any, predicted: str) -> _Shape:
    variable = dataset.variables[predicted]
    lon, lat = (_find_place(dataset, one) for one in ("longitude", "latitude"))
    first = variable.dimensions[0]
    is_time = _time_along(first, dataset) is not None or first == "time"
    is_cells = lon is not None and lat is not None and lon.dimensions == lat.dimensions == variable.dimensions[1:]
    has_times = variable.ndim == 3 or (variable.ndim == 2 and (is_time or is_cells))
    level = _first_level(variable) if has_times else 0
    space = variable.dimensions[has_times:]
    places = None
    if lon is not None and lat is not None:
        east, north = np.broadcast_arrays(_on_space(lon, space, level), _on_space(lat, space, level))
        places = (east, north) if (np.isfinite(east) & np.isfinite(north)).any() else None
    when = _when(dataset, variable, level) if has_times else ""
    return _Shape(has_times, places is not None or len(space) == 2, level, places, when)


def _time_along(dimension: str, dataset: Any) -> Any:
    """Return the variable that says when the levels along a dimension are; None of one that is no time."""
    along = [one for one in dataset.variables.values() if getattr(one, "dimensions", ()) == (dimension,)]
    return next((one for one in along if getattr(one, "axis", "") == "T" or counts_from_a_date(_units(one))), None)


def _units(variable: Any) -> str:
    return str(getattr(variable, "units", ""))


def _find_place(dataset: Any, standard_name: str) -> Any:
    found = dataset.variables.values()
    return next((one for one in found if getattr(one, "standard_name", "") == standard_name), None)


def _first_level(variable: Any) -> int:
    """Return the first time level with a value, 0 where there is none: lagged inputs have none at the beginning."""
    levels = range(variable.shape[0])
    return next((level for level in levels if np.ma.count(variable[level])), 0)


def _on_space(place: Any, space: tuple[str, ...], level: int) -> Array:
    """Return longitude or latitude, of length 1 along the dimensions of a level that it lacks."""
    moves = bool(set(place.dimensions) - set(space))
    values = _filled(place[level] if moves else place[_rows_drawn(place)])
    sizes = dict(zip(place.dimensions[moves:], values.shape, strict=True))
    return values.reshape([sizes.get(name, 1) for name in space])


def _rows_drawn(variable: Any) -> slice:
    """Return what is read of a level: of rows, which hold all time levels one after the other, the first ones."""
    return slice(_MOST_ROWS) if variable.dimensions == ("n",) else slice(None)


def _filled(values: Any) -> Array:
    return np.asarray(np.ma.filled(np.ma.asarray(values).astype(np.float64), np.nan))


def _when(dataset: Any, variable: Any, level: int) -> str:
    """Return when a time level is, as the end of a title."""
    time, date = _time_along(variable.dimensions[0], dataset), None
    if counts_from_a_date(_units(time)) and np.ma.count(time[level]):
        date = date_of(time[level], time.units, getattr(time, "calendar", "standard"))
    return f", {date or f'time level {level + 1}'}"


def date_of(time: Any, units: str, calendar: str) -> str | None:
    """Return the date of a time as text; None where its units define no date."""
    try:
        return str(dates_of([float(time)], units, calendar)[0])
    except (ValueError, OverflowError):
        return None


def _level(dataset: Any, name: str, shape: _Shape) -> Array:
    variable = dataset.variables[name]
    return _filled(variable[shape.level if shape.has_times else _rows_drawn(variable)])


def _spread_values(dataset: Any, name: str, shape: _Shape) -> Array:
    """Return values (N,) evenly spread over the variable: no more than a picture needs."""
    variable = dataset.variables[name]
    if not shape.has_times:
        step = max(1, -(-variable.size // _MOST_POINTS))
        return _filled(variable[::step]) if variable.ndim == 1 else _filled(variable[:]).reshape(-1)[::step]
    levels = range(0, len(variable), max(1, -(-len(variable) // _MOST_LEVELS)))
    step = max(1, -(-variable[0].size * len(levels) // _MOST_POINTS))
    return np.concatenate([_filled(variable[level]).reshape(-1)[::step] for level in levels])


def _scatter(truth: Array, answer: Array, target: str, unit: str) -> bytes:
    both = np.isfinite(truth) & np.isfinite(answer)
    truth, answer = truth[both], answer[both]
    figure, axes = new_figure(5.5, 5.2)
    if len(truth):
        draw_density(figure, axes, truth, answer, num_cells=60)
        rmse, spread = float(np.sqrt(np.mean((answer - truth) ** 2))), float(np.var(truth))
        r2 = f"r2 {1 - rmse**2 / spread:.4f}, " if spread > 0 else ""
        axes.set_title(f"{target}: {r2}RMSE {rmse:.4g}{unit}\n{len(truth):,} values", fontsize=10, wrap=True)
    label = f" ({unit.strip()})" if unit else ""
    axes.set(xlabel=f"data{label}", ylabel=f"predicted{label}")
    return render_png(figure)
