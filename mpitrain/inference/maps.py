"""Pictures of a prediction file as PNG: where the prediction is how far off, and prediction against data.

N  points   H, W  rows and columns of a field
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.durable_files import write_durably
from mpitrain.errors import MissingDependencyError, OutputError
from mpitrain.observe.figures import draw_density, draw_field, new_figure, render_png

Array = npt.NDArray[Any]
_MOST_POINTS = 200_000


def draw_prediction(path: Path, folder: Path) -> list[Path]:
    """Draw maps of prediction and error, and a scatter plot, for each target of the file; return their paths.

    Without targets in the file, the prediction's map alone, where the file says where its points are. Of points, evenly
    spread ones where there are many; of fields, the first time level. Raises OutputError where the folder cannot be
    written, MissingDependencyError without matplotlib.
    """
    try:
        import matplotlib  # noqa: F401  ask for it once, for one message
    except ImportError as error:
        raise MissingDependencyError("--maps needs matplotlib: python -m pip install matplotlib") from error
    import netCDF4

    drawn: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with netCDF4.Dataset(str(path)) as dataset:
            for target, predicted in _targets(dataset):
                drawn += _draw_target(dataset, target, predicted, folder)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be written ({error.strerror or error}); give another folder") from error
    return drawn


def _targets(dataset: Any) -> list[tuple[str, str]]:
    """Return each target's name, which the file may lack, and its prediction's."""
    if "aice_ffnn" in dataset.variables:
        return [("aice", "aice_ffnn")]
    names = [name for name in dataset.variables if name + "_predicted" in dataset.variables]
    names = names or [name.removesuffix("_predicted") for name in dataset.variables if name.endswith("_predicted")]
    return [(name, name + "_predicted") for name in names]


def _draw_target(dataset: Any, target: str, predicted: str, folder: Path) -> list[Path]:
    is_field = dataset.variables[predicted].ndim == 3
    part: Any = 0 if is_field else slice(None, None, max(1, -(-len(dataset.dimensions["n"]) // _MOST_POINTS)))
    answer = _values(dataset, predicted, part)
    truth = _values(dataset, target, part) if target in dataset.variables else None
    units = getattr(dataset.variables[predicted], "units", "")
    label = f" ({units})" if units not in ("", "1") else ""
    places = None if is_field else _places(dataset, part)
    has_map, pictures = is_field or places is not None, {}
    if has_map:
        pictures[f"{target}_predicted.png"] = _map(answer, places, f"{target}, predicted{label}", "viridis", None)
    if truth is not None:
        pictures[f"{target}_scatter.png"] = _scatter(truth.reshape(-1), answer.reshape(-1), target + label)
    if truth is not None and has_map:
        error = answer - truth
        largest = float(np.nanmax(np.abs(error))) if np.isfinite(error).any() else 1.0
        limits = (-largest or -1.0, largest or 1.0)
        pictures[f"{target}_error.png"] = _map(error, places, f"{target}, predicted - data{label}", "RdBu_r", limits)
    for name, content in pictures.items():
        write_durably(folder / name, content)
    return [folder / name for name in pictures]


def _values(dataset: Any, name: str, part: Any) -> Array:
    return np.ma.filled(dataset.variables[name][part].astype(np.float64), np.nan)


def _places(dataset: Any, part: Any) -> tuple[Array, Array] | None:
    if "lon" not in dataset.variables or "lat" not in dataset.variables:
        return None
    return _values(dataset, "lon", part), _values(dataset, "lat", part)


def _map(
    values: Array, places: tuple[Array, Array] | None, title: str, colours: str, limits: tuple[float, float] | None
) -> bytes:
    figure, axes = new_figure(8.0, 4.5)
    low, high = limits or (None, None)
    if places is None:
        drawn = draw_field(axes, values, cmap=colours, vmin=low, vmax=high)
        axes.set_title(f"{title}, first time level")
    else:
        size = float(np.clip(3e4 / max(1, len(values)), 0.5, 12.0))
        drawn = axes.scatter(*places, c=values, s=size, cmap=colours, vmin=low, vmax=high, linewidths=0)
        axes.set(xlabel="longitude", ylabel="latitude", title=title)
    figure.colorbar(drawn, ax=axes)
    return render_png(figure)


def _scatter(truth: Array, answer: Array, label: str) -> bytes:
    both = np.isfinite(truth) & np.isfinite(answer)
    truth, answer = truth[both], answer[both]
    figure, axes = new_figure(5.5, 5.0)
    if len(truth):
        draw_density(figure, axes, truth, answer, num_cells=60)
        rmse, spread = float(np.sqrt(np.mean((answer - truth) ** 2))), float(np.var(truth))
        r2 = f"r2 {1 - rmse**2 / spread:.4f}, " if spread > 0 else ""
        axes.set_title(f"{r2}RMSE {rmse:.4g}, {len(truth)} values")
    axes.set(xlabel=f"{label}, data", ylabel=f"{label}, predicted")
    return render_png(figure)
