"""Whole files of each kind that is read, changes to their bytes drawn by hypothesis, and a process that reads them."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as some

# Opens a file as a run does, and reads all of it; tells what became of it, and the most memory so far.
WORKER = """
import resource, sys, traceback
from pathlib import Path
from mpitrain.data.formats.open import opened
from mpitrain.errors import MpitrainError

def outcome(path):
    is_open = False
    try:
      with opened(path) as file:
        is_open = True
        for name, info in file.variables.items():
            texts = (name, *info.dimensions, *info.attributes, info.units, *file.refused.values())
            assert all(text.isprintable() for text in texts), texts
            assert len(info.dimensions) == len(info.shape), info
            if info.is_numeric and 0 not in info.shape:
                values = file.read_stored(name, tuple(slice(None) for _ in info.shape))
                assert values.shape == info.shape, (values.shape, info)
                assert values.dtype.kind in "fiub", values.dtype
        return "read"
    except MpitrainError as error:
        assert str(error).isprintable(), repr(str(error))
        return "opened, then refused" if is_open else "refused"

for line in sys.stdin:
    try:
        said = outcome(Path(line.strip()))
    except BaseException:
        said = "TRACEBACK " + " | ".join(traceback.format_exc().splitlines()[-3:])
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, said, flush=True)
"""
ENDLESS = "ended with a line, its library went round in circles"
KINDS = ("classic.nc", "cdf5.nc", "netcdf4.nc", "table.h5", "table.npz", "table.pt", "table.csv", "table.parquet",
         "two.zarr", "three.zarr")  # fmt: skip
# Numbers and texts that a reader may take at their word.
_TOKENS = (b"0", b"-1", b"1e9", b"9999999999999999999", b"null", b"[]", b"{}", b'"x"', b"[[[[[[[[[[", b"\xff" * 8,
           b"\x00" * 8, b"\x7f\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x1b[31m", b"NaN", b"<f8", b"|O")  # fmt: skip


@dataclass(frozen=True)
class Change:
    """What is done to the bytes at a place, which is a share of their number: `kind` and its argument."""

    place: float
    kind: str
    content: bytes

    def apply(self, content: bytes) -> bytes:
        """Return the changed bytes."""
        start = int(self.place * len(content))
        if self.kind == "cut":
            return content[:start]
        if self.kind == "remove":
            return content[:start] + content[start + len(self.content) :]
        if self.kind == "insert":
            return content[:start] + self.content + content[start:]
        return content[:start] + self.content + content[start + len(self.content) :]


_CONTENT = some.one_of(some.binary(min_size=1, max_size=8), some.sampled_from(_TOKENS))
# Most of what a reader must understand lies at the beginning, and in archives and Parquet at the end.
_PLACE = some.one_of(some.floats(0, 1), some.floats(0, 0.1), some.floats(0.9, 1))
CHANGES = some.lists(
    some.builds(Change, _PLACE, some.sampled_from(["replace"] * 30 + ["insert", "remove", "cut"]), _CONTENT),
    min_size=1, max_size=4,
)  # fmt: skip


def write_seeds(folder: Path) -> None:
    """Write one whole, small file of each kind, so that a change hits what its reader must understand."""
    import h5py
    import netCDF4
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.parquet
    import torch
    import zarr

    values = np.linspace(-1, 1, 144, dtype="f4").reshape(3, 6, 8)
    for kind, form in (("classic.nc", "NETCDF3_CLASSIC"), ("cdf5.nc", "NETCDF3_64BIT_DATA"), ("netcdf4.nc", "NETCDF4")):
        with netCDF4.Dataset(folder / kind, "w", format=form) as file:
            for name, size in (("time", None), ("nj", 6), ("ni", 8)):
                file.createDimension(name, size)
            for name in ("sst_h", "hi_h"):
                packed = {"zlib": True, "shuffle": True, "chunksizes": (1, 6, 8)} if form == "NETCDF4" else {}
                file.createVariable(name, "f4", ("time", "nj", "ni"), **packed)[:] = values
                file[name].units = "C"
    with h5py.File(folder / "table.h5", "w") as file:
        file["inputs"], file["x"] = values.reshape(24, 6), np.arange(24.0)
        file.create_dataset("targets", data=np.arange(24, dtype="f4"), chunks=(6,), compression="gzip")
        file.create_dataset("big", data=np.arange(2**13, dtype="f4"), compression="gzip", shuffle=True, fletcher32=True)
        file["x"].make_scale("s")
        file["targets"].dims[0].attach_scale(file["x"])
    np.savez_compressed(folder / "table.npz", inputs=values.reshape(24, 6), targets=np.arange(24.0))
    torch.save({"inputs": torch.from_numpy(values.reshape(24, 6)), "targets": torch.zeros(24)}, folder / "table.pt")
    table = pa.table({"inputs": np.arange(24.0), "targets": np.arange(24), "site": ["a"] * 24})
    pyarrow.csv.write_csv(table, folder / "table.csv")
    pyarrow.parquet.write_table(table, folder / "table.parquet")
    for kind, version in (("two.zarr", 2), ("three.zarr", 3)):
        group = zarr.open_group(str(folder / kind), mode="w", zarr_format=version)
        group.create_array("x", shape=(6, 8), chunks=(3, 8), dtype="f4")[:] = values[0]


class Reader:
    """The process that reads changed files, started again where one of them has ended it."""

    def __init__(self, folder: Path) -> None:
        """Write the whole files into `folder`; start the process with the first file."""
        self._folder, self._process = folder, None
        write_seeds(folder)

    def read(self, kind: str, changes: list[Change]) -> tuple[str, int, float]:
        """Return what became of a changed file, the most memory in bytes, and the seconds."""
        path, started_s = self._write(kind, changes), time.monotonic()
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        peak, _, said = self._process.stdout.readline().strip().partition(" ")
        if not said:
            _, words = self._process.communicate()
            code, self._process = self._process.returncode, None
            is_named = (code, words.count("\n")) == (2, 1) and f"{path}: damaged: its library" in words
            return ENDLESS if is_named else f"THE PROCESS DIED ({code})", 0, time.monotonic() - started_s
        return said, int(peak), time.monotonic() - started_s

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _write(self, kind: str, changes: list[Change]) -> Path:
        source, path = self._folder / kind, self._folder / f"changed-{kind}"
        if source.is_dir():
            shutil.rmtree(path, ignore_errors=True)
            shutil.copytree(source, path)
            files = sorted(one for one in path.rglob("*") if one.is_file())
            # Which of a store's files changes follows from the changes alone.
            changed = random.Random(json.dumps([repr(one) for one in changes])).choice(files)
        else:
            shutil.copy(source, path)
            changed = path
        content = changed.read_bytes()
        for change in changes:
            content = change.apply(content)
        changed.write_bytes(content)
        return path
