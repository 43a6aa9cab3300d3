"""What data in memory holds, as variables: xarray's Datasets, pandas' DataFrames, and dicts of arrays."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mpitrain.errors import UserError, one_line

if TYPE_CHECKING:
    from mpitrain.data import GivenVariable

_KEPT_ENCODING = ("units", "calendar")  # of times; packing would lose digits of what was computed since
_LIMITS = {"valid_min": (0,), "valid_max": (1,), "valid_range": (0, 1)}  # low is 0, high is 1
_NAMES_OTHERS = ("coordinates", "bounds", "climatology", "grid_mapping", "ancillary_variables")
_NUMBERS, _TIMES = "biuf", "mM"
_CLOCKS = ("time", "day_of_year", "hour_of_day", "month", "year")


def is_dataset(data: Any) -> bool:
    """Tell whether data is an xarray Dataset."""
    return hasattr(data, "data_vars")


def is_dataframe(data: Any) -> bool:
    """Tell whether data is a pandas DataFrame."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


@dataclass(frozen=True)
class Asked:
    """What settings say of variables: names that data must have, None for the default ones, and other texts."""

    names: tuple[str, ...] | None = None
    others: str = ""

    def among(self, names: Iterable[str]) -> set[str]:
        """Return those of `names` that the settings may mean: all where a name that data must have has none of them."""
        known = {name: re.compile(rf"(?<!\w){re.escape(name)}(?!\w)") for name in names}
        found = [{name for name, word in known.items() if word.search(text)} for text in self.names or ()]
        if self.names is None or not all(one or text in _CLOCKS for one, text in zip(found, self.names, strict=True)):
            return set(known)
        return set[str]().union(*found, (name for name, word in known.items() if word.search(self.others)))


def size_of(data: Any, asked: Asked) -> int:
    """Return about how many bytes `variables_of` gives."""
    if is_dataset(data):
        needed = asked.among(map(str, data.variables)) | set(map(str, data.coords))
        return sum(int(one.nbytes) for name, one in data.variables.items() if str(name) in needed)
    if is_dataframe(data):
        return int(data.memory_usage(deep=False).sum())
    arrays = data.values() if isinstance(data, Mapping) else [data]
    return sum(int(getattr(array, "nbytes", 0)) for array in arrays)


def variables_of(data: Any, asked: Asked) -> Iterator[GivenVariable]:
    """Yield the variables of data; of a Dataset its coordinates, and of the others those that are asked for.

    A variable that cannot be read comes with the reason. Raises UserError for data of another kind.
    """
    if is_dataset(data) or hasattr(data, "to_dataset"):
        yield from _of_dataset(data if is_dataset(data) else data.to_dataset(name=data.name or "data"), asked)
    elif is_dataframe(data):
        yield from _of_dataframe(data)
    elif isinstance(data, Mapping):
        yield from _of_arrays(data)
    else:
        raise UserError(
            f"data: {type(data).__name__} cannot be read; give an xarray Dataset, a pandas DataFrame, a dict of "
            "arrays, or the path of a file"
        )


def _of_dataset(dataset: Any, asked: Asked) -> Iterator[GivenVariable]:
    from xarray import conventions

    from mpitrain.data import GivenVariable

    dataset = dataset.copy(deep=False)
    for name in dataset.variables:
        encoding = dataset[name].encoding
        _unpack_limits(dataset[name].attrs, encoding)
        dataset[name].encoding = {key: encoding[key] for key in _KEPT_ENCODING if key in encoding}
    variables, _ = conventions.encode_dataset_coordinates(dataset)
    said = " ".join(str(one.attrs.get(key, "")) for one in variables.values() for key in _NAMES_OTHERS)
    named = {*asked.among(map(str, variables)), *map(str, dataset.coords), *said.split()}
    needed = {name: one for name, one in variables.items() if str(name) in named}
    refused = {name: reason for name, one in needed.items() if (reason := _why_not_read(one)) is not None}
    encoded, _ = conventions.cf_encoder({name: one for name, one in needed.items() if name not in refused}, {})
    for name, reason in refused.items():
        yield GivenVariable(str(name), refused=reason)
    for name, one in encoded.items():
        yield GivenVariable(str(name), one.data, tuple(map(str, one.dims)), one.attrs)


def _why_not_read(variable: Any) -> str | None:
    """Return why a variable is not read; None for numbers and times."""
    kind = variable.dtype.kind
    if kind in _NUMBERS + _TIMES:
        return None
    if kind != "O":
        return f"it holds {'text' if kind in 'SUT' else variable.dtype}, expected numbers"
    first = variable[(slice(0, 1),) * variable.ndim].values.reshape(-1).tolist()
    if first and hasattr(first[0], "calendar"):  # cftime's dates
        return None
    return f"it holds objects, such as {one_line(repr(first[0]))[:40] if first else 'none'}, expected numbers"


