"""Opening all files of a source on one rank: what each must hold, and how it is cut into chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.config import RunConfig
from mpitrain.data.files.open import open_field_file
from mpitrain.data.files.protocol import FieldFile
from mpitrain.data.history_file import INPUTS, TARGET
from mpitrain.data.selection.chunks import SampleChunk, common_unit, plan_parts
from mpitrain.data.selection.grid import GridLayout, static_mask_of
from mpitrain.data.selection.names import ICE_FRACTION, LATITUDE, is_absent, odd_units
from mpitrain.data.selection.rule import PointRule, build_point_rule, uses_ice
from mpitrain.data.selection.source import SampleSource
from mpitrain.data.selection.source_files import SourceFile, VariableAccess
from mpitrain.data.selection.table import INPUTS as TABLE_INPUTS
from mpitrain.data.selection.table import TARGETS as TABLE_TARGETS
from mpitrain.data.selection.table import TableLayout, check_table
from mpitrain.data.selection.variable_access import coordinate_name, find_access, find_role, read_statics, static_names
from mpitrain.errors import DataError

_FLOAT32_BYTES = 4
_WITHOUT_TARGETS = "predicted from the inputs alone, without errors and statistics"


@dataclass
class _Grids:
    """What is gathered while the files are opened one after the other."""

    config: RunConfig
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


def open_grid(config: RunConfig, paths: Sequence[Path], target_bytes: int, num_predicted: int | None) -> SampleSource:
    """Open files of gridded variables (see `source.open_source`)."""
    variables = config.variables
    names = tuple(variables.input_variables or INPUTS), tuple(variables.output_variables or (TARGET,))
    grids = _Grids(config, *names, may_lack_targets=num_predicted is not None)
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
        kind=config.data.samples,
        files=tuple(grids.records),
        chunks=tuple(chunks),
        layout=layout,
        num_points=num_times
        if config.data.samples == "fields"
        else num_times * grids.grid_shape[0] * grids.grid_shape[1],
        grid_shape=grids.grid_shape,
        units={name: grids.records[0].variables[name].info.units for name in grids.main_names},
        max_patterns=config.data.max_patterns,
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
    access = {name: find_access(file, name, name in grids.coordinates) for name in grids.names}
    num_times = _check_shapes(grids, file, access)
    _check_statics(grids, file, access, num_times)
    first_time = sum(record.num_times for record in grids.records)
    record = SourceFile(file.path, status.st_size, status.st_mtime_ns, num_times, first_time, access)
    grids.notices += _unit_notices(grids, record)
    grids.records.append(record)


def _look_for_targets(grids: _Grids, file: FieldFile) -> None:
    """Do without the targets where predictions may, and the first file has none of them."""
    names = grids.target_names
    if grids.may_lack_targets and all(is_absent(name, file) for name in names):
        grids.has_targets = False
        grids.notices.append(f"{file.path}: no variable {_listed(names)}: {_WITHOUT_TARGETS}")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _choose_names(grids: _Grids, file: FieldFile) -> None:
    """Decide by the first file which variables the rule and the weights need."""
    config = grids.config
    role: Callable[[str], str] = lambda quantity: find_role(quantity, file, grids.leading_names)  # noqa: E731
    with_ice = grids.has_targets or not is_absent(ICE_FRACTION, file)
    grids.rule = build_point_rule(config.domain, grids.leading_names, role, with_ice)
    if not with_ice and uses_ice(config.domain):
        key = "domain.clean_data" if config.domain.mask_mode is None else "domain.mask_mode=sea_ice"
        grids.notices.append(
            f"{file.path}: holds no ice concentration: the condition 0 < aice <= 1 of {key} is not applied, points "
            "without ice are predicted too"
        )
    grids.latitude_name = role(LATITUDE) if config.data.area_weighted else None
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
    statics = read_statics(file, {name: access[name] for name in names}, grids.config.training.dtype)
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
    config = grids.config
    layout = GridLayout(
        kind=config.data.samples,
        grid_shape=grids.grid_shape,
        input_names=grids.input_names,
        target_names=grids.target_names,
        rule=grids.rule,
        dtype=config.training.dtype,
        seed=config.seed,
        thin_fraction=config.data.thin_fraction,
        latitude_name=grids.latitude_name,
        statics=grids.statics,
        has_targets=grids.has_targets,
    )
    return replace(layout, static_mask=static_mask_of(grids.rule, grids.statics, grids.grid_shape))


def _grid_chunks(grids: _Grids, layout: GridLayout, number: int, target_bytes: int) -> Iterator[SampleChunk]:
    record, (num_rows, num_columns) = grids.records[number], grids.grid_shape
    moving = [one for name, one in record.variables.items() if name not in grids.statics]
    unit = common_unit(((one.info, one.axes) for one in moving), record.num_times, num_rows)
    points = max(1, target_bytes // (_FLOAT32_BYTES * len(moving)))
    rows = (0, num_rows)
    if layout.kind == "fields":
        unit = replace(unit, rows=num_rows)
    elif layout.static_mask is not None:
        used = np.flatnonzero(layout.static_mask.any(axis=1))
        rows = (int(used[0]), int(used[-1]) + 1) if len(used) else (0, 0)  # rows without any sample are not read
    for part in plan_parts(record.num_times, rows, num_columns, unit, points):
        yield SampleChunk(number, *part)


def open_table(config: RunConfig, paths: Sequence[Path], target_bytes: int, num_predicted: int | None) -> SampleSource:
    """Open files of samples that are ready (see `source.open_source`)."""
    records: list[SourceFile] = []
    chunks: list[SampleChunk] = []
    shapes: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    for path in paths:
        file = open_field_file(path)
        try:
            found = check_table(file, num_predicted is not None)
            shapes = shapes or found
            _check_same_table(file, found, shapes, records)
            status, first = path.stat(), sum(record.num_times for record in records)
            records.append(SourceFile(path, status.st_size, status.st_mtime_ns, found[0][0], first))
            chunks += _table_chunks(file, len(records) - 1, target_bytes)
        finally:
            file.close()
    layout = _table_layout(config, *(shapes or ((), ())), num_predicted)
    notices = [] if layout.has_targets else [f"{paths[0]}: no array 'targets': {_WITHOUT_TARGETS}"]
    return SampleSource(
        kind=layout.kind,
        files=tuple(records),
        chunks=tuple(chunks),
        layout=layout,
        num_points=sum(record.num_times for record in records),
        grid_shape=(layout.field_shape[0], layout.field_shape[1]) if layout.field_shape else (1, 1),
        units=dict.fromkeys((*layout.input_names, *layout.target_names), ""),
        max_patterns=config.data.max_patterns,
        notices=(*notices, *_unused_with_a_table(config, paths[0])),
    )


def _unused_with_a_table(config: RunConfig, path: Path) -> Iterator[str]:
    """Yield a notice for each setting that needs a grid."""
    domain = config.domain
    settings = {
        "domain.mask_mode": domain.mask_mode,
        "domain.mask": domain.mask,
        "domain.latitude_range": domain.latitude_range,
        "domain.longitude_range": domain.longitude_range,
        "data.area_weighted": config.data.area_weighted or None,
    }
    for key, value in settings.items():
        if value is not None:
            yield f"{key}: not used with {path}, a table of samples without a grid: all of its rows are samples"


def _check_same_table(file: FieldFile, found: Any, expected: Any, records: list[SourceFile]) -> None:
    tails = [[shape[1:] for shape in shapes] for shapes in (found, expected)]
    if tails[0] != tails[1]:
        raise DataError(
            f"{file.path}: inputs {found[0]} and targets {found[1]} have not the columns of {records[0].path}, "
            f"{expected[0]} and {expected[1]}; give files of one kind"
        )


def _table_chunks(file: FieldFile, number: int, target_bytes: int) -> Iterator[SampleChunk]:
    infos = [file.variables[name] for name in (TABLE_INPUTS, TABLE_TARGETS) if name in file.variables]
    count = infos[0].shape[0]
    unit = int(np.lcm.reduce([min(info.chunk_shape[0], count) if info.chunk_shape else 1 for info in infos]))
    values = sum(int(np.prod(info.shape[1:])) for info in infos)
    step = max(1, target_bytes // (_FLOAT32_BYTES * values * unit)) * unit
    for first in range(0, count, step):
        yield SampleChunk(number, 0, 1, first, min(first + step, count))


def _table_layout(
    config: RunConfig, inputs: tuple[int, ...], targets: tuple[int, ...], num_predicted: int | None
) -> TableLayout:
    is_fields = len(inputs) == 4
    if config.data.samples == "fields" and not is_fields:
        raise DataError(f"data.samples=fields: inputs {inputs} are points; set data.samples=points")
    num_targets = targets[1] if len(targets) > 1 else 1
    has_targets = num_targets > 0
    num_targets = num_targets or num_predicted or 1
    return TableLayout(
        kind="fields" if is_fields else "points",
        input_names=_column_names("inputs", inputs[1], config.variables.input_variables),
        target_names=_column_names("targets", num_targets, config.variables.output_variables),
        dtype=config.training.dtype,
        seed=config.seed,
        thin_fraction=config.data.thin_fraction,
        field_shape=inputs[2:],
        has_targets=has_targets,
    )


def _column_names(array: str, count: int, names: Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return tuple(f"{array}[:, {column}]" for column in range(count))
    if len(names) != count:
        key = "input_variables" if array == "inputs" else "output_variables"
        raise DataError(f"variables.{key} names {len(names)}, the array {array} has {count} columns; name each or none")
    return tuple(names)
