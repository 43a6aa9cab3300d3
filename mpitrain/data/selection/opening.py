"""Opening of all files of a source on one rank: checks of each file, and its division into chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.names import CICE_INPUTS, CICE_TARGET, find_variable, is_absent
from mpitrain.data.formats.joined import OnFile, ignore_file, open_joined_files, parts_of_kinds, times_of_file
from mpitrain.data.selection.chunks import ChunkUnit, SampleChunk, common_unit, plan_parts
from mpitrain.data.selection.expressions.naming import variables_needed
from mpitrain.data.selection.grid import GridLayout
from mpitrain.data.selection.grid_files import GridFile, check_places, open_grid_file
from mpitrain.data.selection.notes import notes_of_first_file
from mpitrain.data.selection.plan import GridPlan, in_degrees, plan_grid
from mpitrain.data.selection.settings import Selection, expand_paths, in_files, name_in_lines, refuse_same_file
from mpitrain.data.selection.source import SampleSource, SourceFile
from mpitrain.data.selection.table import FLOAT32_BYTES, is_table, open_table
from mpitrain.data.selection.times.series import TimeLevels, find_lagged, find_repeats, in_order_of_time
from mpitrain.data.selection.variable_access import with_observations
from mpitrain.errors import DataError

DEFAULT_CHUNK_BYTES = 8 * 2**20


def open_source(
    selection: Selection,
    target_bytes: int = DEFAULT_CHUNK_BYTES,
    num_predicted: int | None = None,
    on_file: OnFile = ignore_file,
) -> SampleSource:
    """Open the files of `selection`, and plan how they are read.

    Parameters
    ----------
    selection : Selection
        The files and the settings.
    target_bytes : int
        Size of a chunk in bytes, of all variables together as float32; default 8 MiB. A chunk is larger if a stored
        block is.
    num_predicted : int or None
        Number of targets of a prediction, for which files may lack all targets; None (default) for training.
    on_file : callable
        See `open_joined_files`. Default: does nothing.

    Returns
    -------
    SampleSource
        The source, which can be pickled. It has no chunks if no row can have a selected point.

    Raises
    ------
    DataError
        A file does not exist, cannot be read, does not agree with the first file, or is in both lists of `selection`.
    MissingVariableError
        A file lacks an input, a target or the area variable.
    ConfigError
        A name or a condition in the settings is not allowed, or the code of `data.reader` cannot be used.
    MissingDependencyError
        A library that reads the files is missing.

    Notes
    -----
    One rank only; it then broadcasts the source. Files that can be read in parts are read only for coordinates, times,
    stations, variables without time, the first level of `data.area_variable`, and the time levels and variables that
    several files have.
    """
    paths = expand_paths(selection.files)
    held_out = expand_paths(selection.held_out_files) if selection.held_out_files else ()
    refuse_same_file(selection, paths, held_out, "data.validation_path")
    # The first file decides for all: they are tables of ready samples, or variables on dimensions.
    with open_joined_files(paths[:1], on_file, selection.reading) as first:
        is_of_samples = is_table(first, num_predicted is not None)
        selection = with_observations(selection, first)
    if is_of_samples:
        # Held-out files follow the training files, so that one position separates their samples.
        num_trained_on = len(paths)
        source = open_table(selection, [*paths, *held_out], target_bytes, num_predicted, on_file)
    else:
        (parts, lines), (held_out_parts, more) = (
            _parts_of(selection, some, num_predicted, on_file) for some in (paths, held_out)
        )
        num_trained_on = len(parts)
        source = _open_grid(selection, parts, held_out_parts, target_bytes, num_predicted, on_file)
        source = replace(source, notices=(*lines, *more, *source.notices))
    source = replace(source, notices=name_in_lines(source.notices, paths))
    return replace(source, first_held_out=source.files[num_trained_on].first_time) if held_out else source


def _parts_of(
    selection: Selection, paths: Sequence[Path], num_predicted: int | None, on_file: OnFile
) -> tuple[list[tuple[Path, ...]], list[str]]:  # fmt: skip
    """Return tuples of files to be read as one, which hold different variables at the same times; and notices.

    Files that each have all variables are read one after the other. Raises DataError if files cannot be combined.
    """
    alone: list[tuple[Path, ...]] = [(path,) for path in paths]
    targets = selection.target_names or (CICE_TARGET,)
    requested = (*(selection.input_names or CICE_INPUTS), *targets)
    if len(paths) < 2 or not selection.has_named_dimensions:
        return alone, []
    kinds: dict[frozenset[str], list[Path]] = {}
    present: dict[Path, frozenset[str]] = {}
    times: dict[Path, Any] = {}
    # The ends first: the others are not opened once a file has all variables or, for predictions, both ends all inputs.
    for path in (paths[0], paths[-1], *paths[1:-1]):
        with open_joined_files([path], on_file, selection.reading) as file:
            names = variables_needed(requested, selection.domain.mask, file)
            names |= {name for name in (selection.area_name, *selection.coordinates.values()) if name is not None}
            present[path] = frozenset(name for name in names if not is_absent(name, file))
            inputs = variables_needed(requested[: -len(targets)], selection.domain.mask, file)
            if present[path] == names:
                return alone, []
            if num_predicted is not None and len(present) > 1 and inputs <= present[paths[0]] & present[paths[-1]]:
                return alone, []
            times[path] = times_of_file(file)
    for path in paths:
        kinds.setdefault(present[path], []).append(path)
    has_all = frozenset.union(*kinds) == names or num_predicted is not None
    if len(kinds) == 1 or not has_all or frozenset() in kinds or any(one < other for one in kinds for other in kinds):
        return alone, []
    return parts_of_kinds(sorted(kinds.values(), key=len, reverse=True), times)


def _needed_of(selection: Selection, file: Any) -> set[str]:
    """Return the names, in a file, of the variables that inputs, targets, masks and areas need."""
    requested = (*(selection.input_names or CICE_INPUTS), *(selection.target_names or (CICE_TARGET,)))
    needed = variables_needed(requested, selection.domain.mask, file)
    if selection.area_name is not None:
        needed.add(selection.area_name)
    return {find_variable(name, file) for name in needed if not is_absent(name, file)}


def _open_grid(
    selection: Selection, trained_on: Sequence[tuple[Path, ...]], held_out: Sequence[tuple[Path, ...]],
    target_bytes: int, num_predicted: int | None, on_file: OnFile,
) -> SampleSource:  # fmt: skip
    """Open files of gridded variables; each tuple of paths is read as one file (see `open_source`)."""
    plan, first, levels, lines = _open_files(
        selection, (*trained_on, *held_out), len(trained_on), num_predicted is not None, on_file
    )
    # In this order: repeats are positions among the sorted levels, and lags leave repeated levels out.
    levels, of_order = in_order_of_time(levels)
    repeats, of_repeats = find_repeats(levels)
    lagged, lag_step_days, of_lags = find_lagged(levels, repeats)
    layout = GridLayout(
        selection=selection,
        kind=selection.kind,
        grid_shape=first.grid_shape,
        input_names=plan.input_names,
        target_names=plan.target_names,
        rule_text=", with a value at ".join([plan.rule.description, *(f"[{lag}]" for lag in lagged)]),
        rule=plan.rule,
        latitude_name=plan.latitude_name,
        latitude_scale=plan.latitude_scale,
        area_name=plan.area_name,
        naming=plan.naming,
        calendar="standard" if first.times is None else first.times.calendar,
        lagged=lagged,
        lag_step_days=lag_step_days,
        statics=first.statics,
        exact_statics=_needed_exactly(plan, first),
        has_targets=plan.has_targets,
        repeats=repeats if num_predicted is None else None,
    )
    records = levels.records
    source = SampleSource(
        files=records,
        chunks=(),
        layout=layout,
        num_points=levels.num_levels * (1 if selection.kind == "fields" else first.grid_shape[0] * first.grid_shape[1]),
        grid_shape=first.grid_shape,
        units={name: first.units.get(name, "") for name in (*plan.main_names, *plan.main_references)},
        notices=(*lines, *of_order, *of_repeats, *of_lags),
    )
    used, places = (layout.rows_by_place(source), plan.coordinates) if records[0].are_rows else (None, ())
    parts = (_chunks(records, layout, number, used, places, target_bytes) for number in range(len(records)))
    source = replace(source, chunks=tuple(chain.from_iterable(parts)))
    source.close()
    return source if plan.area_name is None else replace(source, layout=_with_area_scale(source, layout))


def _open_files(
    selection: Selection, parts: Sequence[tuple[Path, ...]], num_trained_on: int, for_prediction: bool, on_file: OnFile
) -> tuple[GridPlan, GridFile, TimeLevels, list[str]]:  # fmt: skip
    """Return the plan from the first file, that file, the time levels of all files, and notices. Raises DataError."""
    opened = partial(
        open_joined_files, on_file=on_file, reading=selection.reading, needed_of=partial(_needed_of, selection)
    )
    with opened(parts[0]) as file:
        description = selection.describe(file)
        plan, lines = plan_grid(selection, description, for_prediction)
        first = open_grid_file(plan, description, parts[0], 0, None)
        plan = in_degrees(plan, first.record.variables, first.units)
        lines += [*first.lines, *notes_of_first_file(plan, file, first.record, first.times)]
    if first.record.beside:
        others = ", ".join(str(one.path) for one in first.record.beside)
        lines.append(f"{parts[0][0]}: read together with {others}, which has other variables")
    records, common, places = [first.record], dict.fromkeys(first.common_lines, first.path), dict[str, Any]()
    check_places(first, places)
    for number, paths in enumerate(parts[1:], start=1):
        with opened(paths) as file:
            first_time = records[-1].first_time + records[-1].num_times
            found = open_grid_file(plan, selection.describe(file), paths, first_time, first)
        places = places if number != num_trained_on else {}  # held-out files are a separate series
        check_places(found, places)
        for line in found.common_lines:
            common.setdefault(line, found.path)
        lines += found.lines
        records.append(found.record)
    levels = TimeLevels(selection, tuple(records), num_trained_on, first.grid_shape == (1, 1))
    return plan, first, levels, [*in_files(common), *lines]


def _needed_exactly(plan: GridPlan, first: GridFile) -> dict[str, npt.NDArray[Any]]:
    """Return the unrounded variables without time that derived variables need; none with `data.rules=1`."""
    needed = {one for derived in plan.naming.derived.values() for one in derived.names}
    is_exact = plan.selection.has_named_dimensions
    return {name: values for name, values in first.exact_statics.items() if is_exact and name in needed}


def _with_area_scale(source: SampleSource, layout: GridLayout) -> GridLayout:
    """Return the layout with areas scaled by a power of two near the largest: weights are exact, and of order one."""
    areas = layout.first_level(source, str(layout.area_name))
    largest = float(np.nanmax(areas, initial=0.0))
    if not largest > 0:
        raise DataError(
            f"{source.files[0].path}: variable '{layout.area_name}', which data.area_variable names, has no value "
            "above 0; name a variable that holds the cells' areas"
        )
    return replace(layout, area_scale=float(2.0 ** np.floor(np.log2(largest))))


def _chunks(
    records: Sequence[SourceFile], layout: GridLayout, number: int, used_rows: npt.NDArray[np.bool_] | None,
    places: Sequence[str], target_bytes: int,
) -> Iterator[SampleChunk]:  # fmt: skip
    """Yield the chunks of a file; of a table those from the first to the last of the `used_rows` (T,), None: all rows.

    `places` are variables that do not count in the size of a chunk.
    """
    record, (num_rows, num_columns) = records[number], layout.grid_shape
    moving = [one for name, one in record.variables.items() if name not in {*layout.statics, *places}]
    moving = moving or list(record.variables.values())
    unit = common_unit(((one.info, one.axes) for one in moving), record.num_times, num_rows)
    points = max(1, target_bytes // (FLOAT32_BYTES * len(moving)))
    if record.are_rows:
        own = np.ones(record.num_times, dtype=bool)
        if used_rows is not None:
            own = np.asarray(used_rows[record.first_time : record.first_time + record.num_times])
        for _, _, start, stop in plan_parts(1, _ends_of(own), 1, ChunkUnit(1, unit.times), points):
            yield SampleChunk(number, start, stop, 0, 1)
        return
    rows = (0, num_rows)
    if layout.kind == "fields":
        unit = replace(unit, rows=num_rows)
    elif layout.static_mask is not None:
        rows = _ends_of(np.asarray(layout.static_mask.any(axis=1)))  # rows without any sample are not read
    for part in plan_parts(record.num_times, rows, num_columns, unit, points):
        yield SampleChunk(number, *part)


def _ends_of(used: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Return the first of the `used` rows and the last + 1; (0, 0) if there is none."""
    found = np.flatnonzero(used)
    return (int(found[0]), int(found[-1]) + 1) if len(found) else (0, 0)
