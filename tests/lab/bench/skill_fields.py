"""Fields of few times to compare default settings on: each field from the one before it, on data that nobody here made.

They come with Debian's `ferret-datasets` and `libncarg-data`, and with `iris-sample-data` from PyPI. The defaults were
chosen on the first six; the others were looked at once, after that.

T  times      J, I  rows and columns
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from skill_tables import FERRET, NCARG, iris_folder

Values = npt.NDArray[np.float64]
BEFORE, NOW = "before", "now"
MOST_POINTS = 1500
_LARGEST_VALID = 1e19


@dataclass(frozen=True)
class Series:
    """Fields (T, J, I), NaN where missing; those of months begin with January or not, which changes nothing here."""

    values: Values
    is_monthly: bool = False

    def pairs(self) -> tuple[Values, Values, npt.NDArray[np.int64]]:
        """Return each field's predecessor, the field (T - 1, J, I), both NaN where one is, and its month from 0."""
        before, now = self.values[:-1], self.values[1:]
        missing = np.isnan(before) | np.isnan(now)
        return np.where(missing, np.nan, before), np.where(missing, np.nan, now), (np.arange(len(now)) + 1) % 12


def of_file(path: Callable[[], Path], name: str, is_monthly: bool = False) -> Callable[[], Series]:
    """Return what reads the fields of a variable, of large grids every n-th row and column.

    It raises FileNotFoundError where the data is not installed.
    """

    def read() -> Series:
        import netCDF4

        with netCDF4.Dataset(path()) as file:
            values = np.ma.filled(file.variables[name][:].astype(np.float64), np.nan).squeeze()
        step = int(np.ceil(np.sqrt(values[0].size / MOST_POINTS)))
        thinned = values[:, ::step, ::step]
        return Series(np.where(np.abs(thinned) < _LARGEST_VALID, thinned, np.nan), is_monthly)

    return read


FIELDS: Mapping[str, Callable[[], Series]] = {
    "a1b": of_file(lambda: iris_folder() / "A1B_north_america.nc", "air_temperature"),
    "navy_winds": of_file(lambda: FERRET / "monthly_navy_winds.cdf", "UWND", is_monthly=True),
    "e1": of_file(lambda: iris_folder() / "E1_north_america.nc", "air_temperature"),
    "ostia": of_file(lambda: iris_folder() / "ostia_monthly.nc", "surface_temperature", is_monthly=True),
    "sst": of_file(lambda: NCARG / "cdf" / "sstdata_netcdf.nc", "sst"),
    "mecca": of_file(lambda: NCARG / "cdf" / "meccatemp.cdf", "t"),
    "height": of_file(lambda: NCARG / "cdf" / "hgt.nc", "HGT"),
    "storm_pressure": of_file(lambda: NCARG / "cdf" / "Pstorm.cdf", "p"),
    "storm_wind": of_file(lambda: NCARG / "cdf" / "Ustorm.cdf", "u"),
    "storm_wind_aloft": of_file(lambda: NCARG / "cdf" / "V500storm.cdf", "v"),
    "surface_wind": of_file(lambda: NCARG / "nug" / "uas_rectilinear_grid_2D.nc", "uas"),
    "coads_pressure": of_file(lambda: FERRET / "coads_climatology.cdf", "SLP"),
}


def folds_of(num_pairs: int, num_folds: int) -> npt.NDArray[np.int64]:
    """Return the fold of each pair of fields: every one is held out once."""
    return np.asarray(np.random.default_rng(1).permutation(num_pairs) % num_folds)


def write_pairs(path: Path, before: Values, now: Values) -> None:
    """Write pairs of fields as a NetCDF file with places; nothing tells that one is the other's past."""
    import netCDF4

    with netCDF4.Dataset(path, "w") as file:
        for name, size in zip(("time", "lat", "lon"), now.shape, strict=True):
            file.createDimension(name, size)
            file.createVariable(name, "f8", (name,))[:] = np.arange(size)
        file["time"].units = "days since 2001-01-01"
        file["lat"].units, file["lon"].units = "degrees_north", "degrees_east"
        for name, values in ((BEFORE, before), (NOW, now)):
            file.createVariable(name, "f4", ("time", "lat", "lon"), fill_value=-1e30)[:] = np.ma.masked_invalid(values)


def baselines(
    known: tuple[Values, Values, npt.NDArray[np.int64]], unseen: tuple[Values, Values, npt.NDArray[np.int64]],
    is_monthly: bool,
) -> dict[str, Values]:  # fmt: skip
    """Return each baseline's answers (T, J, I) for the unseen pairs, learnt from the known ones."""
    before, now, month = known
    there = np.isfinite(now)
    count = np.maximum(there.sum(0), 1)
    everywhere = np.polyfit(before[there], now[there], 1)
    mean = np.where(there.any(0), np.nansum(now, 0) / count, now[there].mean())
    mean_before = np.where(there.any(0), np.nansum(before, 0) / count, before[there].mean())
    spread = np.nansum((before - mean_before) ** 2, 0)
    slope = np.nansum((before - mean_before) * (now - mean), 0) / np.where(spread > 0, spread, 1)
    found = {
        "persistence": unseen[0],
        "regression": everywhere[0] * unseen[0] + everywhere[1],
        "regression by place": mean + slope * (unseen[0] - mean_before),
        "climatology": np.broadcast_to(mean, unseen[0].shape),
    }
    if is_monthly:
        means = np.stack([_mean_of(now[month == one], mean) for one in range(12)])
        found["climatology by month"] = means[unseen[2]]
    return found


def _mean_of(fields: Values, otherwise: Values) -> Values:
    there = np.isfinite(fields).sum(0)
    return np.where(there > 0, np.nansum(fields, 0) / np.maximum(there, 1), otherwise)
