"""Data files that somebody made to deceive: small ones that claim much, names for a terminal, links, odd metadata."""

from __future__ import annotations

import json
import os
import zipfile
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr

ESCAPES = "sst\x1b[31m\x07\nmpitrain: done"


def zarr_3(path: Path, codecs: list[dict] | None = None, chunk: bytes | None = None, **changed: object) -> Path:
    """Write a group with the array `x` (4, 4), with other metadata or another first chunk."""
    group = zarr.open_group(str(path), mode="w", zarr_format=3)
    array = group.create_array("x", shape=(4, 4), chunks=(4, 4), dtype="f4", dimension_names=("time", "ni"))
    array[:] = 1.0
    meta = json.loads((path / "x" / "zarr.json").read_text())
    meta |= changed
    if codecs is not None:
        meta["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}, *codecs]
    (path / "x" / "zarr.json").write_text(json.dumps(meta))
    if chunk is not None:
        (path / "x" / "c" / "0" / "0").write_bytes(chunk)
    return path


def zarr_2(path: Path, **attributes: object) -> Path:
    group = zarr.open_group(str(path), mode="w", zarr_format=2)
    group.create_array("x", shape=(4, 4), chunks=(4, 4), dtype="f4")[:] = 1.0
    (path / "x" / ".zattrs").write_text(json.dumps(attributes))
    return path


def npz_of_zeros(path: Path) -> Path:
    """1.5 MB that take 1.5 GB."""
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (3 * 2**27,)})
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("inputs.npy", "w", force_zip64=True) as member,
    ):
        member.write(header.getvalue())
        for _ in range(3 * 2**9):
            member.write(bytes(2**20))
    return path


def npz_that_claims(path: Path) -> Path:
    header = BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**11,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("inputs.npy", header.getvalue() + bytes(64))
    return path


def npz_of_objects(path: Path) -> Path:
    np.savez(path, inputs=np.array([{}], dtype=object), allow_pickle=True)
    return path


def parquet_of_one_value(path: Path) -> Path:
    """3 KB that take gigabytes."""
    part = pa.table({"x": pa.array(np.zeros(2**24), type=pa.float64())})
    with pq.ParquetWriter(path, part.schema, compression="zstd") as writer:
        for _ in range(10):
            writer.write_table(part, row_group_size=2**24)
    return path


def parquet_with_lists(path: Path) -> Path:
    pq.write_table(pa.table({"x": [[1.0], [2.0, 3.0]], "y": [1.0, 2.0]}), path)
    return path


