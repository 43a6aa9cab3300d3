"""Conversion of data in memory to variables: xarray Datasets, pandas DataFrames, and dicts of arrays."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mpitrain.errors import UserError, one_line

if TYPE_CHECKING:
    from mpitrain.data import Asked, GivenVariable, VariableInfo

_KEPT_ENCODING = ("units", "calendar")  # of times; packing would round values that were computed after reading
_LIMITS = {"valid_min": (0,), "valid_max": (1,), "valid_range": (0, 1)}  # low is 0, high is 1
_NUMBERS, _TIMES = "biuf", "mM"
_MOST_TEXT_BYTES = 2**26


def is_dataset(data: Any) -> bool:
    """Return whether data is an xarray Dataset."""
    return hasattr(data, "data_vars")


def is_dataframe(data: Any) -> bool:
    """Return whether data is a DataFrame, of pandas or another library."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def variables_of(data: Any, asked: Asked) -> list[GivenVariable]:
    """Return the variables of data; of a Dataset only the coordinates and those in `asked`.

    A variable that cannot be read contains the reason instead of values. Raises UserError for data of another kind.
    """
    if hasattr(data, "to_dataset"):
        data = data.to_dataset(name=data.name or "data")
    if is_dataframe(data) and not hasattr(data, "iloc") and hasattr(data, "to_pandas"):
        data = data.to_pandas()
    if is_dataset(data):
        return list(_of_dataset(data, asked))
    if is_dataframe(data) and hasattr(data, "iloc"):
        return list(_of_dataframe(data))
    if isinstance(data, Mapping):
        return list(_of_arrays(data))
    raise UserError(
        f"data: {type(data).__name__} cannot be read; give an xarray Dataset, a pandas DataFrame, a dict of arrays, or "
        "the path of a file"
    )


def size_of(variables: list[GivenVariable]) -> int:
    """Return the size of the variables' arrays in bytes, as far as it is known."""
    sizes = (float(getattr(one.values, "nbytes", 0)) for one in variables)
    return sum(int(size) for size in sizes if math.isfinite(size))  # NaN for dask arrays of unknown shape


def _of_dataset(dataset: Any, asked: Asked) -> Iterator[GivenVariable]:
    from xarray import conventions

    from mpitrain.data import GivenVariable

    dataset = dataset.copy(deep=False)
    for name in dataset.variables:
        attributes, encoding = dataset[name].attrs, dataset[name].encoding
        _unpack_limits(attributes, encoding)
        if not isinstance(attributes.get("coordinates", ""), str):
            del attributes["coordinates"]
        dataset[name].encoding = {key: encoding[key] for key in _KEPT_ENCODING if key in encoding}
    variables, _ = conventions.encode_dataset_coordinates(dataset)
    needed = asked.among([_info(str(name), one) for name, one in variables.items()])
    for name, variable in variables.items():
        if name in dataset.coords or str(name) in needed:
            try:
                yield _encoded(str(name), variable)
            except (TypeError, ValueError, OverflowError) as error:
                reason = f"it holds {variable.dtype}, expected numbers ({one_line(str(error))})"
                yield GivenVariable(str(name), refused=reason)


def _info(name: str, variable: Any) -> VariableInfo:
    """Return the description of a variable without its values."""
    from mpitrain.data import VariableInfo
    from mpitrain.data.files.variable import plain_attributes

    is_date = getattr(variable.dtype, "kind", "") == "M" or _is_time(variable.dtype)
    attributes = {**plain_attributes(variable.attrs.items()), **({"units": "days since 1970-01-01"} if is_date else {})}
    return VariableInfo(name, tuple(map(str, variable.dims)), variable.shape, "<f8", attributes)


def _encoded(name: str, variable: Any) -> GivenVariable:
    """Return a variable, with times encoded as numbers. Raises TypeError, ValueError and OverflowError."""
    import numpy as np
    from xarray import conventions

    from mpitrain.data import GivenVariable

    dimensions = tuple(map(str, variable.dims))
    is_plain = isinstance(variable.dtype, np.dtype)
    if not is_plain or (variable.dtype.kind in "OSUT" and not _holds_dates(variable)):
        import pandas as pd

        column = pd.Series(variable.values.reshape(-1) if is_plain else variable.to_index())
        values, note, of_times = _values_of_column(column)
        return GivenVariable(name, values.reshape(variable.shape), dimensions, {**variable.attrs, **of_times}, note)
    if variable.dtype.kind in "mMO":
        given = {key: one for key, one in variable.attrs.items() if key not in _KEPT_ENCODING}
        variable = conventions.encode_cf_variable(variable._replace(attrs=given), name=name)
    if variable.dtype.kind not in _NUMBERS:
        raise TypeError("no numbers")
    return GivenVariable(name, variable.data, dimensions, variable.attrs)


