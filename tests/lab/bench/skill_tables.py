"""Tables of numbers to compare default settings on: eight of real data, two made up.

The real ones come with scikit-learn, with Debian's `ferret-datasets` and `libncarg-data`, and with `iris-sample-data`
from PyPI. The defaults were chosen on the first five; the others were looked at once, after that.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

Columns = dict[str, npt.NDArray[np.float64]]
FERRET, NCARG = Path("/usr/share/ferret-vis/data"), Path("/usr/share/ncarg/data")
TARGET = "target"
MOST_ROWS = 100_000
_LARGEST_VALID = 1e19
_LARGEST_OF_STATIONS = 1e5


def diabetes() -> Columns:
    """442 patients of scikit-learn's data: a measure of the disease a year later."""
    from sklearn.datasets import load_diabetes

    found = load_diabetes()
    return {**dict(zip(found.feature_names, found.data.T, strict=True)), TARGET: found.target}


def sine_and_product() -> Columns:
    """y = sin(a) + b c + noise of deviation 0.1."""
    rng = np.random.default_rng(0)
    a, b, c = rng.uniform(-3, 3, (3, 5000))
    return {"a": a, "b": b, "c": c, TARGET: np.sin(a) + b * c + rng.normal(0, 0.1, 5000)}


def houses() -> Columns:
    """Made-up prices: skewed inputs, two towns on a coast, noise that grows with income, a ceiling."""
    rng, number = np.random.default_rng(0), 20_000
    income, age = rng.lognormal(1.2, 0.5, number), rng.uniform(1, 52, number).round()
    rooms, people = rng.lognormal(1.6, 0.3, number), rng.lognormal(7, 0.8, number)
    together, latitude = rng.lognormal(1, 0.3, number), rng.uniform(32, 42, number)
    longitude = -124 + (42 - latitude) * rng.uniform(0.3, 1.1, number)
    towns = 1.5 * np.exp(-((latitude - 37.7) ** 2 + (longitude + 122) ** 2) / 0.3)
    towns += 1.5 * np.exp(-((latitude - 34) ** 2 + (longitude + 118.3) ** 2) / 0.6)
    noise = rng.normal(0, 0.35, number) * income**0.4
    price = 0.45 * income + towns - 0.2 * np.log(together) * income**0.5 + 0.004 * age + noise
    inputs = {"income": income, "age": age, "rooms": rooms, "people": people, "together": together}
    return {**inputs, "latitude": latitude, "longitude": longitude, TARGET: np.minimum(5, price)}


def coads() -> Columns:
    """Sea surface temperature from the air above it, wind and latitude (COADS climatology)."""
    names = {"airt": "AIRT", "wspd": "WSPD", "uwnd": "UWND", "vwnd": "VWND", "slp": "SLP", TARGET: "SST"}
    read = _read(FERRET / "coads_climatology.cdf", "COADSY", *names.values())
    places = {"latitude": read["COADSY"][None, :, None], "month": np.arange(12.0)[:, None, None]}
    return _spread({**places, **{name: read[one] for name, one in names.items()}})


def stations() -> Columns:
    """Temperature at stations of North America, one day of reports, from place, hour, dew point, pressure and wind."""
    names = {"latitude": "lat", "longitude": "lon", "elevation": "elev", "dew_point": "TD", "pressure": "PSL"}
    names |= {"speed": "SPD", TARGET: "T"}
    read = _read(NCARG / "cdf" / "950318_sao.cdf", *names.values())
    found = {name: np.where(np.abs(read[one]) > _LARGEST_OF_STATIONS, np.nan, read[one]) for name, one in names.items()}
    return _spread({**found, "hour": np.arange(24.0)[None, :]})


def levitus() -> Columns:
    """Temperature of the ocean from depth, latitude and longitude (Levitus climatology)."""
    read = _read(FERRET / "levitus_climatology.cdf", "ZAXLEVITR", "YAXLEVITR", "XAXLEVITR", "TEMP")
    depth, latitude, longitude = (read[f"{axis}AXLEVITR"] for axis in "ZYX")
    return _on_grid(read["TEMP"], depth=depth, latitude=latitude, longitude=longitude)


