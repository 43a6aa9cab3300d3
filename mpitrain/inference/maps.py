"""PNG pictures of a prediction file: maps of prediction and error, and scatter plots of prediction against data.

T  time levels   J, I  rows and columns   N  points
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data import FieldFile, VariableInfo
from mpitrain.data.describe.description import FileDescription
from mpitrain.data.describe.names import LATITUDE, LONGITUDE, is_absent
from mpitrain.data.describe.roles import coordinate_of, further_axes
from mpitrain.data.describe.times import dates_of
from mpitrain.data.files.decoding import read, read_column
from mpitrain.data.formats.open import opened
from mpitrain.data.units import counts_from_a_date
from mpitrain.durable_files import IMAGE_MARK, check_output, write_durably
from mpitrain.errors import writing
from mpitrain.observe import MapLook, draw_map, error_look, render_png
from mpitrain.observe.figures import draw_density, new_figure, require_matplotlib

Array = npt.NDArray[Any]
_MOST_POINTS, _MOST_LEVELS, _MOST_ROWS = 200_000, 64, 4_000_000


def draw_prediction(path: Path, folder: Path, overwrite: bool = False) -> list[Path]:
    """Draw maps of prediction and error, and a scatter plot, for each target of the file; return their paths.

    If the file has no targets, only the map of the prediction is drawn. Maps need coordinates or a grid, and show the
    first time level that has a prediction; a scatter plot of many values shows an evenly spaced part of them. Raises
    OutputError if the folder cannot be written, MissingDependencyError without matplotlib.
    """
    require_matplotlib("--maps")
    drawn: list[Path] = []
    with writing(folder, "give another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        with opened(path) as file:
            for target, predicted in _targets(list(file.variables)):
                info = file.variables[predicted]
                for label, view in _levels(FileDescription(file), info) if 0 not in info.shape else ():
                    drawn += _draw_target(view, target, predicted, folder, label, overwrite)
    return drawn


@dataclass(frozen=True)
class _View:
    """Time levels and space of a target's variables; `fixed`: positions on further dimensions, such as levels.

    In a file of rows, which hold all time levels one after the other, a "time level" is a part of the rows.
    """

    description: FileDescription
    info: VariableInfo
    fixed: Mapping[int, int] = field(default_factory=dict)

    @property
    def file(self) -> FieldFile:
        """The file of predictions."""
        return self.description.file

    @cached_property
    def axes(self) -> Any:
        """The axes of the prediction (see `find_axes`)."""
        return self.description.axes_of(self.info, self.fixed)

    @property
    def are_rows(self) -> bool:
        """Whether the file has one row per sample."""
        return len(self.info.shape) == 1

    @property
    def space(self) -> tuple[int, ...]:
        """The shape of a time level: (J, I), or (-1,) for rows."""
        space = (axis for axis in self.axes.order[1:] if axis is not None)
        return (-1,) if self.are_rows else tuple(self.info.shape[axis] for axis in space)

    @property
    def num_levels(self) -> int:
        """The number of time levels."""
        return (
            max(1, -(-self.info.shape[0] // _MOST_ROWS))
            if self.are_rows
            else self.axes.arranged_shape(self.info.shape)[0]
        )

    def read(self, name: str, level: int) -> Array:
        """Return one time level of the target, its prediction, or a coordinate with the same or fewer dimensions."""
        info = self.file.variables[name]
        if self.are_rows:
            part = slice(level * _MOST_ROWS, (level + 1) * _MOST_ROWS)
            return read(self.file, name, (part,)).astype(np.float64)
        is_whole = info.dimensions == self.info.dimensions
        axes = self.axes if is_whole else self.description.axes_of(info, {})
        stored = read(self.file, name, axes.slices(info.shape, slice(level, level + 1), slice(None)))
        _, rows, columns = self.axes.arranged_shape(self.info.shape)
        return np.broadcast_to(axes.arrange(stored)[0], (rows, columns)).astype(np.float64).reshape(self.space)


def _levels(description: FileDescription, info: VariableInfo) -> Iterator[tuple[str, _View]]:
    """Yield a label and the view of a level, for at most three levels: the first, middle and last."""
    further = further_axes(info, description.variables)
    if not further:
        yield "", _View(description, info)
        return
    axis, *others = further
    name, count = info.dimensions[axis], info.shape[axis]
    coordinate = coordinate_of(info, name, description.variables)
    values = np.arange(count) if coordinate is None else read_column(description.file, coordinate)
    units = "" if coordinate is None else coordinate.units
    for position in sorted({0, count // 2, count - 1}):
        more = "".join(f", {info.dimensions[other]} number 1" for other in others)
        label = f"{name} {values[position]:g} {units}".strip() + more
        yield label, _View(description, info, {axis: position, **dict.fromkeys(others, 0)})


def _targets(names: list[str]) -> list[tuple[str, str]]:
    """Return for each target its name, which the file may lack, and the name of its prediction."""
    if "aice_ffnn" in names:
        return [("aice", "aice_ffnn")]
    found = [name for name in names if name + "_predicted" in names]
    found = found or [name.removesuffix("_predicted") for name in names if name.endswith("_predicted")]
    return [(name, name + "_predicted") for name in found]


def _draw_target(view: _View, target: str, predicted: str, folder: Path, level: str, overwrite: bool) -> list[Path]:
    file, units = view.file, view.info.units
    of_level = f", {level}" if level else ""
    stem = "_".join([target, *re.findall(r"[\w.-]+", level)])
    unit = f" {units}" if units not in ("", "1") else ""
    label = f"{target} ({units})" if unit else target
    pictures: dict[str, bytes] = {}
    has_truth = target in file.variables
    first, answer = _first_level(view)
    places = _places(view, first)
    is_map = places is not None or len(view.space) == 2
    when = _when(view, first)
    if has_truth:
        truth = view.read(target, first)
    if is_map:
        pale = np.isfinite(answer) & ~np.isfinite(truth) if has_truth else None
        is_partly_pale = pale is not None and pale.any() and not pale[np.isfinite(answer)].all()
        of_pale = "; pale where the data has no value" if is_partly_pale else ""
        look = MapLook(f"{target}{of_level}, predicted{when}{of_pale}", label)
        pictures[f"{stem}_predicted.png"] = render_png(draw_map(answer, places, look, pale if is_partly_pale else None))
    if has_truth:
        truths, answers = (_spread_values(view, name) for name in (target, predicted))
        pictures[f"{stem}_scatter.png"] = _scatter(truths, answers, f"{target}{of_level}", unit)
    if has_truth and is_map:
        of_samples = ", training and held-out samples" if "sample_role" in file.variables else ""
        look = error_look(f"{target}{of_level}, predicted minus data{when}{of_samples}", label, answer - truth)
        pictures[f"{stem}_error.png"] = render_png(draw_map(answer - truth, places, look))
    for name, content in pictures.items():
        check_output(folder / name, IMAGE_MARK, overwrite=overwrite)
        write_durably(folder / name, content)
    return [folder / name for name in pictures]


def _first_level(view: _View) -> tuple[int, Array]:
    """Return the first time level with a value, and its values; with lagged inputs the first levels have none."""
    parts = ((level, view.read(view.info.name, level)) for level in range(view.num_levels))
    return next(((level, values) for level, values in parts if np.isfinite(values).any()), None) or (
        0, view.read(view.info.name, 0)
    )  # fmt: skip


def _places(view: _View, level: int) -> tuple[Array, Array] | None:
    """Return longitude and latitude of a time level; None if they are not known."""
    found = []
    for quantity in (LONGITUDE, LATITUDE):
        name = None if is_absent(quantity, view.file) else view.description.find_quantity(quantity, view.info)
        along = () if name is None else view.file.variables[name].dimensions
        if name is None or not {*along} <= {*view.info.dimensions} or (view.are_rows and not along):
            return None
        found.append(view.read(name, level))
    return (found[0], found[1]) if np.isfinite(found).all(axis=0).any() else None


def _when(view: _View, level: int) -> str:
    """Return the date or number of a time level, as the end of a title; "" for rows."""
    if view.axes.time is None or view.are_rows:
        return ""
    time, date = view.description.time_of([(view.info, view.axes)]), None
    if time is not None and counts_from_a_date(time.units):
        value = read_column(view.file, time)[level]
        date = date_of(value, time.units, time.text("calendar") or "standard") if np.isfinite(value) else None
    return f", {date or f'time level {level + 1}'}"


def date_of(time: Any, units: str, calendar: str) -> str | None:
    """Return the date of a time as text; None if its units define no date."""
    try:
        return str(dates_of([float(time)], units, calendar)[0])
    except (ValueError, OverflowError):
        return None


def _spread_values(view: _View, name: str) -> Array:
    """Return values (N,) evenly spaced over the variable, as many as a picture needs."""
    levels = range(0, view.num_levels, -(-view.num_levels // _MOST_LEVELS))
    size = min(view.info.shape[0], _MOST_ROWS) if view.are_rows else prod(view.space)
    step = max(1, -(-size * len(levels) // _MOST_POINTS))
    return np.concatenate([view.read(name, level).reshape(-1)[::step] for level in levels])


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
