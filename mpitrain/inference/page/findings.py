"""A network's errors on data, for the report of its run: statistics, maps and the course over time.

J, I  rows and columns   N  samples   O  targets
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.comm import host_array
from mpitrain.data import (
    Coordinates,
    Samples,
    SampleSource,
    dates_of_levels,
    known_ranks,
    open_coordinates,
    places_of_levels,
    valid_rows,
)
from mpitrain.errors import DataError
from mpitrain.inference.arithmetic import fill_with_means
from mpitrain.inference.cf_variables import known_units
from mpitrain.inference.maps import date_of
from mpitrain.inference.quality.answers import answers_of
from mpitrain.inference.quality.evaluation import Evaluation, Evaluator, samples_of_chunk, together
from mpitrain.observe import Course, Findings, GridErrors, MapLook, Pairs, draw_map, error_look, render_png
from mpitrain.observe.figures import has_matplotlib

Array = npt.NDArray[Any]
_MOST_POINTS, _MOST_DERIVED = 5000, 512
_MOST_COVERED = 0.5
_FEWEST_TIMES = 3
_WIDTH_INCH, _DOTS_PER_INCH, _MOST_CHUNKS = 5.6, 110, 64


def predict_samples(model: Any, samples: Samples) -> tuple[Samples, Array]:
    """Return the usable samples and the physical outputs of a network for them (N, O, ...), float64. Any device."""
    usable = samples.take(np.flatnonzero(valid_rows(samples)))
    mean = host_array(model.get_buffer("input_mean"))
    inputs = fill_with_means(usable.inputs.astype(mean.dtype), mean)
    if len(usable) == 0:
        return usable, np.empty((0, *usable.targets.shape[1:]))
    return usable, answers_of(model).physical(inputs).astype(np.float64)


def draw_held_out_maps(source: SampleSource, places: GridErrors, units: str) -> tuple[bytes, bytes] | None:
    """Return maps, as PNG, of the first target's mean error and RMSE at each point of the grid, over held-out samples.

    None if the data has no grid that can be drawn. Raises DataError if a file cannot be read.
    """
    name, shape = source.target_names[0], source.grid_shape
    label = f"{name} ({units})" if units not in ("", "1") else name
    counted = "values" if source.kind == "fields" else "samples"
    over = f"over all {places.num_samples:,} held-out {counted}"
    bias, rmse = places.mean_on(shape), places.rmse_on(shape)
    first = draw_place_map(source, bias, error_look(f"{name}, mean of predicted minus data {over}", label, bias))
    second = draw_place_map(source, rmse, MapLook(f"{name}, RMSE {over}", f"RMSE of {label}"))
    return None if first is None or second is None else (first, second)


def draw_place_map(source: SampleSource, values: Array, look: MapLook) -> bytes | None:
    """Return a map, as PNG, of values (J, I) on the grid of `source`; None without a grid that is fixed in time.

    Raises DataError if a file cannot be read.
    """
    coordinates = open_coordinates(source) if source.layout.is_grid else None
    if coordinates is None or not _can_be_drawn(source, coordinates) or coordinates.moving:
        return None
    figure = draw_map(values, _places(coordinates, 0), look, width_inch=_WIDTH_INCH)
    return render_png(figure, _DOTS_PER_INCH)


def covers_most(places: GridErrors, source: SampleSource, num_samples: int) -> bool:
    """Tell whether at least half of the grid points with samples (`num_samples` in all) have held-out ones.

    For points this is an estimate: the samples per time level are `num_samples` / number of time levels.
    """
    if source.kind == "fields":
        return True
    num_times = sum(record.num_times for record in source.files)
    return len(places.inside) * num_times >= _MOST_COVERED * num_samples


def _can_be_drawn(source: SampleSource, coordinates: Coordinates) -> bool:
    return {"lon", "lat"} <= set(coordinates.attributes) or 1 not in source.grid_shape


def draw_error_map(model: Any, source: SampleSource, units: str) -> bytes | None:
    """Return an error map, as PNG, of the first time level that has samples; None if there is no grid to draw.

    Training and held-out points are not distinguished. For data with one place per time level (reports, profiles) the
    map shows the mean error of each level instead. Raises DataError if a file cannot be read.
    """
    if not source.layout.is_grid or not source.has_targets:
        return None
    coordinates = open_coordinates(source)
    if not _can_be_drawn(source, coordinates):
        return None
    name = source.target_names[0]
    label = f"{name} ({units})" if units not in ("", "1") else name
    places = places_of_levels(source) if source.kind == "points" else None
    if places is not None:
        means = _mean_errors_of_levels(model, source)
        look = error_look(f"{name}, mean of predicted minus data, training and held-out samples", label, means)
        figure = draw_map(means, (places[:, 1], places[:, 0]), look, width_inch=_WIDTH_INCH)
        return render_png(figure, _DOTS_PER_INCH)
    level, errors = _errors_of_a_level(model, source)
    if level is None:
        return None
    title = ", ".join([f"{name}, predicted minus data", *_when(coordinates, level), "training and held-out samples"])
    look = error_look(title, label, errors)
    return render_png(draw_map(errors, _places(coordinates, level), look, width_inch=_WIDTH_INCH), _DOTS_PER_INCH)


def _mean_errors_of_levels(model: Any, source: SampleSource) -> Array:
    """Return the mean of prediction minus data (T,) over the samples of each time level; NaN if it has none."""
    num_levels = sum(record.num_times for record in source.files)
    sums, counts = np.zeros(num_levels), np.zeros(num_levels)
    for chunk in source.chunks[:_MOST_CHUNKS]:
        samples, answers = predict_samples(model, source.read(chunk))
        level = samples.grid_index // int(np.prod(source.grid_shape))
        sums += np.bincount(level, weights=answers[:, 0] - samples.targets[:, 0], minlength=num_levels)
        counts += np.bincount(level, minlength=num_levels)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _errors_of_a_level(model: Any, source: SampleSource) -> tuple[int | None, Array]:
    """Return the first time level that has samples, and its prediction minus data (J, I); None if there is none."""
    errors = np.full(source.grid_shape, np.nan)
    found: int | None = None
    for number, chunk in enumerate(source.chunks):
        first = source.files[chunk.file].first_time + chunk.time_start
        if (found is not None and first > found) or (found is None and number >= _MOST_CHUNKS):
            break
        samples, answers = predict_samples(model, source.read(chunk))
        if len(samples) == 0:
            continue
        difference = answers[:, 0] - samples.targets[:, 0]
        size = errors.size if source.kind == "points" else 1
        level, inside = np.divmod(samples.grid_index, size)
        found = int(level.min()) if found is None else found
        here = level == found
        if source.kind == "points":
            errors.reshape(-1)[inside[here]] = difference[here]
        elif here.any():
            counted = np.broadcast_to(np.asarray(samples.weights)[here][0, 0] > 0, errors.shape)
            errors = np.where(counted, difference[here][0], np.nan)
    return (found if np.isfinite(errors).any() else None), errors


def _places(coordinates: Coordinates, level: int) -> tuple[Array, Array] | None:
    found = []
    for name in ("lon", "lat"):
        if name not in coordinates.attributes:
            return None
        found.append(
            coordinates.moving_grid(name, level) if name in coordinates.moving else coordinates.grids[name]
        )  # fmt: skip
    return found[0], found[1]


def _when(coordinates: Coordinates, level: int) -> list[str]:
    """Return the date or number of a time level as parts of a title; an empty list for a single level without date."""
    date = None
    # A time may be missing: in a Zarr store whose fill value is 0, a first time of 0 reads as missing.
    if coordinates.times is not None and np.isfinite(coordinates.times[level]):
        known = coordinates.attributes["time"]
        date = date_of(coordinates.times[level], known["units"], known.get("calendar", ""))
    num_levels = sum(record.num_times for record in coordinates.source.files)
    return [date] if date else [f"time level {level + 1}"] if num_levels > 1 else []


def try_error_map(model: Any, source: SampleSource, units: str) -> bytes | None:
    """Return the error map; None if the data can no longer be read or matplotlib is missing. Closes the source."""
    try:
        return draw_error_map(model, source, units) if has_matplotlib() else None
    except DataError:
        return None
    finally:
        source.close()


def with_pictures(found: Findings, model: Any, source: SampleSource, units: str, num_samples: int) -> Findings:
    """Return findings with the course over time and error maps: over all held-out samples, or of one time level.

    One time level is drawn if held-out samples cover few points. `num_samples`: all samples of the run. There are no
    maps if the data can no longer be read or matplotlib is missing. Closes the source.
    """
    try:
        if not has_matplotlib():
            return found
        found = replace(found, course=course_of(found.first, source))
        places = None if found.places is None else found.places.of_one_level(int(np.prod(source.grid_shape)))
        if places is not None and covers_most(places, source, num_samples):
            maps = draw_held_out_maps(source, places, units)
            if maps is not None:
                return replace(found, error_map=maps[0], rmse_map=maps[1])
    except DataError:
        return found
    finally:
        source.close()
    return replace(found, error_map=try_error_map(model, source, units))


def findings_of(model: Any, source: SampleSource) -> Findings:
    """Return errors, derivatives and an error map of a network for the first samples of the data.

    Empty if the data can no longer be read. Closes the source.
    """
    units = _units(source, source.target_names)
    found = _at_first_samples(model, source, units)
    found = replace(found, course=course_of(found.first, source))
    return replace(found, error_map=try_error_map(model, source, units[0]))


def _at_first_samples(model: Any, source: SampleSource, units: Sequence[str]) -> Findings:
    evaluator, mean = Evaluator(answers_of(model)), host_array(model.get_buffer("input_mean"))
    parts, num_pairs = list[Evaluation](), 0
    try:
        for number in range(len(source.chunks)):
            num_derived = 0 if any(part.derivatives for part in parts) else _MOST_DERIVED
            _, samples = samples_of_chunk(source, number, mean)
            part = evaluator.evaluate(samples, True, _MOST_POINTS, num_derived)
            parts += [] if part is None else [part]
            num_pairs += 0 if part is None else len(part.pairs.index)
            if num_pairs >= _MOST_POINTS:
                break
    except DataError:  # the data has changed since; the page shows no errors
        return Findings()
    if not parts:
        return Findings()
    found = together(parts)
    count = found.targets[0].errors.count
    found = replace(found, pairs=found.pairs.at_most(_MOST_POINTS))
    text = f"Over the first samples of the data (training and held-out): {count:,} values of each target."
    names = source.target_names, source.input_names
    return found.findings(names, (units, _units(source, source.input_names)), text)


def course_of(first: Pairs | None, source: SampleSource) -> Course | None:
    """Return the course over time of the first samples of a time series: one sample per time, ordered by time.

    None if the data is not a time series, has no dates or cannot be read. For one rank.
    """
    if first is None or source.kind == "fields" or int(np.prod(source.grid_shape)) > 1:
        return None
    try:
        ranks = known_ranks(source)
        in_order = ranks is not None and bool((np.diff(ranks[ranks >= 0]) > 0).all())
        if ranks is None or not in_order or first.index.max(initial=-1) >= len(ranks):
            return None
        chosen = first.taken(np.flatnonzero(ranks[first.index] >= 0)).first()
        dates = dates_of_levels(source, chosen.index)
    except DataError:
        return None
    return Course(chosen, ranks[chosen.index], dates) if len(dates) >= _FEWEST_TIMES else None


def _units(source: SampleSource, names: Sequence[str]) -> list[str]:
    return known_units(names, [source.units.get(name, "") for name in names])
