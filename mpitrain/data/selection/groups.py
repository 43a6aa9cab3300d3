"""Which group each sample is of, such as its station or its basin: what `data.group` names.

T  time levels of all files      J, I  rows and columns
"""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.axes import Axes
from mpitrain.data.describe.description import FileDescription
from mpitrain.data.files.decoding import decode
from mpitrain.data.files.variable import FieldFile, VariableInfo
from mpitrain.data.selection.matching import on_samples
from mpitrain.data.selection.source import SampleSource, SourceFile
from mpitrain.data.selection.variable_access import VariableAccess
from mpitrain.errors import DataError, one_line

FILE = "file"
_PACKING = {"scale_factor", "add_offset"}
Texts = npt.NDArray[np.str_]


def groups_of(source: SampleSource, name: str) -> tuple[Texts, bool]:
    """Return the group of each time level (T,), or of each place in one (J * I,), "" of none, and whether of levels.

    `name` is a variable of numbers or text, or "file": each file is a group. For one rank. Raises DataError where a
    file has no such variable, it is of other places than samples are, or files do not tell it in one way.
    """
    if name == FILE:
        paths = [record.path.resolve() for record in source.files]
        folder = os.path.commonpath([path.parent for path in paths])
        repeats = [record.num_times for record in source.files]
        return np.repeat([os.path.relpath(path, folder) for path in paths], repeats), True
    first, what = source.files[0].path, f"variable '{name}', which data.group names,"
    found = [_of_file(source, record, name) for record in source.files]
    parts = [texts for texts, _ in found]
    if len({is_numeric for _, is_numeric in found}) > 1:
        raise DataError(f"{first}: {what} holds numbers in some files and text in others; write it in one way")
    if all(part.shape[1:] == (1, 1) for part in parts):
        of_levels = zip(parts, source.files, strict=True)
        return np.concatenate([np.broadcast_to(part[:, 0, 0], one.num_times) for part, one in of_levels]), True
    if source.kind == "fields":
        raise DataError(f"{first}: {what} is of places, and samples are whole fields; name one of times, or {FILE}")
    if any(part.shape[0] > 1 for part in parts):
        raise DataError(f"{first}: {what} is of times and places together; name one of times or of places")
    groups = np.broadcast_to(parts[0], (1, *source.grid_shape))
    for part, record in zip(parts, source.files, strict=True):
        if not np.array_equal(np.broadcast_to(part, groups.shape), groups):
            raise DataError(f"{record.path}: {what} is not that of {first} at the same places; write both in one order")
    return groups.reshape(-1), False


def _of_file(source: SampleSource, record: SourceFile, name: str) -> tuple[Texts, bool]:
    """Return the groups of a file as text, (T, J, I), 1 where they do not differ, and whether they are numbers."""
    file = source.handles.get(record)
    description = source.selection.describe(file)
    info = description.find(name)
    leading = [one for name, one in record.variables.items() if name in (source.leading_references or record.variables)]
    num_axes = len(info.shape) - _has_letters(info, {name for one in leading for name in one.info.dimensions})
    of_words = replace(info, dimensions=info.dimensions[:num_axes], shape=info.shape[:num_axes], chunk_shape=None)
    full = record.num_times, *(source.grid_shape if source.layout.is_grid else (1, 1))
    axes = _axes_of(source, description, of_words, leading, full)
    sizes = () if axes is None else axes.arranged_shape(of_words.shape)
    if axes is None or any(size not in (1, whole) for size, whole in zip(sizes, full, strict=True)):
        raise DataError(
            f"{record.path}: variable '{name}' ({info.sizes}), which data.group names, is not of the samples' places "
            f"and times, {full[0]} times x {full[1]} rows x {full[2]} columns; name one that is"
        )
    texts = _words(file, info, num_axes)
    texts[np.isin(texts, record.reading.words)] = ""
    arranged = axes.arrange(texts)
    are_fixed = bool((arranged == arranged[:1]).all())  # as of masks that are stored for each time
    return arranged[:1] if are_fixed else arranged, info.is_numeric


def _has_letters(info: VariableInfo, along: set[str]) -> bool:
    """Tell whether words of a variable are letters along its last dimension, which samples do not have."""
    is_letter = info.dtype.lstrip("<>=|") == "S1" and info.shape != () and info.dimensions[-1] != ""
    return is_letter and info.dimensions[-1] not in along


def _axes_of(
    source: SampleSource, description: FileDescription, info: VariableInfo, leading: list[VariableAccess],
    full: tuple[int, ...],
) -> Axes | None:  # fmt: skip
    """Return which axes of samples those of a variable are; None where it has others, or nothing tells it."""
    if info.shape in ((), (1,)):
        return Axes(None, None, None)
    if not source.layout.is_grid:
        return Axes(0, None, None) if info.shape in (full[:1], (*full[:1], 1)) else None
    if info.dimensions == ("",):  # its size alone tells
        alike = [(size,) == info.shape for size in (full[:1] if source.kind == "fields" else full)]
        order = [0 if is_alike else None for is_alike in (*alike, False, False)]
        return Axes(order[0], order[1], order[2]) if sum(alike) == 1 else None
    try:
        access: VariableAccess | None = VariableAccess(info, description.axes_of(info, {}))
    except DataError:
        return None
    if access is not None and source.selection.counts_times:
        access = on_samples(description, access, leading)
    return None if access is None else access.axes


def _words(file: FieldFile, info: VariableInfo, num_axes: int) -> Texts:
    """Return all values of a variable as printable text, whole numbers without a point, "" of what is missing."""
    stored = file.read_stored(info.name, (slice(None),) * len(info.shape))
    if info.is_numeric:
        values = decode(stored, info)
        is_exact = stored.dtype.kind in "iu" and not _PACKING & set(info.attributes)  # float64 has fewer digits
        numbers, which = np.unique(stored if is_exact else values, return_inverse=True)
        words = np.array([str(int(one)) if float(one).is_integer() else str(one) for one in numbers], dtype="U")
        return np.where(np.isnan(values), "", words[which].reshape(stored.shape))
    if len(info.shape) > num_axes:
        stored = np.ascontiguousarray(stored).view(f"S{stored.shape[-1]}")[..., 0]
    parts = stored.reshape(-1).tolist()
    texts = {one: _word(one) for one in set(parts)}
    return np.array([texts[one] for one in parts], dtype="U").reshape(stored.shape)


def _word(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return "" if value is None or value != value else one_line(text.strip())