def _unpack_limits(attributes: dict[str, Any], encoding: Mapping[str, Any]) -> None:
    """Give limits in packed numbers, which CF has as integers, in the units of values that were unpacked on reading."""
    import numpy as np

    found = {name: np.atleast_1d(attributes[name]) for name in _LIMITS if name in attributes}
    packing = [encoding.get("scale_factor"), encoding.get("add_offset")]
    if not found or packing == [None, None] or any(one.dtype.kind == "f" for one in found.values()):
        return
    scale, offset = (
        usual if one is None else float(np.ravel(one)[0]) for one, usual in zip(packing, (1.0, 0.0), strict=True)
    )
    is_unsigned = str(encoding.get("_Unsigned", attributes.get("_Unsigned"))).lower() == "true"
    ends: list[float | None] = [None, None]
    for name, packed in found.items():
        del attributes[name]  # text does not tell whether it is packed
        sides = _LIMITS[name]
        if packed.dtype.kind in "iu" and len(packed) == len(sides):
            wide = packed.astype(np.float64) + (2.0 ** (8 * packed.itemsize)) * (is_unsigned & (packed < 0))
            for side, limit in zip(sides, wide, strict=True):
                # Half a step further: the unpacked limit itself is rounded.
                ends[side] = (float(limit) + side - 0.5) * scale + offset
    for name, end in zip(("valid_min", "valid_max"), ends if scale >= 0 else ends[::-1], strict=True):
        attributes.update({} if end is None else {name: end})


def _of_dataframe(table: Any) -> Iterator[GivenVariable]:
    from mpitrain.data import GivenVariable

    table = _with_index(table)
    names = [str(name) for name in table.columns]
    for place, name in enumerate(names):
        if names.count(name) > 1:
            reason = f"{names.count(name)} columns are called so"
            yield from [GivenVariable(name, refused=reason)] if names.index(name) == place else []
            continue
        try:
            values, note = _values_of_column(table.iloc[:, place])
            yield GivenVariable(name, values, note=note)
        except (TypeError, ValueError, OverflowError) as error:
            yield GivenVariable(name, refused=f"it holds {table.dtypes.iloc[place]}, expected numbers ({error})")


def _with_index(table: Any) -> Any:
    """Return the table with its index as columns, where that has names or is times; these are `time` without one."""
    index = table.index
    is_time = [getattr(level, "dtype", None) is not None and _is_time(level.dtype) for level in _levels_of(index)]
    if all(name is None for name in index.names) and not any(is_time):
        return table
    names = [
        name if name is not None else "time" if times and "time" not in table.columns else f"level_{number}"
        for number, (name, times) in enumerate(zip(index.names, is_time, strict=True))
    ]
    both = [name for name in names if name in table.columns]
    if both:
        raise UserError(
            f"data: {both[0]!r} is a column and in the index; rename one, or give data.reset_index(drop=True)"
        )
    return table.reset_index(names=names)


def _levels_of(index: Any) -> Any:
    return index.levels if hasattr(index, "levels") else [index]


def _is_time(dtype: Any) -> bool:
    return getattr(dtype, "kind", "") == "M" or str(dtype).startswith("period")


def _values_of_column(column: Any) -> tuple[Any, str | None]:
    """Return a column as an array (N,) of numbers, times or text, and what is to be known of it."""
    import numpy as np

    if str(column.dtype) == "category":
        column = column.astype("float64" if column.dtype.categories.dtype.kind in _NUMBERS else object)
    if str(column.dtype).startswith("period"):
        column = column.dt.to_timestamp()
    if zone := getattr(column.dtype, "tz", None) or getattr(getattr(column.dtype, "pyarrow_dtype", None), "tz", None):
        note = f"times of the zone {zone}: their hours and days are those of UTC"
        return column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy(), note
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in _NUMBERS + _TIMES:
        return column.to_numpy(), None
    if column.dtype.kind in _TIMES:
        return column.to_numpy(dtype=f"{column.dtype.kind}8[ns]"), None
    if column.dtype.kind in _NUMBERS:
        return column.to_numpy(dtype=np.float64, na_value=np.nan), None
    if column.dtype.kind not in "OTSU":
        raise TypeError(f"such as {column.iloc[0]!r}" if len(column) else "nothing")
    return np.array(
        ["" if missing else str(one) for one, missing in zip(column, column.isna(), strict=True)], "U"
    ), None


def _of_arrays(arrays: Mapping[Any, Any]) -> Iterator[GivenVariable]:
    from mpitrain.data import GivenVariable
    from mpitrain.data.files.absolute_time import unmasked

    found = {str(name): unmasked(array) for name, array in arrays.items()}
    lengths = {name: array.shape[:1] for name, array in found.items()}
    first = next(iter(lengths), "")
    other = next((name for name in lengths if lengths[name] != lengths[first]), "")
    if other:
        raise UserError(
            f"data: {first!r} has shape {found[first].shape}, {other!r} {found[other].shape}; give arrays with equal "
            "first dimensions"
        )
    for name, array in found.items():
        if array.dtype.kind == "O" and array.ndim == 1:
            array = array.astype("U")
        is_read = array.dtype.kind in _NUMBERS + _TIMES or (array.dtype.kind in "U" and array.ndim == 1)
        yield (
            GivenVariable(name, array)
            if is_read
            else GivenVariable(name, refused=f"it holds {array.dtype}, expected numbers")
        )