def _holds_dates(variable: Any) -> bool:
    """Return whether objects are cftime dates, judged by the first of them."""
    first = variable[(slice(0, 1),) * variable.ndim].values.reshape(-1).tolist()
    return bool(first) and hasattr(first[0], "calendar")


def _unpack_limits(attributes: dict[str, Any], encoding: Mapping[str, Any]) -> None:
    """Replace valid limits given as packed integers, as in the CF conventions, by limits of the unpacked values."""
    import numpy as np

    found = {name: np.atleast_1d(attributes[name]) for name in _LIMITS if name in attributes}
    packing = [encoding.get("scale_factor"), encoding.get("add_offset")]
    if not found or packing == [None, None] or any(one.dtype.kind == "f" for one in found.values()):
        return
    scale, offset = (
        default if one is None else float(np.ravel(one)[0]) for one, default in zip(packing, (1.0, 0.0), strict=True)
    )
    is_unsigned = str(encoding.get("_Unsigned", attributes.get("_Unsigned"))).lower() == "true"
    ends: list[float | None] = [None, None]
    for name, packed in found.items():
        del attributes[name]  # dropped if it is text, which may be packed or not
        sides = _LIMITS[name]
        if packed.dtype.kind in "iu" and len(packed) == len(sides):
            wide = packed.astype(np.float64) + (2.0 ** (8 * packed.itemsize)) * (is_unsigned & (packed < 0))
            for side, limit in zip(sides, wide, strict=True):
                # Extended by half a packing step, because the unpacked limit is rounded.
                ends[side] = (float(limit) + side - 0.5) * scale + offset
    for name, end in zip(("valid_min", "valid_max"), ends if scale >= 0 else ends[::-1], strict=True):
        attributes.update({} if end is None else {name: end})


def _of_dataframe(table: Any) -> Iterator[GivenVariable]:
    from mpitrain.data import GivenVariable

    table = _with_index(table)
    names = [str(name) for name in table.columns]
    counts = Counter(names)
    for name in (name for name, count in counts.items() if count > 1):
        yield GivenVariable(name, refused=f"{counts[name]} columns have this name")
    for place, name in enumerate(names):
        if counts[name] == 1:
            try:
                values, note, of_times = _values_of_column(table.iloc[:, place])
                yield GivenVariable(name, values, None, of_times, note)
            except (TypeError, ValueError, OverflowError) as error:
                yield GivenVariable(name, refused=f"it holds {table.dtypes.iloc[place]}, expected numbers ({error})")


def _with_index(table: Any) -> Any:
    """Return the table with its index as columns if the index has names or is times; unnamed times become `time`."""
    index, taken = table.index, {str(name) for name in table.columns}
    levels = index.levels if hasattr(index, "levels") else [index]
    is_time = [_is_time(level.dtype) or (len(level) > 0 and _is_date(level[0])) for level in levels]
    if all(name is None for name in index.names) and not any(is_time):
        return table
    names: list[str] = []
    for number, (name, has_times) in enumerate(zip(index.names, is_time, strict=True)):
        default = "time" if has_times and "time" not in {*taken, *names} else f"level_{number}"
        names.append(default if name is None else str(name))
    duplicates = [name for name, count in Counter(names).items() if count > 1 or name in taken]
    if duplicates:
        raise UserError(f"data: {duplicates[0]!r} is both a column and in the index, or twice in the index; rename one")
    return table.reset_index(names=names)


def _is_time(dtype: Any) -> bool:
    return getattr(dtype, "kind", "") == "M" or str(dtype).startswith("period")


def _is_date(value: Any) -> bool:
    return hasattr(value, "year") and hasattr(value, "day")


