"""What the checksums of streamed files cost: the time in them, over that of reading without them.

    python tests/data/checksum_cost.py [ROUNDS]

Eight variables of each format; every point is a sample. Of all rounds, the least time of each chunk
counts, which other work on the machine changes least. (Reading with checksums and without in turn tells less: where
memory lies changes the time of either by 2 %.)
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

PROJECT = Path(__file__).resolve().parents[2]
NAMES = tuple(f"v{number}" for number in range(8))
SHAPE = (8, 360, 720)
MOST, ROUNDS = 0.02, 30
DIMENSIONS = ("time", "nj", "ni")


def values() -> Iterator[tuple[str, np.ndarray]]:
    """Waves with noise on them, as measured or computed fields have it."""
    noise = np.random.default_rng(1)
    waves = np.add.outer(np.sin(np.linspace(0, 6, SHAPE[1])), np.cos(np.linspace(0, 9, SHAPE[2])))
    for place, name in enumerate(NAMES):
        yield name, np.float32(10 * place + waves + 1e-3 * noise.standard_normal(SHAPE))


def write_netcdf(path: Path, kind: str, **storage: object) -> None:
    import netCDF4

    with netCDF4.Dataset(str(path), "w", format=kind) as file:
        for name, size in zip(DIMENSIONS, SHAPE, strict=True):
            file.createDimension(name, size)
        for name, found in values():
            file.createVariable(name, "f4", DIMENSIONS, **storage)[:] = found


def write_zarr(path: Path, compressors: object) -> None:
    import zarr

    group = zarr.open_group(str(path), mode="w")
    for name, found in values():
        options = {"dimension_names": DIMENSIONS, "chunks": (1, *SHAPE[1:]), "compressors": compressors}
        group.create_array(name, shape=SHAPE, dtype="f4", **options)[:] = found


def write_npz(path: Path) -> None:
    np.savez(path, **dict(values()))


BLOCKS = {"chunksizes": (1, *SHAPE[1:])}
FORMATS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "NetCDF-4": ("a.nc", lambda path: write_netcdf(path, "NETCDF4", contiguous=True)),
    "NetCDF-4 in blocks": ("b.nc", lambda path: write_netcdf(path, "NETCDF4", **BLOCKS)),
    "NetCDF-4, deflate": ("c.nc", lambda path: write_netcdf(path, "NETCDF4", zlib=True, complevel=1, **BLOCKS)),
    "NetCDF-3": ("d.nc", lambda path: write_netcdf(path, "NETCDF3_64BIT_OFFSET")),
    "Zarr": ("e.zarr", lambda path: write_zarr(path, None)),
    "Zarr, zstd": ("f.zarr", lambda path: write_zarr(path, "auto")),
    "npz": ("g.npz", write_npz),
}


class Watch:
    """Counts the seconds that checksums take, wherever they are made; a block that is copied for one counts too."""

    def __init__(self) -> None:
        self.seconds, self._is_inside = 0.0, False

    def around(self, method: Callable[..., None]) -> Callable[..., None]:
        def timed(*arguments: object) -> None:
            if self._is_inside:
                return method(*arguments)
            self._is_inside, started_s = True, time.perf_counter()
            method(*arguments)
            self._is_inside, self.seconds = False, self.seconds + time.perf_counter() - started_s
            return None

        return timed


def cost_of(path: Path, rounds: int) -> tuple[float, float]:
    """Return seconds of reading without checksums, and what they add to it, as a part of one."""
    from field_files import config_of

    from mpitrain.data.files.stored_sum import StoredSum
    from mpitrain.data.selection.opening import open_source
    from mpitrain.data.selection.settings import selection_of

    names = f"variables.input_variables=[{','.join(NAMES[:-1])}]", f"variables.output_variables=[{NAMES[-1]}]"
    source = open_source(selection_of(config_of(path, "domain.mask_mode=all", "data.streaming=true", *names)))
    least = np.full((2, len(source.chunks)), np.inf)
    watch, adds = Watch(), (StoredSum.add, StoredSum.add_values)
    StoredSum.add, StoredSum.add_values = map(watch.around, adds)
    try:
        for turn in range(rounds + 1):
            for number, chunk in enumerate(source.chunks):
                watch.seconds, started_s = 0.0, time.perf_counter()
                source.read_with_sum(chunk)
                both_s = time.perf_counter() - started_s
                if turn:
                    least[:, number] = np.minimum(least[:, number], (both_s - watch.seconds, watch.seconds))
    finally:
        StoredSum.add, StoredSum.add_values = adds
        source.close()
    without, of_sums = least.sum(axis=1)
    return float(without), float(of_sums / without)


def main(rounds: int) -> int:
    """Print a line a format; return 1 where one costs more than it may."""
    costs, gigabytes = [], len(NAMES) * np.prod(SHAPE) * 4 / 1e9
    for name, (file_name, write) in FORMATS.items():
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / file_name)
            without_s, cost = cost_of(Path(folder) / file_name, rounds)
        print(f"{name}: {gigabytes / without_s:.2f} GB/s without checksums, which add {100 * cost:+.2f} %", flush=True)
        costs.append(cost)
    return int(max(costs) > MOST)


if __name__ == "__main__":
    sys.path[:0] = [str(PROJECT), str(PROJECT / "tests"), str(PROJECT / "tests" / "data")]
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS))
