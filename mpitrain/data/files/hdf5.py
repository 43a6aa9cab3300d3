"""Reader of HDF5 files, based on h5py; datasets whose values are in other files are refused.

An HDF5 file can refer to data in other files: external storage, virtual datasets, external links. A file from an
untrusted source could read any file of the user this way, so these datasets are listed with the reason and never read.
"""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.blocks import Blocks, Lock, codes_of, open_blocks
from mpitrain.data.files.stored_sum import StoredSum
from mpitrain.data.files.variable import Slices, VariableInfo, Variables, plain_attributes, reason_too_large
from mpitrain.errors import DataError, one_line, reason_of

_MAGIC = b"\x89HDF\r\n\x1a\n"
_COPY = "; copy it into the file"
_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"


def is_hdf5(path: Path) -> bool:
    """Tell whether the file starts with the HDF5 signature."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def forgo_locks() -> None:
    """Disable HDF5 file locking, which fails on Lustre and NFS. Must be called before the library is loaded."""
    os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")


def open_hdf5(path: Path) -> Any:
    """Return an `h5py.File` opened for reading. Raises the exceptions of h5py."""
    forgo_locks()
    import h5py

    # No chunk cache: each chunk is read once, and the caches of all variables and files would add up to gigabytes.
    return h5py.File(path, "r", locking=False, rdcc_nbytes=0)


@contextmanager
def whole_file(path: Path, kind: str) -> Iterator[None]:
    """Raise DataError for any exception inside the block: the file is then not a complete file of its `kind`."""
    try:
        yield
    except Exception as error:  # the libraries raise exceptions of many types for a damaged file
        raise DataError(
            f"{path}: cannot be read as {kind} ({reason_of(error)}); is it a complete {kind} file?"
        ) from error


class VariableValues:
    """Reader of the values of one open file, which decompresses chunks itself if possible (see `Blocks`).

    `stored` are h5py datasets or netCDF4 variables, by name; the library is called inside the context `library()`.
    """

    def __init__(self, path: Path, stored: Mapping[str, Any], library: Lock) -> None:
        self._path, self._stored, self._library = path, stored, library
        self._blocks: dict[str, Blocks | None] = {}

    def read(self, name: str, slices: Slices, stored_sum: StoredSum) -> npt.NDArray[Any]:
        """Return a part of a variable as stored, and add it to `stored_sum`. Raises DataError if it cannot be read."""
        try:
            if name not in self._blocks:
                with self._library():
                    self._blocks[name] = open_blocks(self._stored[name])
            blocks = self._blocks[name]
            if blocks is not None and (found := blocks.read(slices, self._library, stored_sum)) is not None:
                return found
            with self._library():
                values = np.asarray(self._stored[name][slices])
            stored_sum.add_values(values)
            return values
        except Exception as error:
            raise DataError(
                f"{self._path}: variable '{name}' cannot be read ({reason_of(error)}); is the file complete?"
            ) from error


class Hdf5File:
    """One open HDF5 file."""

    def __init__(self, path: Path) -> None:
        """Open `path`. Raises DataError if it is not a complete HDF5 file."""
        self.path, self.stored_sum = path, StoredSum()
        with whole_file(path, "HDF5"):
            self._file = open_hdf5(path)
            datasets, self.refused = list_variables(self._file)
            self.variables = Variables((name, _describe(name, one)) for name, one in datasets.items())
        self._values = VariableValues(path, datasets, nullcontext)

    def read_stored(self, name: str, slices: Slices) -> npt.NDArray[Any]:
        """Return a part of a variable as stored. Raises DataError if it cannot be read."""
        return self._values.read(name, slices, self.stored_sum)

    def note_of(self, name: str) -> str | None:
        """See `FieldFile`."""
        return None

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def can_unpack(dataset: Any) -> bool:
    """Tell whether h5py has all filters of the dataset."""
    import h5py

    return all(map(h5py.h5z.filter_avail, codes_of(dataset)))


def list_variables(file: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the datasets in the file, by name, and the names that are refused, with the reason.

    Refused are links and datasets that refer to other files or have no values. Control characters in names are escaped.
    """
    import h5py

    datasets: dict[str, Any] = {}
    refused: dict[str, str] = {}
    soft_links: dict[str, str] = {}
    for path, link, dataset in _walk(file, "", set()):
        if isinstance(link, h5py.ExternalLink):
            refused[path] = f"an external link to '{one_line(link.filename)}'{_COPY}"
        elif isinstance(link, h5py.SoftLink):
            # A target is inside the file only if the walk through the file finds it too.
            whole = posixpath.join("/", posixpath.dirname(path), one_line(link.path))
            soft_links[path] = posixpath.normpath(whole).lstrip("/")
        elif reason := _why_refused(dataset):
            refused[path] = reason
        elif not bytes(dataset.attrs.get("NAME", b"")).startswith(_NO_VARIABLE):
            datasets[path] = dataset
    for name, target in soft_links.items():
        if target in datasets:
            datasets[name] = datasets[target]
        else:
            refused[name] = f"a link to '/{target}', which is not inside the file{_COPY}"
    return datasets, refused


