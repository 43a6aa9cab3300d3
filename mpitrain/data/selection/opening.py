"""Opening all files of a source on one rank: what each must hold, and how it is cut into chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.open import open_field_file
from mpitrain.data.files.variable import FieldFile
from mpitrain.data.selection.chunks import SampleChunk, common_unit, plan_parts
from mpitrain.data.selection.grid import GridLayout, static_mask_of
from mpitrain.data.selection.names import (
    CICE_INPUTS,
    CICE_TARGET,
    ICE_FRACTION,
    LATITUDE,
    is_absent,
    is_cice_history,
    list_names,
    odd_units,
)
from mpitrain.data.selection.rule import PointRule, build_point_rule, uses_ice
from mpitrain.data.selection.settings import Selection, expand_paths
from mpitrain.data.selection.source import SampleSource, SourceFile
from mpitrain.data.selection.table import FLOAT32_BYTES, WITHOUT_TARGETS, is_table, open_table
from mpitrain.data.selection.variable_access import (
    VariableAccess,
    coordinate_name,
    find_access,
    find_role,
    read_statics,
    static_names,
)
from mpitrain.errors import DataError

DEFAULT_CHUNK_BYTES = 8 * 2**20


@dataclass
class _Grids:
    """What is gathered while the files are opened one after the other."""

    selection: Selection
    input_names: tuple[str, ...]
    target_names: tuple[str, ...]
    may_lack_targets: bool
    has_targets: bool = True
    rule: PointRule = field(default_factory=lambda: PointRule((), ""))
    latitude_name: str | None = None
    names: tuple[str, ...] = ()
    coordinates: tuple[str, ...] = ()
    grid_shape: tuple[int, int] = (1, 1)
    statics: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    records: list[SourceFile] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def main_names(self) -> tuple[str, ...]:
        """What is read from every chunk."""
        return (*self.input_names, *(self.target_names if self.has_targets else ()))

    @property
    def leading_names(self) -> tuple[str, ...]:
        """What the others are held against: the targets, or without them the inputs."""
        return self.target_names if self.has_targets else self.input_names


def open_source(
    selection: Selection, target_bytes: int = DEFAULT_CHUNK_BYTES, num_predicted: int | None = None
) -> SampleSource:
    """Open the files of `selection`, and plan how they are read. Reads no values, save of variables without time.

    For one rank, which then broadcasts the source. A chunk holds about `target_bytes` of all variables as float32;
    more where a stored block does. `num_predicted`, for predictions: files may lack all targets, which are so many.
    Raises DataError where a file cannot serve, ConfigError for a mask that is refused.
    """
    paths = expand_paths(selection.files)
    first = open_field_file(paths[0])
    try:
        opener = open_table if is_table(first, num_predicted is not None) else _open_grid
    finally:
        first.close()
    return opener(selection, paths, target_bytes, num_predicted)


def _open_grid(
    selection: Selection, paths: Sequence[Path], target_bytes: int, num_predicted: int | None
) -> SampleSource:
    """Open files of gridded variables (see `open_source`)."""
    names = selection.input_names or CICE_INPUTS, selection.target_names or (CICE_TARGET,)
    grids = _Grids(selection, *names, may_lack_targets=num_predicted is not None)
    for path in paths:
        file = open_field_file(path)
        try:
            _add_file(grids, file)
        finally:
            file.close()
    layout = _grid_layout(grids)
    chunks = [chunk for number in range(len(paths)) for chunk in _grid_chunks(grids, layout, number, target_bytes)]
    num_times = sum(record.num_times for record in grids.records)
    return SampleSource(
        selection=selection,
        kind=selection.kind,
        files=tuple(grids.records),
        chunks=tuple(chunks),
        layout=layout,
        num_points=num_times if selection.kind == "fields" else num_times * grids.grid_shape[0] * grids.grid_shape[1],
        grid_shape=grids.grid_shape,
        units={name: grids.records[0].variables[name].info.units for name in grids.main_names},
        max_patterns=selection.max_patterns,
        notices=tuple(grids.notices),
    )


def _add_file(grids: _Grids, file: FieldFile) -> None:
    status, is_first = file.path.stat(), not grids.records
    if is_first:
        _look_for_targets(grids, file)
        _choose_names(grids, file)
    elif not grids.has_targets and not all(is_absent(name, file) for name in grids.target_names):
        raise DataError(
            f"{file.path}: has a target that {grids.records[0].path} lacks (of {_listed(grids.target_names)}); "
            "predict for files with and without targets one after the other"
        )
    access = {name: _find_access(grids, file, name) for name in grids.names}
    num_times = _check_shapes(grids, file, access)
    _check_statics(grids, file, access, num_times)
    first_time = sum(record.num_times for record in grids.records)
    record = SourceFile(file.path, status.st_size, status.st_mtime_ns, num_times, first_time, access)
    grids.notices += _unit_notices(grids, record)
    grids.records.append(record)


def _find_access(grids: _Grids, file: FieldFile, name: str) -> VariableAccess:
    """Return where a file has a variable. Raises DataError, which names the setting that asks for it."""
    is_input, is_target = name in grids.input_names, name in grids.target_names
    if (is_input or is_target) and is_absent(name, file):
        key = "variables.input_variables" if is_input else "variables.output_variables"
        asked = grids.selection.input_names if is_input else grids.selection.target_names
        why = "" if asked is not None else " (of a CICE history, which is what is read where nothing else is named)"
        raise DataError(
            f"{file.path}: no variable '{name}'{why}; this one has {list_names(file.variables) or 'none'}; name those "
            f"to use in {key}"
        )
    return find_access(file, name, name in grids.coordinates)


def _look_for_targets(grids: _Grids, file: FieldFile) -> None:
    """Do without the targets where predictions may, and the first file has none of them."""
    names = grids.target_names
    if grids.may_lack_targets and all(is_absent(name, file) for name in names):
        grids.has_targets = False
        grids.notices.append(f"{file.path}: no variable {_listed(names)}: {WITHOUT_TARGETS}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _choose_names(grids: _Grids, file: FieldFile) -> None:
    """Decide by the first file which variables the rule and the weights need."""
    selection = grids.selection
    role: Callable[[str], str] = lambda quantity: find_role(quantity, file, grids.leading_names)  # noqa: E731
    with_ice = grids.has_targets or not is_absent(ICE_FRACTION, file)
    for name in grids.main_names:  # what the user has named comes before what the rule needs
        _find_access(grids, file, name)
    # Without names of its own a run asks for CICE's variables.
    is_cice = selection.input_names is None or is_cice_history(file)
    grids.rule = build_point_rule(selection.domain, grids.leading_names, role, with_ice, is_cice)
    if not with_ice and uses_ice(selection.domain, is_cice):
        key = "domain.clean_data" if selection.domain.mask_mode is None else "domain.mask_mode=sea_ice"
        grids.notices.append(
            f"{file.path}: holds no ice concentration: the condition 0 < aice <= 1 of {key} is not applied, points "
            "without ice are predicted too"
        )
    grids.latitude_name = role(LATITUDE) if selection.is_area_weighted else None
    extra = [grids.latitude_name] if grids.latitude_name else []
    grids.names = tuple(dict.fromkeys((*grids.main_names, *grids.rule.names, *extra)))
    grids.coordinates = tuple(
        name for name in grids.names if name not in grids.main_names and coordinate_name(name, file)
    )


def _check_shapes(grids: _Grids, file: FieldFile, access: dict[str, VariableAccess]) -> int:
    """Return the file's number of time levels. Raises DataError where its variables or its grid do not fit."""
    # A target, or without them the input of the largest grid: one may be constant along an axis.
    leading = [access[name] for name in grids.leading_names]
    main = leading[0] if grids.has_targets else max(leading, key=lambda one: one.shape[1] * one.shape[2])
    num_times = max(access[name].shape[0] for name in grids.main_names)
    grid_shape = main.shape[1:]
    for one in access.values():
        if 0 in one.shape:
            raise DataError(
                f"{file.path}: variable '{one.info.name}' has shape {one.info.shape}: a dimension of length 0 holds "
                "nothing; take this file out of data.data_path, or wait until it is written"
            )
        if not one.info.is_numeric:
            raise DataError(f"{file.path}: variable '{one.info.name}' holds {one.info.dtype}, expected numbers")
        fits = all(size in (1, full) for size, full in zip(one.shape, (num_times, *grid_shape), strict=True))
        if not fits:
            raise DataError(
                f"{file.path}: variable '{one.info.name}' has (time, rows, columns) {one.shape}, "
                f"expected {(num_times, *grid_shape)} as '{main.info.name}' has; take variables of one grid"
            )
    if grids.records and grid_shape != grids.grid_shape:
        raise DataError(
            f"{file.path}: its grid of {_times(grid_shape)} is not that of {grids.records[0].path}, "
            f"{_times(grids.grid_shape)}; train on files of one grid"
        )
    grids.grid_shape = grid_shape
    return num_times


