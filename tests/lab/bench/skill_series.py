"""Eleven public records of several fields to compare default settings on, each parted by the calendar.

The files are those of public repositories at fixed commits. They are taken from the folder that MPITRAIN_SERIES names,
by the names in `FILES`, or fetched to it. All inputs are of the time of the target; clocks are sines and cosines.
"""

from __future__ import annotations

import hashlib
import io
import os
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd

TARGET = "target"
_RAW = "https://raw.githubusercontent.com"
FILES: Mapping[str, tuple[str, str]] = {
    "ETTh1.csv": (
        "zhouhaoyi/ETDataset/1d16c8f4f943005d613b5bc962e9eeb06058cf07/ETT-small/ETTh1.csv",
        "f18de3ad269cef59bb07b5438d79bb3042d3be49bdeecf01c1cd6d29695ee066",
    ),
    "ETTh2.csv": (
        "zhouhaoyi/ETDataset/1d16c8f4f943005d613b5bc962e9eeb06058cf07/ETT-small/ETTh2.csv",
        "a3dc2c597b9218c7ce1cd55eb77b283fd459a1d09d753063f944967dd6b9218b",
    ),
    "pollution.csv": (
        "jbrownlee/Datasets/d20fcb6402ae34e653d4513b00f39257bb37ed7f/pollution.csv",
        "892e9559205d16d32623135c127a3951c12e46ea1e0b3093e107ce89a9fd60e2",
    ),
    "seattle-weather.csv": (
        "vega/vega-datasets/cad85578e232704bb0453544742440038038c6a2/data/seattle-weather.csv",
        "0845078a290b48e3149ab8639966824110a251db4e06fc144c06ebb534af23be",
    ),
    "fulda_climate.csv": (
        "thouska/spotpy/47dd43fa13f44be6451eedd576fcbb914d4b7e76/src/spotpy/examples/cmf_data/fulda_climate.csv",
        "e9866a7ba28f99f941cfbc1ad8cb55caa5c5e43dbac15a076b820917e59b1fbe",
    ),
    "driver_data_site24.csv": (
        "thouska/spotpy/47dd43fa13f44be6451eedd576fcbb914d4b7e76/src/spotpy/examples/cmf_data/driver_data_site24.csv",
        "5abdf52525be577ae94446c05da687b3f628ffaedd3f37e2c98c21bd5bb4fcd7",
    ),
    "soilmoisture_site24.csv": (
        "thouska/spotpy/47dd43fa13f44be6451eedd576fcbb914d4b7e76/src/spotpy/examples/cmf_data/soilmoisture_site24.csv",
        "be76f8f22884041befaa511e8814ce723df12334e03800f1f49af144e17e5e70",
    ),
    "Example_DETha98.txt": (
        "bgctw/REddyProc/43eea8d08998e595007235fd0bd131064cb309d7/examples/Example_DETha98.txt",
        "0f9dde654632e1a30f50fd4d87fda214f8b42cfc70137f08e0718738965d4f7c",
    ),
    "hour.csv": (
        "NUmamahesh15/BikeSharingDataset/20461768880a028d285699edcccaacbd199d2dce/hour.csv",
        "bfd480bd2f0cacf824efd5eb08e81e785e93c3154dd56bfe8a5b464ea1da3898",
    ),
    "AirQualityUCI.csv": (
        "ahmetmenevse/UCI_airquality/7a5b1d23b342177edcb1775e2b012057fdc41cb3/AirQualityUCI.csv",
        "5d04e790353ece1e263ad4251c6c285c076cbc55aaa0cb70e06214e1a265ec15",
    ),
    "Metro_Interstate_Traffic_Volume.csv": (
        "blartey/css221-final/9748bfc5cf5aebe4d0bc1b3f1929648166efcf7d/Metro_Interstate_Traffic_Volume.csv",
        "b41d73ad01637028aca6acd06341bdae270f56bc4e5029254b3c93afae79a74e",
    ),
}


