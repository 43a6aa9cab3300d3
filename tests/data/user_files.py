"""Files as users bring them, each with a relation of known noise: y = f(x) + noise of a known variance.

T  time levels      L  levels      J, I  rows and columns      N  cells
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from field_files import write_netcdf

SIGMA = 0.3


@dataclass(frozen=True)
class UserCase:
    """Files to train on, one of later times to predict for, the settings, and the noise of each target."""

    files: tuple[Path, ...]
    later: Path
    settings: tuple[str, ...]
    target: str
    noise_mse: float


def smooth(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Numbers of mean 0 and standard deviation 1, exactly so: the noise of a file is what is stated. float64."""
    numbers = rng.standard_normal(shape)
    return (numbers - numbers.mean()) / numbers.std()


def era5_old(folder: Path, seed: int = 2) -> UserCase:
    """ERA5 as it was: packed int16, hours since 1900, latitudes from north to south; a flux from wind and warmth."""
    return _in_two_files(folder, "era5_old", _era5_old_file, ["u10", "v10", "t2m"], "slhf", seed, (2e5 * SIGMA) ** 2)


def _era5_old_file(path: Path, rng: np.random.Generator, first_time: int, num_times: int) -> None:
    shape = (num_times, 18, 24)
    u10, v10, t2m = 5 * smooth(rng, *shape), 4 * smooth(rng, *shape), 280 + 8 * smooth(rng, *shape)
    slhf = -1.5e6 - 2e5 * (u10 / 5 + 0.5 * v10 / 4 - (t2m - 280) / 8 + SIGMA * smooth(rng, *shape))
    grid = ("time", "latitude", "longitude")
    fields = {"u10": u10, "v10": v10, "t2m": t2m, "slhf": slhf}
    units = {"u10": "m s**-1", "v10": "m s**-1", "t2m": "K", "slhf": "J m**-2"}
    packed, attributes = {}, {}
    for name, values in fields.items():
        packed[name], attributes[name] = pack(values)
        attributes[name] |= {"units": units[name]}
    attributes |= {
        "time": {"units": "hours since 1900-01-01 00:00:00.0", "calendar": "gregorian"},
        "latitude": {"units": "degrees_north"},
        "longitude": {"units": "degrees_east"},
    }
    places = {
        "time": (("time",), (963000 + 6 * (first_time + np.arange(num_times))).astype("i4")),
        "latitude": (("latitude",), np.linspace(80, -80, shape[1]).astype("f4")),
        "longitude": (("longitude",), np.linspace(0, 345, shape[2]).astype("f4")),
    }
    write_netcdf(path, places | {name: (grid, values) for name, values in packed.items()}, "", None, **attributes)


def pack(values: np.ndarray) -> tuple[np.ndarray, dict]:
    """Return int16 and its attributes; NaN becomes the fill value."""
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    scale, offset = (high - low) / 65000, (high + low) / 2
    stored = np.where(np.isnan(values), -32767, np.round((values - offset) / scale)).astype("i2")
    return stored, {"scale_factor": scale, "add_offset": offset, "_FillValue": np.int16(-32767)}


def nemo(folder: Path, seed: int = 1) -> UserCase:
    """NEMO in three dimensions, packed, with fill values under the ground; a flux from two levels of the water."""
    names = ["'thetao[deptht=0..20]'"]
    return _in_two_files(folder, "nemo", _nemo_file, names, "sohefldo", seed, (40 * SIGMA) ** 2)