def _walk(group: Any, above: str, seen: set[Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield path, link and dataset (None for soft and external links) of each link and dataset below a group."""
    import h5py

    seen.add(h5py.h5o.get_info(group.id).addr)
    for name in group:
        link, path = group.get(name, getlink=True), above + one_line(name)
        if isinstance(link, h5py.ExternalLink | h5py.SoftLink):
            yield path, link, None
        elif isinstance(item := group[name], h5py.Dataset):
            yield path, link, item
        elif isinstance(item, h5py.Group) and h5py.h5o.get_info(item.id).addr not in seen:
            yield from _walk(item, f"{path}/", seen)


def _why_refused(dataset: Any) -> str | None:
    """Return why a dataset is refused: its values are in other files, or do not exist. None if it can be read."""
    if dataset.external:
        return f"its values are in another file, '{one_line(str(dataset.external[0][0]))}' (external storage){_COPY}"
    if dataset.is_virtual:
        return f"its values are in other datasets or files (virtual dataset){_COPY}"
    if dataset.shape is None:
        return "it has no shape and no values (null dataspace); write its values"
    claimed = max(math.prod(dataset.shape), math.prod(dataset.chunks or ())) * dataset.dtype.itemsize
    return reason_too_large(claimed, dataset.file.id.get_filesize)


def _describe(name: str, dataset: Any) -> VariableInfo:
    shape = tuple(int(size) for size in dataset.shape or ())
    maximum = dataset.maxshape or ()
    return VariableInfo(
        name=name,
        dimensions=_dimension_names(dataset),
        shape=shape,
        dtype=dataset.dtype.str,
        attributes=plain_attributes((key, dataset.attrs[key]) for key in dataset.attrs if key not in _INTERNAL),
        chunk_shape=dataset.chunks,
        unlimited=frozenset(axis for axis, size in enumerate(maximum) if size is None),
    )


# References between datasets that define the dimensions; not attributes of the variable for a user.
_INTERNAL = ("DIMENSION_LIST", "REFERENCE_LIST", "CLASS", "NAME", "_Netcdf4Dimid", "_Netcdf4Coordinates")


def _dimension_names(dataset: Any) -> tuple[str, ...]:
    """Return the name of each dimension, "" if it has none (HDF5 dimension scales specification)."""
    attributes, num_axes = dataset.attrs, len(dataset.shape)
    if num_axes == 1 and attributes.get("CLASS") == b"DIMENSION_SCALE":
        return (one_line(posixpath.basename(dataset.name)),)  # a coordinate variable lies along its own dimension
    labels = np.atleast_1d(attributes.get("DIMENSION_LABELS", [""] * num_axes))
    scales = np.atleast_1d(attributes["DIMENSION_LIST"] if _has_references(attributes) else [()] * num_axes)
    if len(labels) != num_axes or len(scales) != num_axes:
        return ("",) * num_axes
    return tuple(
        _name_of_first(dataset.file, scale) or _plain_text(label) for label, scale in zip(labels, scales, strict=True)
    )


def _has_references(attributes: Any) -> bool:
    """Tell whether DIMENSION_LIST holds references: `h5py.Dataset.dims` reads invalid memory for other types."""
    import h5py

    if "DIMENSION_LIST" not in attributes:
        return False
    items = h5py.check_vlen_dtype(attributes.get_id("DIMENSION_LIST").dtype)
    return items is not None and h5py.check_ref_dtype(items) is h5py.Reference


def _name_of_first(file: Any, scales: Any) -> str:
    return one_line(posixpath.basename(file[scales[0]].name or "")) if len(scales) and scales[0] else ""


def _plain_text(label: Any) -> str:
    return one_line(
        label.decode("utf-8", "replace") if isinstance(label, bytes) else label if isinstance(label, str) else ""
    )