def fetched(name: str) -> io.BytesIO:
    """Return a file's bytes. Raises FileNotFoundError where it cannot be fetched, ValueError for other bytes."""
    path = Path(os.environ.get("MPITRAIN_SERIES", Path.home() / ".cache" / "mpitrain-series")) / name
    address, digits = FILES[name]
    if not path.is_file():
        try:
            with urllib.request.urlopen(f"{_RAW}/{address}", timeout=30) as answer:
                content = answer.read()
        except OSError as error:
            raise FileNotFoundError(f"{path}: {_RAW}/{address} cannot be fetched ({error})") from error
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if hashlib.sha256(path.read_bytes()).hexdigest() != digits:
        raise ValueError(f"{path}: is another file than that of {address}")
    return io.BytesIO(path.read_bytes())


def transformer(number: int) -> pd.DataFrame:
    """Oil temperature of a power transformer from its loads, each hour of two years."""
    read = pd.read_csv(fetched(f"ETTh{number}.csv"))
    return _series(read.date, read[["HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL"]], read.OT)


def pollution() -> pd.DataFrame:
    """Fine dust in Beijing from the weather, each hour of five years."""
    read = pd.read_csv(fetched("pollution.csv"))
    inputs = read[["DEWP", "TEMP", "PRES", "Iws", "Is", "Ir"]].join(pd.get_dummies(read.cbwd).astype(float))
    return _series(pd.to_datetime(read[["year", "month", "day", "hour"]]), inputs, read["pm2.5"])


def warmest() -> pd.DataFrame:
    """Highest temperature of the day in Seattle from the lowest, rain and wind, four years."""
    read = pd.read_csv(fetched("seattle-weather.csv"))
    return _series(read.date, read[["precipitation", "temp_min", "wind"]], read.temp_max, has_hours=False)


def discharge() -> pd.DataFrame:
    """Logarithm of the discharge of the Fulda from rain and temperature of the days before, ten years."""
    read = pd.read_csv(fetched("fulda_climate.csv"), skiprows=[1], encoding="latin1")
    rain, mean = read.Prec.astype(float), read.tmean.astype(float)
    sums = {f"rain{days}": rain.rolling(days).sum() for days in (3, 7, 30, 90)}
    lags = {f"before{days}": rain.shift(days) for days in (0, 1, 2)}
    inputs = pd.DataFrame({"mean": mean, "month": mean.rolling(30).mean(), **lags, **sums})
    times = pd.to_datetime(read.date, format="%d.%m.%Y")
    return _series(times, inputs, np.log(read.Q.astype(float)), has_hours=False)


def soil() -> pd.DataFrame:
    """Moisture of soil at 10 cm in Hesse from the weather of a month, each hour of three years."""
    names = ["time", "s10", "s25", "s40"]
    air = pd.read_csv(fetched("driver_data_site24.csv"), comment="#", encoding="latin1")
    found = pd.read_csv(fetched("soilmoisture_site24.csv"), comment="#", encoding="latin1", header=None, names=names)
    found = found[pd.to_numeric(found.s10, errors="coerce").notna()]
    for table in (air, found):
        table["time"] = pd.to_datetime(table.time, format="ISO8601")
    air = air.apply(lambda one: one if one.name == "time" else pd.to_numeric(one, errors="coerce"))
    a_day = round(pd.Timedelta("1D") / air.time.diff().mode()[0])
    for days in (1, 7, 30):
        air[f"rain{days}"] = air.rain_mmday.rolling(days * a_day).mean()
        air[f"air{days}"] = air.airtemp_degC.rolling(days * a_day).mean()
    both = air.merge(found, on="time")
    inputs = both.drop(columns=["time", "s10", "s25", "s40", "gwhead_m"])
    return _series(both.time, inputs, pd.to_numeric(both.s10))


