"""Synthetic CICE history files, for runs without data and for tests that need a known relation.

The fields are computed in `mpitrain.synthetic.fields`; here they are written to NetCDF4 files, level by level, so that
many years need no more memory than a few levels.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.data.files.hdf5 import forgo_locks
from mpitrain.data.streaming.read_ahead import in_order
from mpitrain.durable_files import check_output, replacing, sync_file, sync_folder
from mpitrain.errors import DataError, reason_of, writing
from mpitrain.synthetic.fields import AICE_BIAS, AICE_WEIGHTS, MISSING_VALUE, Level, Pole, SyntheticOcean

MINIMUM_POINTS = 16  # along each side: with fewer, a pole may hold no ice at all

_TITLE = "Synthetic CICE history: made-up fields that obey a known relation, no observation and no model run"

# name: (units, long_name)
_GRID_ATTRIBUTES = {
    "ULAT": ("degrees", "U grid center latitude"),
    "ULON": ("degrees", "U grid center longitude"),
    "umask": ("1", "ocean mask of U grid, 1 is ocean"),
}
_HISTORY_ATTRIBUTES = {
    "aice_h": ("1", "ice area (aggregate)"),
    "Tair_h": ("C", "air temperature"),
    "Tsfc_h": ("C", "snow/ice surface temperature"),
    "sst_h": ("C", "sea surface temperature"),
    "sss_h": ("ppt", "sea surface salinity"),
    "hs_h": ("m", "grid cell mean snow thickness"),
    "hi_h": ("m", "grid cell mean ice thickness"),
    "sice_h": ("ppt", "bulk ice salinity"),
}


@dataclass(frozen=True)
class Storage:
    """Storage of history fields: chunks of (time, nj, ni), None for contiguous or default ones; deflate level 0-9."""

    chunks: tuple[int, int, int] | None = None
    compress: int = 0


@dataclass(frozen=True)
class SyntheticSummary:
    """What a file contains: clean samples and the mean squared noise of each pole (None without a sample)."""

    path: Path
    num_samples_north: int
    num_samples_south: int
    noise_mse_north: float | None
    noise_mse_south: float | None


def write_synthetic_history(
    path: Path,
    *,
    seed: int,
    num_latitudes: int = 160,
    num_longitudes: int = 240,
    num_times: int = 1,
) -> SyntheticSummary:
    """Write a NetCDF4 file of synthetic ice and ocean to `path`; on an error an existing file stays unchanged.

    Grids are (nj, ni) = (num_latitudes, num_longitudes), history fields (time, nj, ni), all float32; land is 1e30. The
    same arguments give the same values. The attributes `aice_weights` and `aice_bias` hold the relation of `aice_h`
    (sigmoid(w . x + b) of the seven inputs), `noise_mse_north` and `noise_mse_south` the mean squared error of that
    relation over all clean samples: except by chance, no model has a smaller error on samples outside of its training.

    Raises DataError for a seed outside 0 .. 2**63 - 1 or too few points, OutputError if the file cannot be written.
    """
    (summary,) = write_synthetic_histories(
        [path],
        seed=seed,
        num_latitudes=num_latitudes,
        num_longitudes=num_longitudes,
        num_times=num_times,
    )
    return summary


def write_synthetic_histories(
    paths: list[Path],
    *,
    seed: int,
    num_latitudes: int,
    num_longitudes: int,
    num_times: int,
    storage: Storage = Storage(),
) -> Iterator[SyntheticSummary]:
    """Write files of `num_times` levels each that follow one another in time; yield a summary after each file.

    Level t of file f is level f * num_times + t of a single file. Otherwise as `write_synthetic_history`.
    """
    _check_arguments(seed, num_latitudes, num_longitudes, num_times)
    _check_storage(storage, (num_times, num_latitudes, num_longitudes))
    ocean = SyntheticOcean(seed, num_latitudes, num_longitudes)
    for number, path in enumerate(paths):
        yield _replace_file(path, ocean, range(number * num_times, (number + 1) * num_times), storage)


def check_histories(paths: Iterable[Path], overwrite: bool) -> None:
    """Raise OutputError if a history must not be written to one of the paths (see `check_output`)."""
    for path in paths:
        with writing(path, "give another file"):
            check_output(path, _TITLE, overwrite=overwrite)


def write_history_fields(path: Path, fields: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write a history file with the given fields, (time, nj, ni) or (nj, ni), by name."""
    import netCDF4

    with netCDF4.Dataset(str(path), "w") as dataset:
        for name, length in zip(("time", "nj", "ni"), fields["aice_h"].shape, strict=True):
            dataset.createDimension(name, length)
        for name, values in fields.items():
            dataset.createVariable(name, "f4", ("time", "nj", "ni")[-values.ndim :])[:] = values


def read_noise_mse(path: Path, pole: Pole) -> float | None:
    """Return the mean squared noise of the clean samples of `pole`, or None if the file has no such attribute.

    Raises DataError for a file that cannot be read.
    """
    import netCDF4

    try:
        with netCDF4.Dataset(path) as dataset:
            value = getattr(dataset, f"noise_mse_{pole}", None)
    except OSError as error:
        reason = reason_of(error)
        raise DataError(f"{path}: cannot be read as NetCDF ({reason}); check the path and the file") from error
    # An attribute of that name from another program may have any type.
    return float(value) if isinstance(value, float | int) else None


