"""The group of each sample, such as its station or its basin, from the variable that `data.group` names.

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
    """Return the group of each time level (T,), or of each position in a level (J * I,), and whether it is of levels.

    A group of "" stands for none. `name` is a variable of numbers or text, or "file": each file is a group.

    One rank only. Raises DataError if a file lacks the variable, if it does not lie along the dimensions of the
    samples, or if the variable differs in type or values between files.
    """
    if name == FILE:
        paths = [record.path.resolve() for record in source.files]
        folder = os.path.commonpath([path.parent for path in paths])
        repeats = [record.num_times for record in source.files]
        return np.repeat([os.path.relpath(path, folder) for path in paths], repeats), True
    first, subject = source.files[0].path, f"variable '{name}', which data.group names,"
    found = [_of_file(source, record, name) for record in source.files]
    parts = [texts for texts, _ in found]
    if len({is_numeric for _, is_numeric in found}) > 1:
        raise DataError(f"{first}: {subject} holds numbers in some files and text in others; use one type in all files")
    if all(part.shape[1:] == (1, 1) for part in parts):
        of_levels = zip(parts, source.files, strict=True)
        return np.concatenate([np.broadcast_to(part[:, 0, 0], one.num_times) for part, one in of_levels]), True
    if source.kind == "fields":
        raise DataError(
            f"{first}: {subject} differs between points, but samples are whole fields; name a variable along time, or "
            f"{FILE}"
        )
    if any(part.shape[0] > 1 for part in parts):
        raise DataError(
            f"{first}: {subject} varies with both time and location; name a variable that varies with one of them"
        )
    groups = np.broadcast_to(parts[0], (1, *source.grid_shape))
    for part, record in zip(parts, source.files, strict=True):
        if not np.array_equal(np.broadcast_to(part, groups.shape), groups):
            raise DataError(
                f"{record.path}: {subject} differs from that of {first} at the same points; use one order in all files"
            )
    return groups.reshape(-1), False


def _of_file(source: SampleSource, record: SourceFile, name: str) -> tuple[Texts, bool]:
    """Return the groups of a file as text, (T, J, I) with 1 along constant axes, and whether they are numbers."""
    file = source.handles.get(record)
    description = source.selection.describe(file)
    info = description.find(name)
    leading = [one for name, one in record.variables.items() if name in (source.leading_references or record.variables)]
    num_axes = len(info.shape) - _has_characters(info, {name for one in leading for name in one.info.dimensions})
    of_texts = replace(info, dimensions=info.dimensions[:num_axes], shape=info.shape[:num_axes], chunk_shape=None)
    full = record.num_times, *(source.grid_shape if source.layout.is_grid else (1, 1))
    axes = _axes_of(source, description, of_texts, leading, full)
    sizes = () if axes is None else axes.arranged_shape(of_texts.shape)
    if axes is None or any(size not in (1, whole) for size, whole in zip(sizes, full, strict=True)):
        raise DataError(
            f"{record.path}: variable '{name}' ({info.sizes}), which data.group names, does not lie along the "
            f"samples' dimensions, {full[0]} times x {full[1]} rows x {full[2]} columns; name a variable that does"
        )
    texts = _all_texts(file, info, num_axes)
    texts[np.isin(texts, record.reading.missing_texts)] = ""
    arranged = axes.arrange(texts)
    are_fixed = bool((arranged == arranged[:1]).all())  # such as masks that are stored for each time
    return arranged[:1] if are_fixed else arranged, info.is_numeric


def _has_characters(info: VariableInfo, along: set[str]) -> bool:
    """Return whether a variable holds text as characters along its last dimension, which samples do not have."""
    is_letter = info.dtype.lstrip("<>=|") == "S1" and info.shape != () and info.dimensions[-1] != ""
    return is_letter and info.dimensions[-1] not in along


def _axes_of(
    source: SampleSource, description: FileDescription, info: VariableInfo, leading: list[VariableAccess],
    full: tuple[int, ...],
) -> Axes | None:  # fmt: skip
    """Return which axes of a variable are those of samples; None if it has other axes, or they cannot be identified."""
    if info.shape in ((), (1,)):
        return Axes(None, None, None)
    if not source.layout.is_grid:
        return Axes(0, None, None) if info.shape in (full[:1], (*full[:1], 1)) else None
    if info.dimensions == ("",):  # an unnamed dimension is identified by its size
        alike = [(size,) == info.shape for size in (full[:1] if source.kind == "fields" else full)]
        order = [0 if is_alike else None for is_alike in (*alike, False, False)]
        return Axes(order[0], order[1], order[2]) if sum(alike) == 1 else None
    try:
        access: VariableAccess | None = VariableAccess(info, description.axes_of(info, {}))
    except DataError:
        return None
    if access is not None and source.selection.has_named_dimensions:
        access = on_samples(description, access, leading)
    return None if access is None else access.axes


def _all_texts(file: FieldFile, info: VariableInfo, num_axes: int) -> Texts:
    """Return all values of a variable as printable text, integers without a decimal point, "" where missing."""
    stored = file.read_stored(info.name, (slice(None),) * len(info.shape))
    if info.is_numeric:
        values = decode(stored, info)
        # Integers are kept as stored: float64 cannot represent all 64-bit integers.
        is_exact = stored.dtype.kind in "iu" and not _PACKING & set(info.attributes)
        numbers, inverse = np.unique(stored if is_exact else values, return_inverse=True)
        labels = np.array([str(int(one)) if float(one).is_integer() else str(one) for one in numbers], dtype="U")
        return np.where(np.isnan(values), "", labels[inverse].reshape(stored.shape))
    if len(info.shape) > num_axes:
        stored = np.ascontiguousarray(stored).view(f"S{stored.shape[-1]}")[..., 0]
    parts = stored.reshape(-1).tolist()
    texts = {one: _text(one) for one in set(parts)}
    return np.array([texts[one] for one in parts], dtype="U").reshape(stored.shape)


def _text(value: object) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return "" if value is None or value != value else one_line(text.strip())