def forest(what: str) -> pd.DataFrame:
    """A flux above the forest of Tharandt from radiation, temperatures, humidity and wind, each half-hour of a year."""
    text = fetched("Example_DETha98.txt").read().decode().replace("\r", "\n")
    read = pd.read_csv(io.StringIO(text), sep="\t", skiprows=[1], na_values=[-9999])
    times = pd.to_datetime("1998-01-01") + pd.to_timedelta((read.DoY - 1) * 24 + read.Hour, unit="h")
    return _series(times, read[["Rg", "Tair", "Tsoil", "rH", "VPD", "Ustar"]], read[what])


def bikes() -> pd.DataFrame:
    """Logarithm of the number of bicycles hired in Washington from weather and calendar, each hour of two years."""
    read = pd.read_csv(fetched("hour.csv"))
    times = pd.to_datetime(read.dateday, format="%d-%m-%Y") + pd.to_timedelta(read.hour, unit="h")
    names = ["workingday", "holiday", "weathersit", "temp", "feelingTemp", "humidity", "windspeed", "year"]
    return _series(times, read[names], np.log1p(read["count"]))


def dioxide() -> pd.DataFrame:
    """Nitrogen dioxide in an Italian town from cheap sensors, each hour of a year."""
    read = pd.read_csv(fetched("AirQualityUCI.csv"), na_values=[-200])
    times = pd.to_datetime(read.Date, dayfirst=True, format="mixed") + pd.to_timedelta(read.Time)
    names = [name for name in read.columns if name.startswith("PT08")] + ["T", "RH", "AH"]
    return _series(times, read[names], read.NO2_GT)


def traffic() -> pd.DataFrame:
    """Cars an hour on a motorway of Minnesota from weather and calendar, six years."""
    read = pd.read_csv(fetched("Metro_Interstate_Traffic_Volume.csv"), keep_default_na=False)
    times = pd.to_datetime(read.date_time, format="%m/%d/%y %H:%M")
    weather = {"temp": read.temp.where(read.temp > 200), "rain": read.rain_1h.clip(upper=60), "snow": read.snow_1h}
    days = {f"day{number}": (times.dt.day_of_week == number).astype(float) for number in range(7)}
    free = (read.holiday != "None").astype(float)
    return _series(
        times, pd.DataFrame({**weather, "clouds": read.clouds_all, "free": free, **days}), read.traffic_volume
    )


SERIES: Mapping[str, Callable[[], pd.DataFrame]] = {
    "transformer 1": lambda: transformer(1), "transformer 2": lambda: transformer(2), "pollution": pollution,
    "warmest": warmest, "discharge": discharge, "soil": soil, "carbon": lambda: forest("NEE"),
    "heat": lambda: forest("H"), "bikes": bikes, "dioxide": dioxide, "traffic": traffic,
}  # fmt: skip


def parted(found: pd.DataFrame, how: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows to train on and those to judge by: the last "week" of each month, or the last "quarter"."""
    times = pd.to_datetime(found.time)
    if how == "week":
        later = (times.dt.day > times.dt.days_in_month - 7).to_numpy()
    else:
        later = np.arange(len(found)) >= 0.75 * len(found)
    return found[~later], found[later]


def _series(times: pd.Series, inputs: pd.DataFrame, target: pd.Series, has_hours: bool = True) -> pd.DataFrame:
    """Return time, inputs with clocks, and the target: rows without a gap, one of each time, in their order."""
    times = pd.Series(pd.to_datetime(times).to_numpy())
    circle = {"year": (times.dt.day_of_year - 1 + times.dt.hour / 24) / 365.25}
    circle |= {"day": (times.dt.hour + times.dt.minute / 60) / 24} if has_hours else {}
    clocks = {
        f"{name}_{one.__name__}": one(2 * np.pi * part) for name, part in circle.items() for one in (np.sin, np.cos)
    }
    columns = {name: inputs[name].to_numpy(float) for name in inputs.columns}
    found = pd.DataFrame({"time": times, **columns, **clocks, TARGET: target.to_numpy(float)}).dropna()
    return found[~found.time.duplicated()].sort_values("time")
