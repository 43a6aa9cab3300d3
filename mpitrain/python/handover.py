"""Data in memory as a file that every process of the node can read: in memory too, where there is room.

The file lies in /dev/shm, which the operating system keeps in memory, so that nothing is copied to a disk and the ranks
share one copy. Where half of its free space would not hold the data, the file lies beside the run folder instead. It is
removed after the command.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpitrain.cluster import read_place
from mpitrain.durable_files import PASSING_FOLDER
from mpitrain.errors import UserError
from mpitrain.python.left_behind import LeftBehind

_SHARED = Path("/dev/shm")  # noqa: S108  # a private folder is made in it
_KEPT_ENCODING = ("units", "calendar")  # of times; packing would lose digits of what was computed since
_LIMITS = {"valid_min": (0,), "valid_max": (1,), "valid_range": (0, 1)}  # low is 0, high is 1
_MOST_SHARE = 0.5


@contextmanager
def handed_over(data: Any, beside: Path, left: LeftBehind) -> Iterator[list[str] | None]:
    """Yield the files that hold `data` during the block; None of None. Raises UserError for a kind that is unknown.

    `left` removes them where this process is killed.
    """
    if data is None or _is_path(data):
        yield None if data is None else [os.fspath(data)]
    elif isinstance(data, Sequence) and all(map(_is_path, data)) and data:
        yield [os.fspath(one) for one in data]
    else:
        name = _file_name(data)
        with filled_folder(_size_of(data), beside, left, lambda folder: write(data, folder / name)) as folder:
            try:
                yield [str(folder / name)]
            except UserError as error:  # the user has never seen that file
                raise type(error)(*(line.replace(str(folder / name), "data") for line in error.args)) from error


@contextmanager
def filled_folder(
    num_bytes: int,
    beside: Path,
    left: LeftBehind,
    fill: Callable[[Path], None] = lambda folder: None,
    is_read_everywhere: bool = False,
) -> Iterator[Path]:
    """Yield a folder for so many bytes that `fill` has filled, in memory where there is room; remove it afterwards.

    Where this process is one of several ranks, one on each node fills it. With `is_read_everywhere` ranks on all nodes
    read what one rank writes there. Collective then.
    """
    if is_rank():
        from mpitrain.python.together import shared_folder

        with shared_folder(lambda: place_for(num_bytes, beside), beside, left, fill, is_read_everywhere) as folder:
            yield folder
        return
    folder = Path(tempfile.mkdtemp(prefix=PASSING_FOLDER, dir=place_for(num_bytes, beside)))
    left.folder(folder)
    try:
        fill(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_rank() -> bool:
    """Tell whether a launcher has started this process as one of several ranks."""
    return read_place(os.environ).world_size > 1


def write(data: Any, path: Path) -> None:
    """Write data in memory to a new file; dask's arrays are computed chunk by chunk."""
    if path.suffix == ".nc":
        _write_dataset(data if is_dataset(data) else data.to_dataset(name=data.name or "data"), path)
    else:
        _write_arrays(_columns_of(data) if is_dataframe(data) else data, path)


def is_dataset(data: Any) -> bool:
    """Tell whether data is an xarray Dataset."""
    return hasattr(data, "data_vars")


def is_dataframe(data: Any) -> bool:
    """Tell whether data is a pandas DataFrame."""
    return hasattr(data, "columns") and hasattr(data, "to_numpy")


def _file_name(data: Any) -> str:
    if is_dataset(data) or hasattr(data, "to_dataset"):
        return "dataset.nc"
    if is_dataframe(data):
        return "dataframe.npz"
    if isinstance(data, Mapping):
        return "arrays.npz"
    raise UserError(
        f"data: {type(data).__name__} cannot be read; give an xarray Dataset, a pandas DataFrame, a dict of arrays, or "
        "the path of a file"
    )


def _is_path(data: Any) -> bool:
    return isinstance(data, str | os.PathLike)


def _size_of(data: Any) -> int:
    if isinstance(data, Mapping) and not is_dataset(data):
        return sum(int(getattr(array, "nbytes", 0)) for array in data.values())
    size = getattr(data, "nbytes", None)
    return int(data.memory_usage(deep=False).sum() if size is None and hasattr(data, "memory_usage") else size or 0)


def place_for(num_bytes: int, beside: Path) -> Path:
    """Return a folder for so many bytes: in memory where half of its free space holds them, else beside the run."""
    can_share = _SHARED.is_dir() and os.access(_SHARED, os.W_OK)
    has_room = can_share and num_bytes <= _MOST_SHARE * shutil.disk_usage(_SHARED).free
    return _SHARED if has_room else beside.resolve().parent


def _write_dataset(dataset: Any, path: Path) -> None:
    kept = dataset.drop_vars([name for name in dataset.variables if not _is_readable(dataset[name])]).copy()
    for name in kept.variables:
        encoding = kept[name].encoding
        _unpack_limits(kept[name].attrs, encoding)
        kept[name].encoding = {key: encoding[key] for key in _KEPT_ENCODING if key in encoding}
    kept.to_netcdf(path, engine="netcdf4")


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


def _is_readable(variable: Any) -> bool:
    """Tell whether a variable holds numbers or times; text is not read."""
    if variable.dtype.kind != "O":
        return variable.dtype.kind in "biufmM"
    return variable.size > 0 and hasattr(variable.values.flat[0], "calendar")  # cftime's dates


def _columns_of(table: Any) -> dict[str, Any]:
    """Return the columns of a DataFrame, and those of its index that have names, as arrays (N,)."""
    if any(name is not None for name in table.index.names):
        table = table.reset_index()
    return {str(name): table[name].to_numpy() for name in table.columns}


def _write_arrays(arrays: Mapping[str, Any], path: Path) -> None:
    import numpy as np

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
    kept: dict[str, Any] = {name: one for name, one in found.items() if one.dtype.kind in "biufmM"}
    np.savez(path, **kept)
