"""Discrete sampling geometries of CF (chapter 9): profiles, stations and trajectories, expanded to observations.

In a contiguous ragged array a count variable with the attribute `sample_dimension` contains the number of observations
of each instance; in an indexed ragged array an index variable with `instance_dimension` contains the instance of each
observation. In two-dimensional arrays with a time for each value, each row contains the observations of an instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mpitrain.data.describe.cf import is_time
from mpitrain.data.files.decoding import decode
from mpitrain.data.files.overlay import Overlay, SelectedAlong
from mpitrain.data.files.variable import FieldFile, Slices, VariableInfo, Variables
from mpitrain.errors import DataError


@dataclass(frozen=True)
class RaggedArray:
    """A count or index variable (`said_by`) that maps observations along `samples` to instances along `instances`."""

    said_by: VariableInfo
    instances: str
    samples: str
    is_count: bool


def ragged_arrays(variables: Variables) -> tuple[RaggedArray, ...]:
    """Return the ragged arrays of a file; those whose instances are observations of others come last."""
    found = []
    for info in variables.values():
        if len(info.shape) == 1 and info.is_numeric:
            samples, instances = info.text("sample_dimension"), info.text("instance_dimension")
            if samples or instances:
                found.append(
                    RaggedArray(info, instances or info.dimensions[0], samples or info.dimensions[0], bool(samples))
                )
    return tuple(sorted(found, key=lambda one: one.instances in {other.samples for other in found}))


def timed_dimensions(variables: Variables, name: str) -> tuple[str, str] | None:
    """Return the dimensions of instances and observations, if a variable and its time have both; None otherwise.

    A variable with `cf_role` must lie along the first dimension: without it the data may be a swath, which is a grid.
    """
    info = variables.get(name)
    if info is None or len(info.dimensions) != len(("instance", "observation")) or 1 in info.shape:
        return None
    has_time = any(is_time(one) and one.is_numeric and one.dimensions == info.dimensions for one in variables.values())
    are_instances = any(one.text("cf_role") and one.dimensions[:1] == info.dimensions[:1] for one in variables.values())
    return (info.dimensions[0], info.dimensions[1]) if has_time and are_instances else None


def has_observations(variables: Variables) -> bool:
    """Tell whether a file has ragged arrays, or may have instances with an own time for each observation."""
    has_roles = any(one.text("cf_role") for one in variables.values())
    has_times = has_roles and any(len(one.shape) > 1 and is_time(one) for one in variables.values())
    return has_times or bool(ragged_arrays(variables))


def at_observations(file: FieldFile, names: Sequence[str]) -> FieldFile:
    """Return the file with all variables expanded to the observations along which one of `names` lies.

    Returns the file unchanged if none does. Raises DataError if counts or indices do not match the dimensions.
    """
    grid = next((two for name in names if (two := timed_dimensions(file.variables, name)) is not None), None)
    if grid is not None:
        return _AtEachValue(file, *grid)
    arrays = ragged_arrays(file.variables)
    along = {name for one in names if one in file.variables for name in file.variables[one].dimensions}
    expanded: set[str] = set()
    for one in arrays:
        is_along = one.samples in along or any(
            one.samples == other.instances and other.samples in along for other in arrays
        )
        if is_along and one.instances not in expanded:
            expanded.add(one.instances)
            file = SelectedAlong(file, one.instances, one.samples, _instances(file, one), without=one.said_by.name)
    return file


class _AtEachValue(Overlay):
    """An open file with two dimensions flattened in row-major order; variables along one of them are repeated."""

    def __init__(self, file: FieldFile, rows: str, columns: str) -> None:
        super().__init__(file)
        sizes = file.variables.dimension_sizes
        self._rows, self._columns, self._num_columns = rows, columns, sizes[columns]
        self._places = np.arange(sizes[rows] * sizes[columns])
        self._flat: dict[str, VariableInfo] = {}
        for name, info in file.variables.items():
            is_number = info.is_numeric and info.dimensions in ((rows,), (columns,), (rows, columns))
            if is_number or (info.is_text and info.dimensions[:1] == (rows,)):
                self._flat[name] = info
                further = () if info.is_numeric else info.dimensions[1:]
                self.variables[name] = replace(
                    info, dimensions=(f"{rows}_{columns}", *further), chunk_shape=None, unlimited=frozenset(),
                    shape=(len(self._places), *(info.shape[1:] if further else ())),
                )  # fmt: skip

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[np.generic]:
        """See `FieldFile`."""
        info = self._flat.get(name)
        if info is None:
            return super().read_stored(name, slices)
        row, column = np.divmod(self._places[slices[0]], self._num_columns)
        found: npt.NDArray[np.generic]
        if info.dimensions == (self._columns,):
            found = super().read_stored(name, (slice(None),))[column]
        else:
            first, stop = (int(row.min()), int(row.max()) + 1) if len(row) else (0, 0)
            part = super().read_stored(name, (slice(first, stop), slice(None))[: len(info.shape)])
            found = part[row - first, column] if info.dimensions[1:] == (self._columns,) else part[row - first]
        return found


def _instances(file: FieldFile, array: RaggedArray) -> npt.NDArray[np.int64]:
    """Return the instance (N,) of each observation. Raises DataError if counts or indices do not fit."""
    sizes = file.variables.dimension_sizes
    subject = f"{file.path}: '{array.said_by.name}'"
    num_instances, num_samples = sizes.get(array.instances), sizes.get(array.samples)
    if num_instances is None or num_samples is None:
        missing = array.instances if num_instances is None else array.samples
        raise DataError(f"{subject} names the dimension '{missing}', which no variable has; correct its attributes")
    stored = file.read_stored(array.said_by.name, (slice(None),))
    numbers = decode(stored, replace(array.said_by, missing=())).astype(np.float64)
    if array.is_count:
        counts = np.where(np.isnan(numbers), 0, numbers).astype(np.int64)
        if counts.sum() != num_samples or (counts < 0).any():
            raise DataError(
                f"{subject} counts {int(counts.sum())} observations along '{array.samples}', which has {num_samples}; "
                "correct the counts of this ragged array"
            )
        return np.repeat(np.arange(num_instances), counts)
    if not ((numbers >= 0) & (numbers < num_instances)).all():
        wrong = int(np.flatnonzero(~((numbers >= 0) & (numbers < num_instances)))[0])
        raise DataError(
            f"{subject} is {numbers[wrong]:g} at observation {wrong}, expected 0 to {num_instances - 1}, an index "
            f"along '{array.instances}'; correct the indices of this ragged array"
        )
    return numbers.astype(np.int64)
