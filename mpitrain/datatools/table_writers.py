"""Writers of tables with an unknown number of samples: HDF5, and `.npz` assembled from two temporary files.

N  samples      F  inputs      O  targets
"""

from __future__ import annotations

import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.hdf5 import forgo_locks
from mpitrain.data.selection.table import INPUTS, TARGETS

Array = npt.NDArray[Any]
Names = tuple[str, ...]
# Rows of an HDF5 chunk of points: large enough for fast reading, small enough to be divided among virtual ranks.
BLOCK_ROWS = 65_536
_LARGEST_BLOCK_BYTES = 4 * 2**20
_COPY_BYTES = 4 * 2**20
# Upper bound of what HDF5 writes in addition to the rows.
_SPARE_BYTES = 64 * 2**10


class TableWriter(Protocol):
    """Protocol of a writer that receives samples in order; `num_samples` is their number so far.

    Methods raise OSError, RuntimeError or ValueError if writing fails.
    """

    num_samples: int

    def append(self, inputs: Array, targets: Array) -> None:
        """Append samples (n, F, ...) and (n, O, ...)."""

    def close(self) -> None:
        """Write pending samples and close the file."""

    def give_up(self) -> None:
        """Close the file without completing it; raises nothing."""


class Hdf5TableWriter:
    """HDF5 with `inputs` and `targets` in chunks of 65536 rows (fields: about 4 MB), and the names as attributes."""

    def __init__(self, path: Path, input_names: Names, target_names: Names, gzip: int = 0) -> None:
        forgo_locks()
        import h5py

        self.num_samples = 0
        self._path = path
        path.touch()  # raises a clear OSError (no folder, no permission), unlike HDF5
        _reserve(path, _SPARE_BYTES)
        self._file = h5py.File(path, "w")
        self._names = {INPUTS: input_names, TARGETS: target_names}
        self._options: dict[str, Any] = (
            {"compression": "gzip", "compression_opts": gzip, "shuffle": True} if gzip else {}
        )
        self._pending: dict[str, list[Array]] = {INPUTS: [], TARGETS: []}
        self._num_written = 0

    def append(self, inputs: Array, targets: Array) -> None:
        """See `TableWriter.append`."""
        for name, rows in ((INPUTS, inputs), (TARGETS, targets)):
            self._pending[name].append(rows)
        self.num_samples += len(inputs)
        # Only whole chunks: a chunk that is written in pieces would be compressed again for each piece.
        block_rows = max(_block_rows(rows) for rows in (inputs, targets))
        num_blocks = (self.num_samples - self._num_written) // block_rows
        if num_blocks:
            self._write_until(self._num_written + num_blocks * block_rows)

    def close(self) -> None:
        """See `TableWriter.close`."""
        if self.num_samples > self._num_written or INPUTS not in self._file:
            self._write_until(self.num_samples)
        self._file.flush()
        num_bytes = self._file.id.get_filesize()
        self._file.close()
        os.truncate(self._path, num_bytes)

    def _create(self, name: str, like: Array) -> None:
        # The first write is smaller than a chunk only if it is also the last one.
        rows = max(1, min(len(like), _block_rows(like)))
        dataset = self._file.create_dataset(
            name, (0, *like.shape[1:]), like.dtype, maxshape=(None, *like.shape[1:]), chunks=(rows, *like.shape[1:]),
            **self._options,
        )  # fmt: skip
        dataset.attrs["names"] = list(self._names[name])

    def _write_until(self, stop: int) -> None:
        count = stop - self._num_written
        num_bytes = sum(part.nbytes for parts in self._pending.values() for part in parts)
        _reserve(self._path, self._file.id.get_filesize() + num_bytes + _SPARE_BYTES)
        for name, parts in self._pending.items():
            rows = np.concatenate(parts) if len(parts) > 1 else parts[0]
            if name not in self._file:
                self._create(name, rows[:count])
            dataset = self._file[name]
            dataset.resize(stop, axis=0)
            dataset[self._num_written :] = rows[:count]
            self._pending[name] = [rows[count:]]
        self._num_written = stop

    def give_up(self) -> None:
        """See `TableWriter.give_up`."""
        with suppress(OSError, RuntimeError, ValueError):
            self._file.close()


def _reserve(path: Path, num_bytes: int) -> None:
    """Allocate disk space so that the file can grow to `num_bytes`. Raises OSError if the disk is full.

    After a failed write HDF5 can close neither this file nor, later, others.
    """
    if hasattr(os, "posix_fallocate"):  # not on macOS
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.posix_fallocate(descriptor, 0, num_bytes)
        finally:
            os.close(descriptor)


def _block_rows(like: Array) -> int:
    row_bytes = max(1, like.dtype.itemsize * int(np.prod(like.shape[1:])))
    return BLOCK_ROWS if like.ndim == 2 else max(1, _LARGEST_BLOCK_BYTES // row_bytes)


class NpzTableWriter:
    """Uncompressed `.npz`: rows are written to one temporary file per array; `close` assembles the archive."""

    def __init__(self, path: Path, input_names: Names, target_names: Names) -> None:
        self.num_samples = 0
        self._path = path
        self._names = {"input_names": np.array(input_names), "target_names": np.array(target_names)}
        self._rows = {name: path.with_name(f"{path.name}.{name}") for name in (INPUTS, TARGETS)}
        self._files = {name: rows.open("wb") for name, rows in self._rows.items()}
        self._like: dict[str, Array] = {}

    def append(self, inputs: Array, targets: Array) -> None:
        """See `TableWriter.append`."""
        for name, rows in ((INPUTS, inputs), (TARGETS, targets)):
            self._like.setdefault(name, rows[:0])
            self._files[name].write(np.ascontiguousarray(rows).data)
        self.num_samples += len(inputs)

    def close(self) -> None:
        """See `TableWriter.close`."""
        for file in self._files.values():
            file.close()
        with zipfile.ZipFile(self._path, "w", zipfile.ZIP_STORED) as archive:
            for name, rows in self._rows.items():
                self._add(archive, name, rows)
            for name, names in self._names.items():
                with archive.open(f"{name}.npy", "w") as member:
                    np.lib.format.write_array(member, names, allow_pickle=False)

    def give_up(self) -> None:
        """See `TableWriter.give_up`."""
        for file in self._files.values():
            with suppress(OSError):
                file.close()

    def _add(self, archive: zipfile.ZipFile, name: str, rows: Path) -> None:
        like = self._like[name]
        header = {
            "descr": np.lib.format.dtype_to_descr(like.dtype),
            "fortran_order": False,
            "shape": (self.num_samples, *like.shape[1:]),
        }
        with archive.open(f"{name}.npy", "w", force_zip64=True) as member, rows.open("rb") as file:
            np.lib.format.write_array_header_2_0(member, header)
            while block := file.read(_COPY_BYTES):
                member.write(block)
        rows.unlink()