def _values_of_column(column: Any) -> tuple[Any, str | None, dict[str, str]]:
    """Return a pandas Series as an array (N,) of numbers, times or text, a notice or None, and attributes of times.

    Raises TypeError, ValueError and OverflowError for other values.
    """
    import numpy as np

    if str(column.dtype) == "category":
        column = column.astype("float64" if column.dtype.categories.dtype.kind in _NUMBERS else object)
    if column.dtype == object:
        column = column.infer_objects()
    if str(column.dtype).startswith("period"):
        column = column.dt.to_timestamp()
    if zone := getattr(column.dtype, "tz", None) or getattr(getattr(column.dtype, "pyarrow_dtype", None), "tz", None):
        note = f"times with time zone {zone}: converted to UTC"
        return column.dt.tz_convert("UTC").dt.tz_localize(None).to_numpy(), note, {}
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in _NUMBERS + _TIMES:
        return column.to_numpy(), None, {}
    if column.dtype.kind in _TIMES:
        return column.to_numpy(dtype=f"{column.dtype.kind}8[ns]"), None, {}
    if column.dtype.kind in _NUMBERS:
        return column.to_numpy(dtype=np.float64, na_value=np.nan), None, {}
    if column.dtype.kind not in "OTSU":
        raise TypeError(f"such as {column.iloc[0]!r}" if len(column) else "nothing")
    return (*_values_of_objects(column.to_numpy(dtype=object), column.isna().to_numpy()),)


def _values_of_objects(values: Any, is_missing: Any) -> tuple[Any, str | None, dict[str, str]]:
    """Return Python objects (N,): cftime dates as days, booleans as numbers, and all others as text."""
    import numpy as np

    first = next((one for one, missing in zip(values, is_missing, strict=True) if not missing), None)
    if first is not None and hasattr(first, "calendar"):
        import cftime

        units, days = "days since 1970-01-01", np.full(len(values), np.nan)
        days[~is_missing] = cftime.date2num(values[~is_missing], units, calendar=first.calendar)
        return days, None, {"units": units, "calendar": first.calendar}
    if all(isinstance(one, bool | np.bool_) for one in values[~is_missing]):
        found = [np.nan if missing else float(one) for one, missing in zip(values, is_missing, strict=True)]
        return np.array(found), None, {}
    decoded = (one.decode("utf-8", "replace") if isinstance(one, bytes) else str(one) for one in values)
    texts = ["" if missing else one for one, missing in zip(decoded, is_missing, strict=True)]
    longest = max(map(len, texts), default=0)
    if 4 * longest * len(texts) > _MOST_TEXT_BYTES:
        raise ValueError(f"text of up to {longest} characters")
    return np.array(texts, f"U{max(1, longest)}"), None, {}


def _of_arrays(arrays: Mapping[Any, Any]) -> Iterator[GivenVariable]:
    from mpitrain.data import GivenVariable
    from mpitrain.data.files.absolute_time import unmasked

    found: dict[str, Any] = {}
    for name, given in arrays.items():
        try:
            found[str(name)] = unmasked(given.detach().cpu().numpy() if hasattr(given, "detach") else given)
        except (TypeError, ValueError, RuntimeError) as error:
            yield GivenVariable(str(name), refused=f"it cannot be read as an array ({one_line(str(error))})")
    lengths = {name: array.shape[:1] for name, array in found.items()}
    first = next(iter(lengths), "")
    other = next((name for name in lengths if lengths[name] != lengths[first]), "")
    if other:
        raise UserError(
            f"data: {first!r} has shape {found[first].shape}, {other!r} {found[other].shape}; give arrays with equal "
            "first dimensions"
        )
    for name, array in found.items():
        yield _of_array(name, array)


def _of_array(name: str, array: Any) -> GivenVariable:
    import numpy as np

    from mpitrain.data import GivenVariable

    if array.ndim == 0:
        return GivenVariable(
            name, refused="it is a single value without a dimension; give arrays with one value per sample"
        )
    if array.dtype.kind in "OSU" and array.ndim == 1:
        try:
            is_missing = np.array([_is_missing(one) for one in array], dtype=bool)
            values, note, of_times = _values_of_objects(array.astype(object), is_missing)
            return GivenVariable(name, values, None, of_times, note)
        except (TypeError, ValueError) as error:
            return GivenVariable(name, refused=f"it holds {array.dtype}, expected numbers ({error})")
    if array.dtype.kind not in _NUMBERS + _TIMES:
        return GivenVariable(name, refused=f"it holds {array.dtype}, expected numbers")
    return GivenVariable(name, array)


def _is_missing(one: Any) -> bool:
    """Return whether an object is None, NaN, NaT or pandas' NA (which has no truth value)."""
    try:
        return one is None or bool(one != one)
    except (TypeError, ValueError):
        return True
