"""Inspection of data files: their variables, and the samples that a run's settings select."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.config import RunConfig, show_value
from mpitrain.config.data import READERS
from mpitrain.data import (
    FieldFile,
    SampleSource,
    expand_paths,
    first_of_each_kind,
    open_joined_files,
    open_source,
    selection_of,
    valid_rows,
)
from mpitrain.data.files.decoding import read
from mpitrain.data.files.variable import Slices, VariableInfo
from mpitrain.datatools.suggestion import describes_itself, places_and_times, suggest
from mpitrain.errors import DataError, MpitrainError, one_line
from mpitrain.text_table import aligned

Array = npt.NDArray[np.floating]
_PART_BYTES = 8 * 2**20
_BYTES_A_VALUE = 8
_MOST_MISSING = 0.7
_FEWEST_ROWS = 10
_NOTHING_TO_LEARN = (
    "no variable has both varying values and possible inputs (variables along the same dimensions, coordinates or "
    "times)"
)
_HEADINGS = ("variable", "dimensions", "type", "units", "minimum", "maximum", "mean", "missing", "stored in blocks of",
             "meaning")  # fmt: skip
_MOST_LOOKED_AT = 1_000_000
# Limits for a suspected fill value. A variable with fewer distinct values than the first holds flags or classes. The
# gap to the next value must exceed the second times the largest gap between the others. In addition, the gap must
# exceed the third times the range of the others, or the value's share of all values must exceed the fourth.
_FEWEST_DISTINCT, _OF_OTHER_GAPS, _FAR, _FREQUENT = 20, 3.0, 3.0, 0.05


@dataclass(frozen=True)
class VariableReport:
    """One variable: `minimum`, `maximum`, `mean` over `values_read` values; the fraction `missing_share` is missing."""

    name: str
    dimensions: str
    dtype: str
    units: str
    minimum: float | None
    maximum: float | None
    mean: float | None
    missing_share: float | None
    values_read: int
    blocks: str
    long_name: str = ""
    standard_name: str = ""


@dataclass(frozen=True)
class Inspection:
    """The files, the variables of the first one, and the selection of the settings, or why there is none.

    `source` reads the samples; None if the settings cannot be applied to these files.
    """

    files: tuple[str, ...]
    is_full: bool
    variables: tuple[VariableReport, ...]
    refused: dict[str, str]
    selection: dict[str, Any]
    notices: tuple[str, ...]
    source: SampleSource | None = None

    def render_json(self) -> str:
        """Return everything as JSON."""
        keys = ("files", "is_full", "refused", "selection", "notices")
        content = {key: getattr(self, key) for key in keys} | {"variables": [asdict(one) for one in self.variables]}
        return json.dumps(content, indent=2)

    def render_table(self) -> str:
        """Return everything as text: a table of the variables, then one line for each entry of the selection."""
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        part = "all values" if self.is_full else "first part of each variable; --full reads all"
        lines = [f"{self.files[0]}{more} ({part})", "", *aligned([_HEADINGS, *map(_cells, self.variables)]), ""]
        lines += [f"not read: {name}: {reason}" for name, reason in self.refused.items()]
        lines += [f"{key.replace('_', ' ')}: {_shown(value)}" for key, value in self.selection.items()]
        lines += [f"note: {notice}" for notice in self.notices]
        return "\n".join(map(one_line, lines))


def inspect_data(config: RunConfig, is_full: bool = False) -> Inspection:
    """Inspect the files of `data.data_path`: the variables of the first one, and the settings' selection from all.

    If the settings name no variables and the file is no CICE history, the selection is that of a suggested command.
    Raises DataError if the first file cannot be read; if nothing can be selected, `selection["why"]` is the reason.
    """
    paths = expand_paths(config.data.entries)
    reading = selection_of(config).reading
    with open_joined_files(first_of_each_kind(paths, reading), reading=reading) as file:
        variables = tuple(_report(file, info, is_full) for info in file.variables.values())
        texts = [one.name for one in file.variables.values() if one.is_text]
        refused = {**file.refused, **{name: note for name in texts if (note := file.note_of(name)) is not None}}
        has_names = config.variables.input_variables or config.variables.output_variables or describes_itself(file)
        suggestion = None if has_names else suggest(file, {one.name: _differs(one) for one in variables})
    names = tuple(str(path) for path in paths)
    found = Inspection(names, is_full, variables, refused, {}, ())
    if not has_names and suggestion is None:
        return replace(found, selection={"selected_samples": 0, "why": _NOTHING_TO_LEARN})
    selection = selection_of(config)
    facts: dict[str, Any] = {}
    if suggestion is not None:
        reader = "" if config.data.reader is None else f' "data.reader={show_value(READERS.dump(config.data.reader))}"'
        facts["train_with"] = f"{suggestion.command(config.data.entries)}{reader}"
        if suggestion.left_out:
            facts["left_out"] = f"{', '.join(suggestion.left_out)}: missing too often where other variables have values"
        selection = replace(selection, input_names=suggestion.inputs, target_names=suggestion.targets)
    try:
        source = open_source(selection)
        selected, doubts = _selection(source)
        facts |= places_and_times(source) | selected
    except MpitrainError as error:
        return replace(found, selection={"selected_samples": 0, "why": str(error)})
    return replace(found, selection=facts, notices=(*source.notices, *doubts), source=source)


def _shown(value: Any) -> str:
    return ", ".join(f"{count} of {name}" for name, count in value.items()) if isinstance(value, dict) else str(value)


def _differs(one: VariableReport) -> bool:
    """Return whether a variable may be an input or target: less than 70 % missing, not constant, not a row number."""
    return one.minimum != one.maximum and (one.missing_share or 0.0) < _MOST_MISSING and not _counts_rows(one)


def _counts_rows(one: VariableReport) -> bool:
    """Return whether a variable looks like a row number: integers from 0 or 1 on, as many as there are rows."""
    if one.minimum not in (0, 1) or one.maximum is None or one.mean is None or one.missing_share:
        return False
    is_whole = one.dtype[:1] in "iu" and one.maximum - one.minimum + 1 == one.values_read
    return is_whole and one.values_read > _FEWEST_ROWS and one.mean == (one.minimum + one.maximum) / 2


def _report(file: FieldFile, info: VariableInfo, is_full: bool) -> VariableReport:
    blocks = " x ".join(map(str, info.chunk_shape)) if info.chunk_shape else ""
    figures = _figures(file, info, is_full) if info.is_numeric and 0 not in info.shape else (None, None, None, None, 0)
    names = info.text("long_name"), info.text("standard_name")
    return VariableReport(info.name, info.sizes, info.dtype.lstrip("<>=|"), info.units, *figures, blocks, *names)


def _figures(
    file: FieldFile, info: VariableInfo, is_full: bool
) -> tuple[float | None, float | None, float | None, float | None, int]:
    """Return minimum, maximum, mean, fraction of missing values, and number of values read."""
    minimum, maximum, total, count, values_read = np.inf, -np.inf, 0.0, 0, 0
    # The first part: about 8 MB, or one chunk; only the beginning of rows that are larger.
    first = tuple(slice(0, min(_step(info, axis), size)) for axis, size in enumerate(info.shape))
    for slices in _parts(info) if is_full else [first]:
        values = read(file, info.name, slices)
        measured = values[np.isfinite(values)].astype(np.float64)
        values_read += values.size
        if measured.size:
            minimum, maximum = min(minimum, float(measured.min())), max(maximum, float(measured.max()))
            total, count = total + float(measured.sum()), count + measured.size
    if count == 0:
        return None, None, None, 1.0, values_read
    return minimum, maximum, total / count, 1.0 - count / values_read, values_read


def _parts(info: VariableInfo) -> Iterator[Slices]:
    """Yield slices of about 8 MB along a variable's first axis, aligned with its chunks."""
    if not info.shape:
        yield ()
        return
    step = _step(info, 0)
    for start in range(0, info.shape[0], step):
        yield (slice(start, min(start + step, info.shape[0])),)