def _nemo_file(path: Path, rng: np.random.Generator, first_time: int, num_times: int) -> None:
    depths, rows, columns = np.array([0.494, 9.573, 47.37, 130.7], dtype="f4"), 16, 20
    thetao = 8 + 3 * smooth(rng, num_times, len(depths), rows, columns)
    flux = 40 * ((thetao[:, 0] - thetao[:, 1]) / 3 + SIGMA * smooth(rng, num_times, rows, columns))
    thetao[:, :, :2, :3] = flux[:, :2, :3] = np.nan
    packed, attributes = pack(thetao)
    latitude, longitude = np.meshgrid(np.linspace(-60, 60, rows), np.linspace(-180, 162, columns), indexing="ij")
    grid, time = ("time_counter", "y", "x"), 3600.0 * 24 * (first_time + np.arange(num_times))
    variables = {
        "nav_lat": (("y", "x"), latitude.astype("f4")),
        "nav_lon": (("y", "x"), longitude.astype("f4")),
        "deptht": (("deptht",), depths),
        "time_counter": (("time_counter",), time),
        "thetao": (("time_counter", "deptht", "y", "x"), packed),
        "sohefldo": (grid, np.where(np.isnan(flux), 1e20, flux).astype("f4")),
    }
    write_netcdf(
        path, variables, "time_counter", {"thetao": (1, len(depths), rows, columns)},
        thetao={**attributes, "units": "degC", "coordinates": "time_counter deptht nav_lat nav_lon"},
        sohefldo={"_FillValue": np.float32(1e20), "units": "W/m2", "coordinates": "nav_lat nav_lon"},
        time_counter={"units": "seconds since 1900-01-01 00:00:00", "calendar": "gregorian"},
        deptht={"units": "m", "axis": "Z", "positive": "down"},
    )  # fmt: skip


def era5_new(folder: Path, seed: int = 3) -> UserCase:
    """ERA5 as it is: valid_time, a dimension number of one member, pressure levels, float32."""
    names = ["'sqrt(u[pressure_level=850]**2 + v[pressure_level=850]**2)'", "'t[pressure_level=500, time-1]'"]
    return _in_two_files(folder, "era5_new", _era5_new_file, names, "tp", seed, (0.02 * SIGMA) ** 2)


def _era5_new_file(path: Path, rng: np.random.Generator, first_time: int, num_times: int) -> None:
    levels, rows, columns = np.array([500.0, 850.0]), 12, 25
    shape = (num_times, 2, rows, columns)
    u, v, t = 8 * smooth(rng, *shape), 8 * smooth(rng, *shape), 260 + 10 * smooth(rng, *shape)
    speed, before = np.hypot(u[:, 1], v[:, 1]), np.concatenate([t[:1, 0], t[:-1, 0]])
    tp = 0.05 + 0.02 * ((speed - 10) / 5 + (before - 260) / 10 + SIGMA * smooth(rng, num_times, rows, columns))
    grid = ("valid_time", "pressure_level", "latitude", "longitude")
    variables = {
        "valid_time": (("valid_time",), (1.6e9 + 21600 * (first_time + np.arange(num_times))).astype("i8")),
        "pressure_level": (("pressure_level",), levels),
        "latitude": (("latitude",), np.linspace(66, 0, rows)),
        "longitude": (("longitude",), np.linspace(-20, 28, columns)),
        **{name: (grid, values.astype("f4")) for name, values in (("u", u), ("v", v), ("t", t))},
        "tp": (("number", "valid_time", "latitude", "longitude"), tp[None].astype("f4")),
    }
    attributes = {name: {"units": units} for name, units in (("u", "m s**-1"), ("v", "m s**-1"), ("t", "K"))}
    write_netcdf(
        path, variables, "", None, **attributes, tp={"units": "m"},
        valid_time={"units": "seconds since 1970-01-01", "calendar": "proleptic_gregorian"},
        pressure_level={"units": "hPa", "standard_name": "air_pressure", "positive": "down"},
        latitude={"units": "degrees_north"}, longitude={"units": "degrees_east"},
    )  # fmt: skip


def fesom(folder: Path, seed: int = 4) -> UserCase:
    """FESOM: nodes of triangles, their places in the same file."""
    return _in_two_files(folder, "fesom", _fesom_file, ["temp", "salt"], "a_ice_flux", seed, (2 * SIGMA) ** 2)


def _fesom_file(path: Path, rng: np.random.Generator, first_time: int, num_times: int) -> None:
    nodes, places = 600, np.random.default_rng(5)
    temp, salt = smooth(rng, num_times, nodes), 34 + smooth(rng, num_times, nodes)
    flux = 2 * (temp - (salt - 34) + SIGMA * smooth(rng, num_times, nodes))
    grid = ("time", "nod2")
    variables = {
        "time": (("time",), 86400.0 * (first_time + np.arange(num_times))),
        "lon": (("nod2",), places.uniform(-180, 180, nodes)),
        "lat": (("nod2",), places.uniform(-80, 80, nodes)),
        **{name: (grid, one.astype("f4")) for name, one in (("temp", temp), ("salt", salt), ("a_ice_flux", flux))},
    }
    write_netcdf(
        path, variables, "", None, time={"units": "seconds since 1958-01-01"}, a_ice_flux={"units": "W m-2"},
        lon={"units": "degrees_east"}, lat={"units": "degrees_north"}, temp={"units": "degC"}, salt={"units": "psu"},
    )  # fmt: skip