def _check_arguments(seed: int, num_latitudes: int, num_longitudes: int, num_times: int) -> None:
    lowest = {
        "seed": (seed, 0),
        "num_latitudes": (num_latitudes, MINIMUM_POINTS),
        "num_longitudes": (num_longitudes, MINIMUM_POINTS),
        "num_times": (num_times, 1),
    }
    for name, (value, minimum) in lowest.items():
        if value < minimum:
            raise DataError(f"synthetic history file: {name}={value} is too small; give {minimum} or more")
    if seed >= 2**63:
        raise DataError(f"synthetic history file: seed={seed} does not fit the file; give less than 2**63")


def _check_storage(storage: Storage, shape: tuple[int, int, int]) -> None:
    if not 0 <= storage.compress <= 9:
        raise DataError(
            f"synthetic history file: compress={storage.compress} is not a level; give 0 (none) to 9 (smallest)"
        )
    chunks = storage.chunks
    if chunks is not None and not all(0 < length <= size for length, size in zip(chunks, shape, strict=True)):
        raise DataError(f"synthetic history file: chunks={chunks} do not fit (time, nj, ni) = {shape}; give 1 to these")


def _replace_file(path: Path, ocean: SyntheticOcean, times: range, storage: Storage) -> SyntheticSummary:
    """Write a temporary file next to `path`, then rename it: `path` is either complete or unchanged."""
    advice = "give a path in an existing folder that you may write to, on a disk with space left"
    with writing(path, advice, (OSError, RuntimeError)):  # RuntimeError: netCDF4 on a full disk
        with replacing(path) as temporary:
            summary = _write(temporary, path, ocean, times, storage)
            sync_file(temporary)
        sync_folder(path.parent)
    return summary


def _write(temporary: Path, path: Path, ocean: SyntheticOcean, times: range, storage: Storage) -> SyntheticSummary:
    forgo_locks()
    import netCDF4

    temporary.touch()  # its error is clearer than that of the library: no folder, no permission
    squares: dict[Pole, list[tuple[float, int]]] = {"north": [], "south": []}
    with netCDF4.Dataset(str(temporary), "w", format="NETCDF4") as dataset:
        dataset.set_auto_maskandscale(False)
        _define(dataset, ocean, times, storage)
        for place, level in enumerate(_levels(ocean, times)):
            for name, field in level.items():
                dataset[name][place] = field
            for pole, found in squares.items():
                found.append(ocean.squared_noise(level, pole))
        summary = _summary(path, squares)
        dataset.setncatts(_global_attributes(ocean.seed, summary))
    return summary


def _levels(ocean: SyntheticOcean, times: range) -> Iterator[Level]:
    """Yield the levels in order; threads compute a few at once, because numpy releases the interpreter lock."""
    ahead = min(4, os.cpu_count() or 1)
    if len(times) == 1:
        yield ocean.level(times[0])
        return
    with ThreadPoolExecutor(ahead) as pool:
        yield from in_order(pool, ocean.level, times, ahead)


def _summary(path: Path, squares: dict[Pole, list[tuple[float, int]]]) -> SyntheticSummary:
    totals = {
        pole: (sum(total for total, _ in found), sum(count for _, count in found)) for pole, found in squares.items()
    }
    noise_mse = {pole: total / count if count else None for pole, (total, count) in totals.items()}
    return SyntheticSummary(
        path=path,
        num_samples_north=totals["north"][1],
        num_samples_south=totals["south"][1],
        noise_mse_north=noise_mse["north"],
        noise_mse_south=noise_mse["south"],
    )


def _define(dataset: Any, ocean: SyntheticOcean, times: range, storage: Storage) -> None:
    """Create dimensions and variables, and write the coordinates and the mask."""
    dataset.setncatts({"title": _TITLE, "Conventions": "CF-1.8"})  # at the start, where `check_output` searches
    for name, size in zip(("time", "nj", "ni"), (len(times), *ocean.mask.shape), strict=True):
        dataset.createDimension(name, size)
    time = dataset.createVariable("time", "f8", ("time",))
    time.setncatts({"units": "days since 2000-01-01 00:00:00", "calendar": "noleap", "long_name": "model time"})
    time[:] = np.arange(times.start, times.stop, dtype=np.float64)
    grid = {"ULAT": ocean.latitude_deg, "ULON": ocean.longitude_deg, "umask": ocean.mask}
    for name, (units, long_name) in _GRID_ATTRIBUTES.items():
        variable = dataset.createVariable(name, "f4", ("nj", "ni"))
        variable.setncatts({"units": units, "long_name": long_name})
        variable[:] = grid[name]
    stored: dict[str, Any] = {"chunksizes": storage.chunks} if storage.chunks else {"contiguous": storage.compress == 0}
    if storage.compress:
        stored |= {"compression": "zlib", "complevel": storage.compress, "shuffle": True}
    for name, (units, long_name) in _HISTORY_ATTRIBUTES.items():
        variable = dataset.createVariable(name, "f4", ("time", "nj", "ni"), fill_value=MISSING_VALUE, **stored)
        variable.setncatts(
            {"units": units, "long_name": long_name, "coordinates": "ULON ULAT time", "missing_value": MISSING_VALUE}
        )


def _global_attributes(seed: int, summary: SyntheticSummary) -> dict[str, Any]:
    noise = {"noise_mse_north": summary.noise_mse_north, "noise_mse_south": summary.noise_mse_south}
    return {
        "synthetic_seed": np.int64(seed),
        "aice_weights": AICE_WEIGHTS,
        "aice_bias": AICE_BIAS,
        **{name: value for name, value in noise.items() if value is not None},
    }
