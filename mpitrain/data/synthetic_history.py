"""A synthetic CICE history file, for runs without data of their own and for tests that must know the answer.

The fields and the relation that they obey are made in `synthetic_fields`; here they become a NetCDF4 file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpitrain.data.synthetic_fields import AICE_BIAS, AICE_WEIGHTS, MISSING_VALUE, Pole, SyntheticFields, make_fields
from mpitrain.durable_files import write_durably
from mpitrain.errors import DataError, OutputError

MINIMUM_POINTS = 16  # along each side: with fewer, a pole may hold no ice at all

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
class SyntheticSummary:
    """What was written: clean samples and the mean squared noise of each pole (None without a sample)."""

    path: Path
    seed: int
    num_latitudes: int
    num_longitudes: int
    num_times: int
    num_samples_north: int
    num_samples_south: int
    noise_mse_north: float | None
    noise_mse_south: float | None


def write_synthetic_history(
    path: Path, *, seed: int, num_latitudes: int = 160, num_longitudes: int = 240, num_times: int = 1
) -> SyntheticSummary:
    """Write a NetCDF4 file of synthetic ice and ocean to exactly `path`, or leave all as it was.

    Grids are (nj, ni) = (num_latitudes, num_longitudes), history fields (time, nj, ni), all float32; land is 1e30. The
    same arguments give the same values. The attributes `aice_weights` and `aice_bias` hold the relation behind `aice_h`
    (sigmoid(w . x + b) of the seven inputs), `noise_mse_north` and `noise_mse_south` the error that the relation itself
    leaves over all clean samples: no model does better on samples that it has not seen, save by luck.

    Raises DataError for a seed outside 0 .. 2**63 - 1 or too few points, OutputError where the file cannot be written.
    """
    _check_arguments(seed, num_latitudes, num_longitudes, num_times)
    fields = make_fields(seed, num_latitudes, num_longitudes, num_times)
    summary = _summary(path, seed, fields)
    _replace_file(path, _netcdf_bytes(fields, summary))
    return summary


def read_noise_mse(path: Path, pole: Pole) -> float | None:
    """Return the mean squared noise of the clean samples of `pole`, or None when the file does not tell (real data).

    Raises DataError for a file that cannot be read.
    """
    import netCDF4

    try:
        with netCDF4.Dataset(path) as dataset:
            value = getattr(dataset, f"noise_mse_{pole}", None)
    except OSError as error:
        raise DataError(f"{path}: cannot be read as NetCDF ({_reason(error)}); check the path and the file") from error
    return None if value is None else float(value)


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


def _summary(path: Path, seed: int, fields: SyntheticFields) -> SyntheticSummary:
    num_times, num_latitudes, num_longitudes = fields.history["aice_h"].shape
    return SyntheticSummary(
        path=path,
        seed=seed,
        num_latitudes=num_latitudes,
        num_longitudes=num_longitudes,
        num_times=num_times,
        num_samples_north=int(fields.selected("north").sum()),
        num_samples_south=int(fields.selected("south").sum()),
        noise_mse_north=fields.noise_mse("north"),
        noise_mse_south=fields.noise_mse("south"),
    )


def _netcdf_bytes(fields: SyntheticFields, summary: SyntheticSummary) -> memoryview:
    """Return the whole file, made in memory: HDF5 then needs no file locks, and a full disk is a plain OSError."""
    import netCDF4

    dataset = netCDF4.Dataset("synthetic.nc", "w", format="NETCDF4", memory=1)
    dataset.setncatts(_global_attributes(summary))
    for name, size in zip(("time", "nj", "ni"), fields.history["aice_h"].shape, strict=True):
        dataset.createDimension(name, size)
    _add_time(dataset, summary.num_times)
    grid = {"ULAT": fields.latitude_deg, "ULON": fields.longitude_deg, "umask": fields.mask}
    for name, (units, long_name) in _GRID_ATTRIBUTES.items():
        variable = dataset.createVariable(name, "f4", ("nj", "ni"))
        variable.setncatts({"units": units, "long_name": long_name})
        variable[:] = grid[name]
    for name, (units, long_name) in _HISTORY_ATTRIBUTES.items():
        variable = dataset.createVariable(name, "f4", ("time", "nj", "ni"), fill_value=MISSING_VALUE)
        variable.setncatts(
            {"units": units, "long_name": long_name, "coordinates": "ULON ULAT time", "missing_value": MISSING_VALUE}
        )
        variable[:] = fields.history[name]
    content: memoryview = dataset.close()
    return content


def _add_time(dataset: Any, num_times: int) -> None:
    time = dataset.createVariable("time", "f8", ("time",))
    time.setncatts({"units": "days since 2000-01-01 00:00:00", "calendar": "noleap", "long_name": "model time"})
    time[:] = np.arange(num_times, dtype=np.float64)


def _global_attributes(summary: SyntheticSummary) -> dict[str, Any]:
    noise = {"noise_mse_north": summary.noise_mse_north, "noise_mse_south": summary.noise_mse_south}
    return {
        "title": "Synthetic CICE history: made-up fields that obey a known relation, no observation and no model run",
        "Conventions": "CF-1.8",
        "synthetic_seed": np.int64(summary.seed),
        "aice_weights": AICE_WEIGHTS,
        "aice_bias": AICE_BIAS,
        **{name: value for name, value in noise.items() if value is not None},
    }


def _replace_file(path: Path, content: memoryview) -> None:
    try:
        write_durably(path, content)
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be written ({_reason(error)}); give a path in an existing folder that you may write to"
        ) from error


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