def icon(folder: Path, seed: int = 6) -> UserCase:
    """ICON: triangles whose centres are in radians."""
    return _in_two_files(folder, "icon", _icon_file, ["ts", "huss"], "hfls", seed, (30 * SIGMA) ** 2)


def _icon_file(path: Path, rng: np.random.Generator, first_time: int, num_times: int) -> None:
    cells, places = 640, np.random.default_rng(7)
    ts, huss = 290 + 6 * smooth(rng, num_times, cells), 0.01 + 0.002 * smooth(rng, num_times, cells)
    flux = 100 + 30 * ((ts - 290) / 6 - (huss - 0.01) / 0.002 + SIGMA * smooth(rng, num_times, cells))
    fields = {
        name: (("time", "ncells"), one.astype("f4")) for name, one in (("ts", ts), ("huss", huss), ("hfls", flux))
    }
    variables = {
        "time": (("time",), first_time + np.arange(num_times, dtype="f8")),
        "clon": (("ncells",), places.uniform(-np.pi, np.pi, cells)),
        "clat": (("ncells",), np.arcsin(places.uniform(-1, 1, cells))),
        **fields,
    }
    of_cells = {"coordinates": "clat clon", "CDI_grid_type": "unstructured"}
    write_netcdf(
        path, variables, "", None, time={"units": "days since 2020-01-01", "calendar": "proleptic_gregorian"},
        clon={"units": "radian", "standard_name": "longitude"}, clat={"units": "radian", "standard_name": "latitude"},
        ts={"units": "K", **of_cells}, huss={"units": "kg kg-1", **of_cells}, hfls={"units": "W m-2", **of_cells},
    )  # fmt: skip


def columns(folder: Path, seed: int = 8) -> UserCase:
    """Profiles in and profiles out: what one level becomes depends on the levels around it."""
    names = ["'t[level=:]'"]
    return _in_two_files(folder, "columns", _columns_file, names, "'heating[level=:]'", seed, SIGMA**2)


def _columns_file(path: Path, rng: np.random.Generator, first_time: int, num_times: int) -> None:
    profiles, levels = 400 * num_times, 4
    t = 250 + 10 * smooth(rng, profiles, levels)
    step = np.diff((t - 250) / 10, axis=1, append=0.0)
    heating = step + SIGMA * smooth(rng, profiles, levels)
    grid = ("profile", "level")
    write_netcdf(path, {"t": (grid, t.astype("f4")), "heating": (grid, heating.astype("f4"))}, "", None,
                 t={"units": "K"}, heating={"units": "K/day"})  # fmt: skip


def hdf5_table(folder: Path, seed: int = 9) -> UserCase:
    """An HDF5 file of plain arrays, features and labels."""
    import h5py

    folder.mkdir(parents=True, exist_ok=True)
    rng, paths = np.random.default_rng(seed), (folder / "table_1.h5", folder / "table_2.h5")
    for path in paths:
        features = smooth(rng, 6000, 3)
        labels = 5 + 3 * (features @ [1.0, -0.5, 0.25] + SIGMA * smooth(rng, 6000))
        with h5py.File(path, "w") as file:
            file["features"], file["labels"] = features.astype("f4"), labels.astype("f4")
    names = ("variables.input_variables=['features[:,:]']", "variables.output_variables=[labels]")
    return UserCase(paths[:1], paths[1], names, "labels", (3 * SIGMA) ** 2)


def _plain_columns(rng: np.random.Generator, rows: int) -> dict[str, np.ndarray]:
    """Columns of a table: two predictors, what they make, and a column of words."""
    a, b = smooth(rng, rows), 10 + 2 * smooth(rng, rows)
    made = 100 + 20 * (a - 0.5 * (b - 10) / 2 + SIGMA * smooth(rng, rows))
    return {"albedo": a, "wind": b, "flux": made}