def navy_winds() -> Columns:
    """Eastward wind from the northward one, month and place (monthly Navy winds, 11 years)."""
    read = _read(FERRET / "monthly_navy_winds.cdf", "FNOCY", "FNOCX", "UWND", "VWND")
    months = np.arange(len(read["UWND"])) % 12.0
    found = _on_grid(read["UWND"], month=months, latitude=read["FNOCY"], longitude=read["FNOCX"])
    return {**found, "northward": read["VWND"].ravel()}


def esku() -> Columns:
    """Latent heat flux from wind, temperatures, humidity, clouds and pressure (ESKU heat budget)."""
    names = {"wind": "SPD", "sst": "SST", "sat": "SAT", "humidity": "AH", "clouds": "CLD", "pressure": "SLP"}
    read = _read(FERRET / "esku_heat_budget.cdf", *names.values(), "FLH")
    return _spread({**{name: read[one] for name, one in names.items()}, TARGET: read["FLH"]})


def icon() -> Columns:
    """Long-wave radiation at the top of the atmosphere from surface and clouds, on ICON's triangles."""
    names = ("cosmu0", "ts", "alb", "clt", "prw", "cllvi", "clivi", "hfls")
    read = _read(NCARG / "nug" / "atm_phy_mag0004_1985.nc", *names, "rlnt")
    return _spread({**{name: read[name] for name in names}, TARGET: read["rlnt"]})


def a1b() -> Columns:
    """Air temperature of North America from year and place (scenario A1B, 240 years)."""
    read = _read(iris_folder() / "A1B_north_america.nc", "latitude", "longitude", "air_temperature")
    years = np.arange(float(len(read["air_temperature"])))
    return _on_grid(read["air_temperature"], year=years, latitude=read["latitude"], longitude=read["longitude"])


TABLES: Mapping[str, Callable[[], Columns]] = {
    table.__name__: table
    for table in (diabetes, sine_and_product, houses, coads, stations, levitus, navy_winds, esku, icon, a1b)
}


def iris_folder() -> Path:
    """Where `iris-sample-data` lies. Raises FileNotFoundError."""
    found = importlib.util.find_spec("iris_sample_data")
    if found is None or found.origin is None:
        raise FileNotFoundError("iris_sample_data: pip install iris-sample-data")
    return Path(found.origin).parent / "sample_data"


def write_table(name: str, folder: Path) -> tuple[Path, Path]:
    """Write four fifths of a table's rows to train on and the others to test on, at most MOST_ROWS in all, drawn once.

    Rows with a missing value are left out. Raises FileNotFoundError where the data is not installed.
    """
    columns = TABLES[name]()
    good = np.all([np.isfinite(one) & (np.abs(one) < _LARGEST_VALID) for one in columns.values()], axis=0)
    rows = np.random.default_rng(1).permutation(np.flatnonzero(good))[:MOST_ROWS]
    paths = folder / f"{name}.npz", folder / f"{name}_test.npz"
    num_test = len(rows) // 5
    for path, chosen in zip(paths, (rows[num_test:], rows[:num_test]), strict=True):
        np.savez(path, **{one: values[chosen].astype(np.float32) for one, values in columns.items()})
    return paths


def _read(path: Path, *names: str) -> Columns:
    import netCDF4

    with netCDF4.Dataset(path) as file:
        values = {name: np.ma.filled(file.variables[name][:].astype(np.float64), np.nan) for name in names}
    return {name: np.asarray(one, dtype=np.float64) for name, one in values.items()}


def _on_grid(target: npt.NDArray[np.float64], **axes: npt.NDArray[np.float64]) -> Columns:
    grids = np.meshgrid(*axes.values(), indexing="ij")
    return _spread({**dict(zip(axes, grids, strict=True)), TARGET: target})


def _spread(columns: Columns) -> Columns:
    """Return columns of one length from arrays that broadcast together."""
    whole = np.broadcast_arrays(*columns.values())
    return {name: one.ravel() for name, one in zip(columns, whole, strict=True)}
