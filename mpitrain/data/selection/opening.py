"""Opening all files of a source on one rank: what each must hold, and how it is cut into chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.description import FileDescription
from mpitrain.data.describe.names import (
    CICE_INPUTS,
    CICE_TARGET,
    ICE_FRACTION,
    LATITUDE,
    QUANTITIES,
    find_variable,
    is_absent,
    is_cice_history,
    list_names,
    quantity_of,
)
from mpitrain.data.formats.joined import OnFile, ignore_file, opened_joined, parts_of_kinds, times_of_file
from mpitrain.data.selection.chunks import SampleChunk, common_unit, plan_parts
from mpitrain.data.selection.expressions.naming import Naming, clocks_of, names_needed, spell_out, variables_needed
from mpitrain.data.selection.grid import GridLayout
from mpitrain.data.selection.grid_files import (
    Grids,
    check_places,
    check_shapes,
    check_statics,
    convert_units,
    in_degrees,
    match_dimensions,
    read_file_times,
    read_grid_stamps,
)
from mpitrain.data.selection.notes import notes_of_file, notes_of_first_file
from mpitrain.data.selection.rule import build_point_rule, uses_ice, words_of_ice
from mpitrain.data.selection.settings import Selection, expand_paths, name_in_lines, refuse_same_file
from mpitrain.data.selection.source import SampleSource, SourceFile
from mpitrain.data.selection.table import FLOAT32_BYTES, WITHOUT_TARGETS, is_table, open_table
from mpitrain.data.selection.times.series import find_lagged, find_repeats, read_stations
from mpitrain.data.selection.variable_access import (
    VariableAccess,
    find_access,
    find_main,
    reference_of,
    time_variable,
    with_observations,
)
from mpitrain.errors import DataError, MissingVariableError

DEFAULT_CHUNK_BYTES = 8 * 2**20


def open_source(
    selection: Selection,
    target_bytes: int = DEFAULT_CHUNK_BYTES,
    num_predicted: int | None = None,
    on_file: OnFile = ignore_file,
) -> SampleSource:
    """Open the files of `selection`, and plan how they are read.

    Reads no values, save of variables without time, and of time levels that several files have.

    For one rank, which then broadcasts the source. A chunk holds about `target_bytes` of all variables as float32;
    more where a stored block does. `num_predicted`, for predictions: files may lack all targets, which are so many.
    `on_file` is called with each path before that file is opened, and with None once it is closed.
    Raises DataError where a file cannot serve, ConfigError for a mask that is refused, MissingVariableError.
    """
    paths = expand_paths(selection.files)
    held_out = expand_paths(selection.held_out_files) if selection.held_out_files else ()
    refuse_same_file(selection, paths, held_out, "data.validation_path")
    with opened_joined(paths[:1], on_file, selection.reading) as first:
        is_of_samples = is_table(first, num_predicted is not None)
        selection = with_observations(selection, first)
    if is_of_samples:
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
    """Return the files that are read as one, those of different variables at the same times; and lines to say.

    Files that each have all variables are read one after the other. Raises DataError where the kinds do not fit.
    """
    alone: list[tuple[Path, ...]] = [(path,) for path in paths]
    targets = selection.target_names or (CICE_TARGET,)
    asked = (*(selection.input_names or CICE_INPUTS), *targets)
    if len(paths) < 2 or not selection.counts_times:
        return alone, []
    kinds: dict[frozenset[str], list[Path]] = {}
    held: dict[Path, frozenset[str]] = {}
    times: dict[Path, Any] = {}
    for path in (paths[0], paths[-1], *paths[1:-1]):  # the ends first: files of one kind need no more
        with opened_joined([path], on_file, selection.reading) as file:
            names = variables_needed(asked, selection.domain.mask, file)
            names |= {name for name in (selection.area_name, *selection.coordinates.values()) if name is not None}
            held[path] = frozenset(name for name in names if not is_absent(name, file))
            inputs = variables_needed(asked[: -len(targets)], selection.domain.mask, file)
            if held[path] == names:
                return alone, []
            if num_predicted is not None and len(held) > 1 and inputs <= held[paths[0]] & held[paths[-1]]:
                return alone, []
            times[path] = times_of_file(file)
    for path in paths:
        kinds.setdefault(held[path], []).append(path)
    has_all = frozenset.union(*kinds) == names or num_predicted is not None
    if len(kinds) == 1 or not has_all or frozenset() in kinds or any(one < other for one in kinds for other in kinds):
        return alone, []
    return parts_of_kinds(sorted(kinds.values(), key=len, reverse=True), times)


def _needed_of(selection: Selection, file: Any) -> set[str]:
    """Return the names in a file of the variables that inputs, targets and masks need."""
    asked = (*(selection.input_names or CICE_INPUTS), *(selection.target_names or (CICE_TARGET,)))
    needed = variables_needed(asked, selection.domain.mask, file)
    if selection.area_name is not None:
        needed.add(selection.area_name)
    return {find_variable(name, file) for name in needed if not is_absent(name, file)}


def _open_grid(
    selection: Selection, trained_on: Sequence[tuple[Path, ...]], held_out: Sequence[tuple[Path, ...]],
    target_bytes: int, num_predicted: int | None, on_file: OnFile,
) -> SampleSource:  # fmt: skip
    """Open files of gridded variables, each with those beside it (see `open_source`)."""
    names = selection.input_names or CICE_INPUTS, selection.target_names or (CICE_TARGET,)
    grids = Grids(selection, *names, num_predicted is not None, len(trained_on), len(held_out))
    for paths in (*trained_on, *held_out):
        with opened_joined(paths, on_file, selection.reading, partial(_needed_of, selection)) as file:
            _add_file(grids, selection.describe(file), paths)
    num_times = sum(record.num_times for record in grids.records)
    repeats = find_repeats(grids)
    layout = replace(_grid_layout(grids, repeats), repeats=repeats if num_predicted is None else None)
    chunks = [
        chunk for number in range(len(grids.records)) for chunk in _grid_chunks(grids, layout, number, target_bytes)
    ]
    source = SampleSource(
        files=tuple(grids.records),
        chunks=tuple(chunks),
        layout=layout,
        num_points=num_times if selection.kind == "fields" else num_times * grids.grid_shape[0] * grids.grid_shape[1],
        grid_shape=grids.grid_shape,
        units={name: grids.units.get(name, "") for name in (*grids.main_names, *grids.references(grids.main_names))},
        notices=tuple(grids.notices),
    )
    return source if grids.area_name is None else replace(source, layout=_with_area_scale(source, layout))


def _with_area_scale(source: SampleSource, layout: GridLayout) -> GridLayout:
    """Return the layout with a power of two near the largest area: weights are of order one, and exact."""
    areas = source.first_level(str(layout.area_name))
    largest = float(np.nanmax(areas, initial=0.0))
    if not largest > 0:
        raise DataError(
            f"{source.files[0].path}: variable '{layout.area_name}', which data.area_variable names, has no value "
            "above 0; name one that holds the cells' areas"
        )
    return replace(layout, area_scale=float(2.0 ** np.floor(np.log2(largest))))


def _add_file(grids: Grids, description: FileDescription, paths: tuple[Path, ...]) -> None:
    file, is_first = description.file, not grids.records
    status, *beside = (path.stat() for path in paths)
    if is_first:
        _look_for_targets(grids, description)
        _choose_names(grids, description)
    elif not grids.has_targets and not _has_none(grids.target_names, description):
        raise DataError(
            f"{file.path}: has a target that {grids.records[0].path} lacks (of {_listed(grids.target_names)}); "
            "predict for files with and without targets one after the other"
        )
    access = _find_all(grids, description, grids.names)
    time = time_variable(description, access, grids.leading_references)
    read = [one.info for one in access.values()] + ([] if time is None else [time])
    grids.notices += [*notes_of_file(file, read, grids.told), *convert_units(grids, file, access)]
    if is_first:
        grids.units = {name: grids.wanted_units(name) or one.info.units for name, one in access.items()}
    num_times = check_shapes(grids, file, access)
    check_statics(grids, file, access)
    first_time = sum(record.num_times for record in grids.records)
    times = read_file_times(grids, file, time, access)
    read_stations(grids, description, access, num_times)
    check_places(grids, description, access)
    if is_first:
        in_degrees(grids, access)
        grids.notices += notes_of_first_file(grids, file, access, times)
    of_file = paths[0], status.st_size, status.st_mtime_ns, num_times, first_time
    stamps = read_grid_stamps(grids, file, time)
    others = tuple(
        SourceFile(path, one.st_size, one.st_mtime_ns, 0, 0) for path, one in zip(paths[1:], beside, strict=True)
    )
    if others and is_first:
        grids.notices.append(
            f"{paths[0]}: read together with {', '.join(map(str, paths[1:]))}, which has other variables"
        )
    taken = getattr(file, "taken", (None,))
    grids.records.append(SourceFile(*of_file, access, times, grids.selection.reading, time, stamps, others, taken))


def _find_all(grids: Grids, description: FileDescription, names: Sequence[str]) -> dict[str, VariableAccess]:
    """Return where a file has each variable. Raises DataError, which names the setting that asks for it."""
    inputs, targets = (frozenset(grids.references(some)) for some in (grids.input_names, grids.target_names))
    access = {name: _find_access(grids, description, name, name in inputs, name in targets) for name in names}
    match_dimensions(grids, description, access)
    return access


def _find_access(
    grids: Grids, description: FileDescription, name: str, is_input: bool, is_target: bool
) -> VariableAccess:
    file = description.file
    if name == grids.area_name and is_absent(name, file):
        raise MissingVariableError(
            f"{file.path}: no variable '{name}', which data.area_variable names; this one has "
            f"{list_names(file.variables) or 'none'}"
        )
    if (is_input or is_target) and is_absent(reference_of(name, file).name, file):
        key = "variables.input_variables" if is_input else "variables.output_variables"
        asked = grids.selection.input_names if is_input else grids.selection.target_names
        # Where targets may be missing, a trained network asks for its own inputs.
        is_needed = is_input and grids.may_lack_targets
        why = "" if asked is not None or is_needed else " (the default variables are those of a CICE history)"
        advice = "the network needs it: give data that has it" if is_needed else f"name those to use in {key}"
        raise MissingVariableError(
            f"{file.path}: no variable '{reference_of(name, file).name}'{why}; this one has "
            f"{list_names(file.variables) or 'none'}; {advice}"
        )
    return find_access(description, name, name in grids.coordinates)


def _look_for_targets(grids: Grids, description: FileDescription) -> None:
    """Do without the targets where predictions may, and the first file has none of them."""
    names = grids.target_names
    if grids.may_lack_targets and _has_none(names, description):
        grids.has_targets = False
        grids.notices.append(f"{description.path}: no variable {_listed(names)}: {WITHOUT_TARGETS}")


def _has_none(names: Sequence[str], description: FileDescription) -> bool:
    """Tell whether a file has nothing of what any of the names needs."""
    file = description.file
    return all(is_absent(reference_of(one, file).name, file) for one in names_needed(names, file))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _choose_names(grids: Grids, description: FileDescription) -> None:
    """Decide by the first file which variables the rule and the weights need."""
    selection, file = grids.selection, description.file
    leading = grids.leading_references
    # The ice concentration is the first target or input of that kind, if there is one.
    ice = next((name for name in leading if quantity_of(name) is QUANTITIES[ICE_FRACTION]), None)

    def role(quantity: str) -> str:
        is_ice = quantity == ICE_FRACTION and ice is not None
        return str(ice) if is_ice else description.find_quantity(quantity, find_main(description, leading))

    with_ice = grids.has_targets or not is_absent(ICE_FRACTION, file)
    for quantity in selection.coordinates:
        description.variable_named(quantity)
    _spell_out(grids, description)
    # What the user names comes before what the rule needs.
    _find_all(grids, description, grids.references(grids.main_names))
    # Without names of its own a run asks for CICE's variables.
    is_cice = selection.input_names is None or is_cice_history(file)
    grids.rule = build_point_rule(selection.domain, leading, role, with_ice, is_cice)
    if not with_ice and uses_ice(selection.domain, is_cice):
        others = "with" if selection.domain.mask_mode == "ocean" else "without"
        grids.notices.append(
            f"{file.path}: holds no ice concentration: the condition {words_of_ice(selection.domain)} is not applied, "
            f"points {others} ice are predicted too"
        )
    if selection.is_area_weighted:
        grids.area_name = selection.area_name
        grids.latitude_name = None if grids.area_name else role(LATITUDE)
    extra = [name for name in (grids.area_name, grids.latitude_name) if name]
    main = grids.references(grids.main_names)
    clocks = clocks_of(grids.rule.names, file)
    grids.naming = replace(grids.naming, clocks=grids.naming.clocks | clocks)
    grids.names = tuple(dict.fromkeys((*main, *grids.references(grids.rule.names), *extra)))
    grids.coordinates = tuple(name for name in grids.names if name not in main and description.is_of_grid(name))


def _spell_out(grids: Grids, description: FileDescription) -> None:
    """Give each level of a run a name of its own, and parse derived variables, by what the first file has."""
    file = description.file
    inputs, of_inputs = spell_out(grids.input_names, file, "variables.input_variables")
    key = "variables.output_variables"
    targets, of_targets = spell_out(grids.target_names, file, key) if grids.has_targets else (grids.target_names, {})
    derived = of_inputs | of_targets
    needed = [one for name in (*inputs, *targets) for one in (derived[name].names if name in derived else (name,))]
    grids.input_names, grids.target_names = inputs, targets
    grids.naming = Naming(derived, clocks_of(needed, file))


def _grid_layout(grids: Grids, repeats: npt.NDArray[np.int64] | None) -> GridLayout:
    lagged, lag_step_days = find_lagged(grids, repeats)
    return GridLayout(
        selection=grids.selection,
        kind=grids.selection.kind,
        grid_shape=grids.grid_shape,
        input_names=grids.input_names,
        target_names=grids.target_names,
        rule_words="; and a value at ".join([grids.rule.words, *(f"[{lag}]" for lag in lagged)]),
        rule=grids.rule,
        latitude_name=grids.latitude_name,
        latitude_scale=grids.latitude_scale,
        area_name=grids.area_name,
        naming=grids.naming,
        calendar=grids.calendar or "standard",
        lagged=lagged,
        lag_step_days=lag_step_days,
        statics=grids.statics,
        exact_statics=grids.exact_statics,
        has_targets=grids.has_targets,
    )


def _grid_chunks(grids: Grids, layout: GridLayout, number: int, target_bytes: int) -> Iterator[SampleChunk]:
    record, (num_rows, num_columns) = grids.records[number], grids.grid_shape
    moving = [one for name, one in record.variables.items() if name not in grids.statics]
    moving = moving or list(record.variables.values())
    unit = common_unit(((one.info, one.axes) for one in moving), record.num_times, num_rows)
    points = max(1, target_bytes // (FLOAT32_BYTES * len(moving)))
    rows = (0, num_rows)
    if layout.kind == "fields":
        unit = replace(unit, rows=num_rows)
    elif layout.static_mask is not None:
        used = np.flatnonzero(layout.static_mask.any(axis=1))
        rows = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)  # rows without any sample are not read
    for part in plan_parts(record.num_times, rows, num_columns, unit, points):
        yield SampleChunk(number, *part)