def _times(grid_shape: tuple[int, int]) -> str:
    return f"{grid_shape[0]} rows x {grid_shape[1]} columns"


def _check_statics(grids: _Grids, file: FieldFile, access: dict[str, VariableAccess], num_times: int) -> None:
    """Take the variables without time from the first file; raise DataError where a later one has others."""
    names = static_names(access, grids.main_names, grids.coordinates)
    statics = read_statics(file, {name: access[name] for name in names}, grids.selection.dtype)
    if not grids.records:
        grids.statics = statics
        return
    for name, expected in grids.statics.items():
        found = statics.get(name)
        if (
            found is None
            or found.shape != expected.shape
            or not np.allclose(found, expected, 1e-6, 1e-5, equal_nan=True)
        ):
            what = "its grid" if name in grids.coordinates else "it has no time, and"
            raise DataError(
                f"{file.path}: variable '{access[name].info.name}' is not that of {grids.records[0].path}: {what} must "
                "be the same in all files; train on files of one grid"
            )


def _unit_notices(grids: _Grids, record: SourceFile) -> Iterator[str]:
    for name in grids.main_names:
        info = record.variables[name].info
        if not grids.records:
            notice = odd_units(name, info, record.path)
            if notice:
                yield notice
        elif info.units != (expected := grids.records[0].variables[name].info.units):
            yield (
                f"{record.path}: variable '{info.name}' has units '{info.units}', '{expected}' in "
                f"{grids.records[0].path}; its values are used as they are"
            )


def _grid_layout(grids: _Grids) -> GridLayout:
    selection = grids.selection
    layout = GridLayout(
        kind=selection.kind,
        grid_shape=grids.grid_shape,
        input_names=grids.input_names,
        target_names=grids.target_names,
        rule=grids.rule,
        dtype=selection.dtype,
        seed=selection.seed,
        thin_fraction=selection.thin_fraction,
        latitude_name=grids.latitude_name,
        statics=grids.statics,
        has_targets=grids.has_targets,
    )
    return replace(layout, static_mask=static_mask_of(grids.rule, grids.statics, grids.grid_shape))


def _grid_chunks(grids: _Grids, layout: GridLayout, number: int, target_bytes: int) -> Iterator[SampleChunk]:
    record, (num_rows, num_columns) = grids.records[number], grids.grid_shape
    moving = [one for name, one in record.variables.items() if name not in grids.statics]
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