def _step(info: VariableInfo, axis: int) -> int:
    """Return the length along an axis, in whole chunks, of about 8 MB of a variable with all later axes complete."""
    block = info.chunk_shape[axis] if info.chunk_shape else 1
    row_bytes = _BYTES_A_VALUE * prod(info.shape[axis + 1 :])
    return max(1, _PART_BYTES // (row_bytes * block)) * block


def _selection(source: SampleSource) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the selection, and notices on possible fill values; reads each chunk once."""
    names = (*source.input_names, *source.target_names)
    looks = [LooksLikeFill(name, len(source.chunks), source.layout.is_grid) for name in names]
    valid: list[npt.NDArray[np.bool_]] = []
    missing = np.zeros(len(names), dtype=np.int64)
    for chunk in source.chunks:
        samples = source.read(chunk)
        valid.append(valid_rows(samples))
        columns = [
            np.isnan(values).reshape(*values.shape[:2], -1).all(axis=2) for values in (samples.inputs, samples.targets)
        ]
        unusable = np.concatenate(columns, axis=1)  # (N, F + O): the value is missing; in fields, at all points
        missing += unusable.sum(axis=0)
        columns_of = (*np.moveaxis(samples.inputs, 1, 0), *np.moveaxis(samples.targets, 1, 0))
        for look, values in zip(looks, columns_of, strict=True):
            look.add(values)
    is_valid = np.concatenate(valid) if valid else np.empty(0, dtype=bool)
    selected, complete = len(is_valid), int(is_valid.sum())
    # As in a run: the limit is applied to the selected samples before incomplete ones are dropped.
    kept = int(is_valid[source.keeps(np.arange(selected), selected)].sum())
    facts: dict[str, Any] = {
        "kind": source.kind,
        **_places_of_samples(source),
        "selected_samples": selected,
        "complete_samples": complete,
        "kept_samples": kept,
        "rule": source.layout.rule_text if source.layout.is_grid else "every sample of the file",
        "inputs": ", ".join(_named(source, source.input_names)),
        "targets": ", ".join(_named(source, source.target_names)),
        "chunks": len(source.chunks),
    }
    facts["missing"] = {name: int(count) for name, count in zip(names, missing, strict=True) if count} or "none"
    try:
        source.check_selection(selected, (selected - missing).tolist())
    except DataError as error:
        facts["why"] = str(error)
    return facts, tuple(notice for look in looks for notice in look.notices())


def _places_of_samples(source: SampleSource) -> dict[str, Any]:
    """Return the shape of the grid, the roles of the first target's dimensions with the evidence, and time levels."""
    num_levels, (num_rows, num_columns) = sum(record.num_times for record in source.files), source.grid_shape
    if source.are_undated_rows:
        return {"grid": f"none: a table of {num_levels} rows without times"}
    facts: dict[str, Any] = {"grid": f"{num_rows} rows x {num_columns} columns"}
    access = source.files[0].variables.get(next(iter(source.leading_references), ""))
    if access is not None and access.axes.reasons:
        roles = dict(zip(access.axes.order, ("time", "rows", "columns"), strict=True))
        found = zip(access.info.dimensions, access.axes.reasons, strict=True)
        texts = [
            f"{name or 'row'}: {roles.get(axis, 'one level')} ({reason})" for axis, (name, reason) in enumerate(found)
        ]
        facts["dimensions"] = "; ".join(texts)
    return {**facts, "time_levels": num_levels}


def _named(source: SampleSource, names: tuple[str, ...]) -> list[str]:
    """Return each name, with the name in the file if that differs, and its units."""
    texts = []
    for name in names:
        access = source.files[0].variables.get(name)
        own = f" = {access.info.name}" if access and access.info.name != name else ""
        texts.append(f"{name}{own}" + (f" ({source.units[name]})" if source.units[name] else ""))
    return texts


def _cells(one: VariableReport) -> tuple[str, ...]:
    figures = ("" if value is None else f"{value:.6g}" for value in (one.minimum, one.maximum, one.mean))
    missing = "" if one.missing_share is None else f"{100 * one.missing_share:.1f} %"
    meaning = one.long_name or one.standard_name
    return (one.name, one.dimensions, one.dtype, one.units, *figures, missing, one.blocks, meaning)


@dataclass
class LooksLikeFill:
    """Detector of fill values that no attribute declares, such as 0 over land or 9999, in one variable.

    It collects a subset of the values of each part, and reports a smallest or largest value far from all others.
    """

    name: str
    num_parts: int
    is_on_grid: bool = True
    _parts: list[Array] = field(default_factory=list)

    def add(self, values: Array) -> None:
        """Add a part of the values, of any shape, NaN where missing."""
        known = values[np.isfinite(values)]
        step = max(1, -(-known.size * self.num_parts // _MOST_LOOKED_AT))
        self._parts.append(known[::step])

    def notices(self) -> Sequence[str]:
        """Return a notice for the smallest and for the largest value, each if it is isolated from all others."""
        values = np.concatenate(self._parts) if self._parts else np.empty(0)
        distinct, counts = np.unique(values, return_counts=True)
        if len(distinct) < _FEWEST_DISTINCT:
            return ()
        ends = ((distinct[0], counts[0], distinct[1:], ">"), (distinct[-1], counts[-1], distinct[:-1], "<"))
        return tuple(self._notice(*end, len(values)) for end in ends if _stands_apart(*end[:3], len(values)))

    def _notice(self, end: float, count: int, others: Array, sign: str, num_values: int) -> str:
        mask = f"exclude it with domain.mask='{self.name} {sign} {end:.6g}'"
        return (
            f"{self.name}: {100 * count / num_values:.2g} % of its values are {end:.6g}, far from the others, "
            f"{others[0]:.6g} to {others[-1]:.6g}; if {end:.6g} is a fill value, "
            f"{mask if self.is_on_grid else 'replace it by NaN'}"
        )


def _stands_apart(end: float, count: int, others: Array, num_values: int) -> bool:
    gap = float(min(abs(others[0] - end), abs(others[-1] - end)))
    is_far, is_frequent = gap > _FAR * float(others[-1] - others[0]), count > _FREQUENT * num_values
    return gap > _OF_OTHER_GAPS * float(np.diff(others).max()) and (is_far or is_frequent)
