"""Damaged data files by number: schedule N is always the same damage to the same file.

`python tests/lab/campaign/damaged_files.py FOLDER FIRST COUNT` tries them and prints how many ended in which way.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

KINDS = ("classic.nc", "offsets.nc", "cdf5.nc", "netcdf4.nc", "table.h5", "table.npz")
# What may become of a damaged file: it is refused in one line, or it is read.
EXPECTED = {"refused", "opened, then refused", "read"}

# Opens each file as a run does, and reads all of it; a traceback, or the end of this process, is a finding.
WORKER = """
import sys, traceback
from math import prod
from pathlib import Path
from mpitrain.data.formats.open import open_field_file
from mpitrain.errors import MpitrainError

def outcome(path):
    try:
        file = open_field_file(path)
    except MpitrainError as error:
        assert str(error).isprintable(), repr(str(error))
        return "refused"
    try:
        for name, info in file.variables.items():
            assert name.isprintable(), repr(name)
            if info.is_numeric and 0 < prod(info.shape) < 10**7:
                file.read_stored(name, tuple(slice(None) for _ in info.shape))
        return "read"
    except MpitrainError as error:
        assert str(error).isprintable(), repr(str(error))
        return "opened, then refused"
    finally:
        file.close()

for line in sys.stdin:
    try:
        said = outcome(Path(line.strip()))
    except BaseException:
        said = "TRACEBACK " + " | ".join(traceback.format_exc().splitlines()[-3:])
    print(said, flush=True)
"""


def write_whole_files(folder: Path) -> None:
    """Write one file of each kind, small, so that damage hits what the library must understand."""
    import h5py
    import netCDF4
    import numpy as np

    formats = ("NETCDF3_CLASSIC", "NETCDF3_64BIT_OFFSET", "NETCDF3_64BIT_DATA", "NETCDF4")
    values = np.linspace(-1, 1, 144, dtype="f4").reshape(3, 6, 8)
    for kind, form in zip(KINDS, formats, strict=False):
        with netCDF4.Dataset(folder / kind, "w", format=form) as file:
            for name, size in (("time", None), ("nj", 6), ("ni", 8)):
                file.createDimension(name, size)
            for number, name in enumerate(("sst_h", "hi_h", "Tair_h")):
                packed = (
                    {"zlib": True, "shuffle": True, "chunksizes": (1, 6, 8)} if form == "NETCDF4" and number else {}
                )
                file.createVariable(name, "f4", ("time", "nj", "ni"), **packed)[:] = values
                file[name].units = "C"
            file.createVariable("time", "f8", ("time",))[:] = [1, 2, 3]
    with h5py.File(folder / "table.h5", "w") as file:
        file["inputs"], file["x"] = values.reshape(24, 6), np.arange(24.0)
        file.create_dataset("targets", data=np.arange(24, dtype="f4"), chunks=(6,), compression="gzip")
        file["x"].make_scale("s")
        file["targets"].dims[0].attach_scale(file["x"])
    np.savez(folder / "table.npz", inputs=values.reshape(24, 6), targets=np.arange(24.0))


def damage(number: int, folder: Path) -> tuple[str, bytes]:
    """Return the kind and the content of damaged file `number`."""
    draw, kind = random.Random(number), KINDS[number % len(KINDS)]
    content = bytearray((folder / kind).read_bytes())
    if draw.random() < 0.15:
        return kind, bytes(content[: draw.randrange(len(content))])
    # Most of what a library must understand lies at the beginning.
    span = len(content) if draw.random() < 0.4 else min(len(content), 3000)
    for _ in range(1 if draw.random() < 0.4 else draw.randrange(2, 30)):
        position = draw.randrange(span)
        content[position] = draw.choice(
            [content[position] ^ 1 << draw.randrange(8), 0, 127, 128, 255, draw.randrange(256)]
        )
    return kind, bytes(content)


def try_files(folder: Path, numbers: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Yield each number with what became of its file."""
    write_whole_files(folder)
    worker = subprocess.Popen([sys.executable, "-c", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        for number in numbers:
            kind, content = damage(number, folder)
            path = folder / f"{number}-{kind}"
            path.write_bytes(content)
            worker.stdin.write(f"{path}\n")
            worker.stdin.flush()
            said = worker.stdout.readline().strip()
            path.unlink()
            yield number, said or f"THE PROCESS DIED ({worker.wait()})"
            if not said:
                return


def main(folder: Path, first: int, count: int) -> int:
    """Try `count` files from number `first`; print a table; return how many ended as none may."""
    table: Counter[tuple[str, str]] = Counter()
    findings = []
    numbers = list(range(first, first + count))
    while numbers:
        for number, said in try_files(folder, numbers):
            numbers = [other for other in numbers if other > number]
            table[KINDS[number % len(KINDS)], said if said in EXPECTED else "FINDING"] += 1
            if said not in EXPECTED:
                findings.append((number, said))
    for (kind, said), times in sorted(table.items()):
        print(f"{kind:12} {said:28} {times:6}")
    print(json.dumps({"tried": count, "findings": findings[:20]}))
    return len(findings)


if __name__ == "__main__":
    sys.exit(min(1, main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