def csv(folder: Path, seed: int = 10) -> UserCase:
    """A CSV file, with a column of words that nobody asks for."""

    def write(path: Path, columns: dict[str, np.ndarray]) -> None:
        rows = zip(*columns.values(), strict=True)
        lines = [",".join([*columns, "site"]), *(",".join([*(f"{one:.9g}" for one in row), "north"]) for row in rows)]
        path.write_text("\n".join(lines) + "\n")

    return _two_tables(folder, "csv", write, seed)


def parquet(folder: Path, seed: int = 11) -> UserCase:
    """A Parquet file."""

    def write(path: Path, columns: dict[str, np.ndarray]) -> None:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table(columns), str(path))

    return _two_tables(folder, "parquet", write, seed)


def _two_tables(folder: Path, kind: str, write, seed: int) -> UserCase:
    folder.mkdir(parents=True, exist_ok=True)
    rng, paths = np.random.default_rng(seed), (folder / f"one.{kind}", folder / f"two.{kind}")
    for path in paths:
        write(path, _plain_columns(rng, 8000))
    names = ("variables.input_variables=[albedo, wind]", "variables.output_variables=[flux]")
    return UserCase(paths[:1], paths[1], names, "flux", (20 * SIGMA) ** 2)


def zarr_2(folder: Path, seed: int = 12) -> UserCase:
    """A Zarr store of version 2, with dimensions as xarray writes them."""
    return _two_stores(folder, 2, seed)


def zarr_3(folder: Path, seed: int = 13) -> UserCase:
    """A Zarr store of version 3."""
    return _two_stores(folder, 3, seed)


def _two_stores(folder: Path, version: int, seed: int) -> UserCase:
    import zarr

    folder.mkdir(parents=True, exist_ok=True)
    rng, paths = np.random.default_rng(seed), (folder / "one.zarr", folder / "two.zarr")
    for number, path in enumerate(paths):
        group = zarr.open_group(str(path), mode="w", zarr_format=version)
        sst, wind = 15 + 5 * smooth(rng, 20, 18, 24), 8 + 3 * smooth(rng, 20, 18, 24)
        flux = 50 * ((sst - 15) / 5 + (wind - 8) / 3 + SIGMA * smooth(rng, 20, 18, 24))
        grid = ("time", "lat", "lon")
        store_array(
            group, version, "time", ("time",), 20.0 * number + np.arange(20), {"units": "days since 2000-01-01"}
        )
        store_array(group, version, "lat", ("lat",), np.linspace(-80, 80, 18), {"units": "degrees_north"})
        store_array(group, version, "lon", ("lon",), np.linspace(0, 345, 24), {"units": "degrees_east"})
        for name, values, units in (("sst", sst, "degC"), ("wind", wind, "m s-1"), ("flux", flux, "W m-2")):
            store_array(group, version, name, grid, values.astype("f4"), {"units": units})
    names = ("variables.input_variables=[sst, wind]", "variables.output_variables=[flux]")
    return UserCase(paths[:1], paths[1], names, "flux", (50 * SIGMA) ** 2)


def store_array(
    group, version: int, name: str, dimensions: tuple[str, ...], values: np.ndarray, attributes: dict
) -> None:
    """Write one array of a Zarr group as xarray does."""
    chunks = (4, *values.shape[1:])
    own = {"dimension_names": dimensions} if version == 3 else {}
    array = group.create_array(name, shape=values.shape, chunks=chunks, dtype=values.dtype, **own)
    array[...] = values
    array.attrs.update(attributes | ({"_ARRAY_DIMENSIONS": list(dimensions)} if version == 2 else {}))


def _in_two_files(folder: Path, name: str, write, inputs: list[str], target: str, seed: int, mse: float) -> UserCase:
    """Write a file to train on, and one of later times to predict for."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    first, later = folder / f"{name}_1.nc", folder / f"{name}_2.nc"
    write(first, rng, 0, 20)
    write(later, rng, 20, 20)
    names = (f"variables.input_variables=[{', '.join(inputs)}]", f"variables.output_variables=[{target}]")
    return UserCase((first,), later, names, target, mse)


_MAKERS = (
    nemo, era5_old, era5_new, fesom, icon, columns, hdf5_table, zarr_2, zarr_3, csv, parquet,
)  # fmt: skip
CASES = {one.__name__: one for one in _MAKERS}
