"""Which group each sample is of, such as its station or its basin: what `data.group` names.

T  time levels of all files      J, I  rows and columns
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.stations import words_of
from mpitrain.data.selection.matching import on_samples
from mpitrain.data.selection.source import SampleSource, SourceFile
from mpitrain.data.selection.variable_access import VariableAccess
from mpitrain.errors import DataError

FILE = "file"
Texts = npt.NDArray[np.str_]


def groups_of(source: SampleSource, name: str) -> tuple[Texts, bool]:
    """Return the group of each time level (T,), or of each place in one (J * I,), "" of none, and whether of levels.

    `name` is a variable of numbers or text, or "file": each file is a group. For one rank. Raises DataError where a
    file has no such variable, or it is of other places than samples are.
    """
    parts = [_of_file(source, record, name) for record in source.files]
    if all(part.shape[1:] == (1, 1) for part in parts):
        of_levels = zip(parts, source.files, strict=True)
        return np.concatenate([np.broadcast_to(part[:, 0, 0], one.num_times) for part, one in of_levels]), True
    what = f"variable '{name}', which data.group names,"
    if source.kind == "fields":
        raise DataError(f"{what} is of places, and samples are whole fields; name one of times, or {FILE}")
    if any(part.shape[0] > 1 for part in parts):
        raise DataError(f"{what} is of times and places together; name one of times, of places, or {FILE}")
    groups = np.broadcast_to(parts[0], (1, *source.grid_shape))
    for part, record in zip(parts, source.files, strict=True):
        if not np.array_equal(np.broadcast_to(part, groups.shape), groups):
            raise DataError(f"{record.path}: {what} differs from that of {source.files[0].path}; name {FILE}")
    return groups.reshape(-1), False


def _of_file(source: SampleSource, record: SourceFile, name: str) -> Texts:
    """Return the groups of a file as text, arranged (T, J, I), 1 where they do not differ along an axis."""
    file = source.handles.get(record)
    if name == FILE and name not in file.variables:
        return np.full((1, 1, 1), str(record.path))
    description, is_grid = source.selection.describe(file), source.layout.is_grid
    info = description.find(name)
    texts = words_of(file, info)
    info = replace(info, dimensions=info.dimensions[: texts.ndim], shape=texts.shape, chunk_shape=None)
    full = record.num_times, *(source.grid_shape if is_grid else (1, 1))
    access: VariableAccess | None = None
    if is_grid:
        access = VariableAccess(info, description.axes_of(info, {}))
        leading = source.leading_references or tuple(record.variables)
        if source.selection.counts_times:
            access = on_samples(description, access, [record.variables[one] for one in leading])
    arranged = texts.reshape(-1, 1, 1) if access is None else access.axes.arrange(texts)
    if (is_grid and access is None) or any(
        size not in (1, whole) for size, whole in zip(arranged.shape, full, strict=True)
    ):
        raise DataError(
            f"{record.path}: variable '{name}' ({info.sizes}), which data.group names, is not of the samples' places "
            f"and times, {full[0]} times x {full[1]} rows x {full[2]} columns; name one that is, or {FILE}"
        )
    return arranged