def hdf5_chunk_larger_than_memory(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("inputs", shape=(4,), maxshape=(None,), chunks=(10**9 // 2,), dtype="f8")
    return path


def hdf5_bomb(path: Path) -> Path:
    """A chunk of 4 KB whose stream unpacks to 3 GB."""
    with h5py.File(path, "w") as file:
        data = file.create_dataset("inputs", shape=(1024,), chunks=(1024,), dtype="f4", compression="gzip")
        data.id.write_direct_chunk((0,), deflated_zeros(3 * 2**10))
    return path


def deflated_zeros(num_mib: int, wbits: int = 15) -> bytes:
    """Return a stream of so many MiB of zeros, whose checksum at its end is none: the memory is taken before."""
    stream = zlib.compressobj(9, wbits=wbits)
    begin = stream.compress(bytes(2**20)) + stream.flush(zlib.Z_FULL_FLUSH)
    piece = stream.compress(bytes(2**20)) + stream.flush(zlib.Z_FULL_FLUSH)
    return begin + piece * (num_mib - 1) + stream.flush()


def hdf5_references_that_are_integers(path: Path) -> Path:
    """h5py's own `dims` follows them into memory that is none."""
    with h5py.File(path, "w") as file:
        file["inputs"] = np.zeros((4, 2), "f4")
        file["inputs"].attrs["DIMENSION_LIST"] = np.array([123456789, 2], dtype="i8")
    return path


def netcdf_of_variable_length(path: Path) -> Path:
    with netCDF4.Dataset(path, "w") as file:
        file.createDimension("n", 3)
        ragged = file.createVariable("x", file.createVLType(np.float32, "ragged"), ("n",))
        for place in range(3):
            ragged[place] = np.arange(place + 1, dtype="f4")
    return path


def link_to_another_file(path: Path) -> Path:
    zarr_3(path)
    secret = path.parent / "secret"
    secret.write_bytes(np.arange(16, dtype="<f4").tobytes())
    chunk = path / "x" / "c" / "0" / "0"
    chunk.unlink()
    os.symlink(secret, chunk)
    return path


def nested(path: Path) -> Path:
    zarr_3(path)
    (path / "x" / "zarr.json").write_text("[" * 100_000 + "]" * 100_000)
    return path


def csv_of_many_columns(path: Path) -> Path:
    path.write_text("a" + ",b" * 400_000 + "\n" + "1" + ",1" * 400_000 + "\n")
    return path


def csv_with_a_name_twice(path: Path) -> Path:
    path.write_text("inputs,inputs\n1,2\n")
    return path


GZIP = [{"name": "gzip", "configuration": {"level": 5}}]
ZSTD = [{"name": "zstd", "configuration": {"level": 0, "checksum": False}}]
BZ2 = [{"name": "numcodecs.bz2", "configuration": {"level": 5}}]
FRAME_OF_64_GIB = b"\x28\xb5\x2f\xfd\xe0" + (2**36).to_bytes(8, "little") + b"\x01\x00\x00"
GRID_TOO_LARGE = {"name": "regular", "configuration": {"chunk_shape": [10**6, 10**6]}}
GRID_OF_ZERO = {"name": "regular", "configuration": {"chunk_shape": [0, 4]}}

# By name: the file's name, what writes it, and what the one line says; None where it is read without harm.
HOSTILE: dict[str, tuple[str, Callable[[Path], Path], str | None]] = {
    "npz of zeros": ("f.npz", npz_of_zeros, r"'inputs' is not read: it claims 1610612736 bytes in a file of \d{7}:"),
    "npz claims": ("f.npz", npz_that_claims, r"array 'inputs' claims 400000000000 bytes, the archive holds 192"),
    "npz objects": ("f.npz", npz_of_objects, "holds objects, which could run code"),
    "parquet of one value": ("f.parquet", parquet_of_one_value, r"is not read: it claims \d{10} bytes in a file of"),
    "parquet lists": ("f.parquet", parquet_with_lists, "'x' is not read: it holds list<"),
    "csv columns": ("f.csv", csv_of_many_columns, "its first line names 400001 columns or more"),
    "csv name twice": ("f.csv", csv_with_a_name_twice, "2 columns are called 'inputs'"),
    "hdf5 chunk": ("f.h5", hdf5_chunk_larger_than_memory, r"'inputs' is not read: it claims 4000000000 bytes"),
    "hdf5 bomb": ("f.h5", hdf5_bomb, r"'inputs' cannot be read \(a chunk"),
    "hdf5 references": ("f.h5", hdf5_references_that_are_integers, None),
    "netcdf variable length": ("f.nc", netcdf_of_variable_length, "'x' holds text, expected numbers"),
    "zarr shape": ("f.zarr", lambda path: zarr_3(path, shape=[10**9, 10**9]), "it claims 4000000000000000000 bytes"),
    "zarr chunk": ("f.zarr", lambda path: zarr_3(path, chunk_grid=GRID_TOO_LARGE), "it claims 4000000000000 bytes"),
    "zarr chunk of 0": ("f.zarr", lambda path: zarr_3(path, chunk_grid=GRID_OF_ZERO), "cannot be read|length of 0"),
    "zarr gzip": ("f.zarr", lambda path: zarr_3(path, GZIP, deflated_zeros(3 * 2**10, 31)), "unpacks to"),
    "zarr zstd": ("f.zarr", lambda path: zarr_3(path, ZSTD, FRAME_OF_64_GIB), "unpacks to 68719476736"),
    "zarr bz2": ("f.zarr", lambda path: zarr_3(path, BZ2), "'bz2' does not store the size of a chunk"),
    "zarr nested": ("f.zarr", nested, "cannot be read as Zarr"),
    "zarr link": ("f.zarr", link_to_another_file, r"'x/c/0/0' is a link to '.*secret', which is not inside the store"),
    "zarr names a number": ("f.zarr", lambda path: zarr_2(path, _ARRAY_DIMENSIONS=5), "_ARRAY_DIMENSIONS is 5"),
    "zarr names too few": ("f.zarr", lambda path: zarr_2(path, _ARRAY_DIMENSIONS=["t"]), "expected 2 names"),
    "zarr names of numbers": ("f.zarr", lambda path: zarr_2(path, _ARRAY_DIMENSIONS=[1, 2]), "expected 2 names"),
}
