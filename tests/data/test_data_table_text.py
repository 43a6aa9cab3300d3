"""What the text of a table means: dates, missing words and decimal commas are read, or asked for by row."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import netCDF4
import numpy as np
import pandas
import pytest
from field_files import config_of, read_all, write_netcdf

from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.datatools.inspect import inspect_data
from mpitrain.errors import DataError

HOURS = [datetime(2020, 12, 30) + timedelta(hours=hour) for hour in range(96)]
VALUES = np.random.default_rng(18).normal(size=96).round(3)
NAMES = "variables.input_variables=[a, hour_of_day]", "variables.output_variables=[b]"


def columns_of(path: Path, *settings: str) -> np.ndarray:
    return read_all(open_source(selection_of(config_of(path, *NAMES, *settings)))).inputs


def table(path: Path, when: object = None, a: object = VALUES, **options: object) -> Path:
    frame = pandas.DataFrame({"when": HOURS if when is None else when, "a": a, "b": 2 * VALUES})
    frame.to_parquet(path, index=False) if path.suffix == ".parquet" else frame.to_csv(path, index=False, **options)
    return path


def written(pattern: str) -> list[str]:
    return [one.strftime(pattern) for one in HOURS]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize(
    "pattern",
    ["%d.%m.%Y %H:%M", "%m/%d/%Y %H:%M", "%d-%m-%Y %H:%M:%S", "%Y%m%d:%H%M", "%Y%m%d %H%M%S", "%d-%b-%Y %H:%M",
     "%Y/%m/%d %H:%M", "%Y-%m-%d_%H:%M:%S", "%Y-%m-%dT%H:%MZ"],
)  # fmt: skip
def test_dates_that_can_be_read_in_one_way_are_times(tmp_path, ending, pattern):
    found = columns_of(table(tmp_path / f"f.{ending}", written(pattern)))
    assert found[:, 1].tolist() == [hour % 24 for hour in range(96)]


def test_a_date_that_is_one_or_another_is_asked_for(tmp_path):
    days = [f"0{day}/0{month}/2020" for month in (3, 4) for day in range(1, 9)]
    frame = pandas.DataFrame({"when": days, "a": np.arange(16.0), "b": np.arange(16.0)})
    frame.to_csv(tmp_path / "f.csv", index=False)
    with pytest.raises(DataError, match=r"column 'when' holds '01/03/2020', an ambiguous date; set 'data\.time_format"):
        columns_of(tmp_path / "f.csv")
    month = "variables.input_variables=[month, a]"
    for pattern, months in (("%d/%m/%Y", [3] * 8 + [4] * 8), ("%m/%d/%Y", [*range(1, 9)] * 2)):
        found = columns_of(tmp_path / "f.csv", month, f'data.time_format="{pattern}"')
        assert found[:, 0].tolist() == months


def test_rows_whose_times_are_not_read_say_why_in_a_run_and_when_inspected(tmp_path):
    days = [f"0{day}/0{month}/2020" for month in (3, 4) for day in range(1, 9)]
    frame = pandas.DataFrame({"when": days, "date": [int(f"{20200101 + day}") for day in range(16)], "id": 1234567890})
    frame.assign(a=np.arange(16.0), b=np.arange(16.0)).to_csv(tmp_path / "f.csv", index=False)
    names = "variables.input_variables=[a]", "variables.output_variables=[b]"
    config = config_of(tmp_path / "f.csv", *names)
    (line,) = [one for one in open_source(selection_of(config)).notices if "its rows have no time" in one]
    assert "column 'when' holds '01/03/2020'" in line
    assert "not read: when: holds '01/03/2020', an ambiguous date" in inspect_data(config).render_table()
    chosen = config_of(tmp_path / "f.csv", *names, 'data.time_format="%d/%m/%Y"')
    assert not any("no time" in one for one in open_source(selection_of(chosen)).notices)
    frame[["date", "id"]].assign(a=np.arange(16.0), b=np.arange(16.0)).to_csv(tmp_path / "f.csv", index=False)
    (line,) = [one for one in open_source(selection_of(config)).notices if "its rows have no time" in one]
    assert "numbers of 'date', such as 20200101, are times" in line


def test_a_day_that_no_month_has_is_no_date(tmp_path):
    when = [*written("%d.%m.%Y")[:-1], "31.02.2021"]
    with pytest.raises(DataError, match=r"its time levels have no time"):
        columns_of(table(tmp_path / "f.csv", when))
    found = columns_of(table(tmp_path / "f.csv", when), 'data.missing_values=["31.02.2021"]')
    assert np.flatnonzero(np.isnan(found[:, 1])).tolist() == [95]


@pytest.mark.parametrize(
    ("pattern", "setting"),
    [("%Y%m%d%H%M", "%Y%m%d%H%M"), ("%Y%m%d%H", "%Y%m%d%H"), ("%s", "seconds since 1970-01-01")],
)
@pytest.mark.parametrize("ending", ["csv", "parquet", "npz", "nc"])
def test_numbers_that_are_times_are_asked_for_and_the_setting_works(tmp_path, pattern, setting, ending):
    seconds = [int((one - datetime(1970, 1, 1)).total_seconds()) for one in HOURS]
    when = np.array(seconds if pattern == "%s" else [int(one) for one in written(pattern)])
    path, columns = tmp_path / f"f.{ending}", {"when": when, "a": VALUES, "b": 2 * VALUES}
    if ending == "nc":
        write_netcdf(path, {name: (("row",), values) for name, values in columns.items()})
    elif ending == "npz":
        np.savez(path, **columns)
    else:
        table(path, when)
    asked = ["data.coordinates={time: when}", f'data.time_format="{setting}"']
    with pytest.raises(DataError, match=rf"such as {when[0]}, are times, set '{asked[0]}' '{asked[1]}'"):
        columns_of(path)
    assert columns_of(path, *asked)[:, 1].tolist() == [hour % 24 for hour in range(96)]
    with pytest.raises(
        DataError, match=r"variable 'when' holds \d+ in row 1, which does not match data.time_format='%d%m%Y'"
    ):
        columns_of(path, asked[0], 'data.time_format="%d%m%Y"')


def test_text_of_netcdf_can_be_the_time(tmp_path):
    texts = written("%Y-%m-%d_%H:%M:%S")
    with netCDF4.Dataset(tmp_path / "f.nc", "w") as file:
        file.createDimension("Time", 96)
        file.createDimension("DateStrLen", len(texts[0]))
        file.createVariable("Times", "S1", ("Time", "DateStrLen"))[:] = netCDF4.stringtochar(np.array(texts, "S"))
        for name, values in (("a", VALUES), ("b", 2 * VALUES)):
            file.createVariable(name, "f8", ("Time",))[:] = values
    found = columns_of(tmp_path / "f.nc", "data.coordinates={time: Times}", 'data.time_format="%Y-%m-%d_%H:%M:%S"')
    assert found[:, 1].tolist() == [hour % 24 for hour in range(96)]


@pytest.mark.parametrize("ending", ["csv", "parquet"])
@pytest.mark.parametrize("word", ["-", "---", "M", "missing", "*", "degC"])
def test_a_word_among_numbers_is_named_with_its_row_and_the_setting_works(tmp_path, ending, word):
    a = [word if row == 10 else str(value) for row, value in enumerate(VALUES)]
    path, asked = table(tmp_path / f"f.{ending}", a=a), f'data.missing_values=["{word}"]'
    with pytest.raises(DataError) as refused:
        columns_of(path)
    assert f"variable 'a' holds '{word}' in row 11, not a number; if it means" in str(refused.value)
    assert str(refused.value).endswith(f"set '{asked}'")
    found = columns_of(path, asked)[:, 0]
    assert np.flatnonzero(np.isnan(found)).tolist() == [10]
    assert np.nanmean(found) == pytest.approx(np.delete(VALUES, 10).mean(), rel=1e-6)


def test_all_words_are_named_at_once_and_the_usual_ones_are_missing_anyway(tmp_path):
    a = ["--" if row % 10 == 3 else "M" if row % 10 == 7 else str(value) for row, value in enumerate(VALUES)]
    with pytest.raises(DataError, match=r"these mean a missing value, set 'data\.missing_values=\[\"--\", \"M\"\]'"):
        columns_of(table(tmp_path / "f.csv", a=a))
    both = ["--" if row == 3 else "N/A" if row == 7 else str(value) for row, value in enumerate(VALUES)]
    found = columns_of(table(tmp_path / "f.csv", a=both), "data.missing_values=['--', -9999]")
    assert np.flatnonzero(np.isnan(found[:, 0])).tolist() == [3, 7]


def test_decimal_commas_and_thousands_are_read_where_they_are_sure(tmp_path):
    german = columns_of(table(tmp_path / "f.csv", sep=";", decimal=","))
    assert german[:, 0] == pytest.approx(VALUES, rel=1e-6)
    grouped = [f"{1000 * value:,.1f}" for value in VALUES]
    assert columns_of(table(tmp_path / "g.csv", a=grouped))[:, 0] == pytest.approx(1000 * VALUES, abs=0.06)
    dotted = [one.translate(str.maketrans(",.", ".,")) for one in grouped]
    assert columns_of(table(tmp_path / "d.csv", a=dotted, sep=";"))[:, 0] == pytest.approx(1000 * VALUES, abs=0.06)
    with pytest.raises(
        DataError, match=r"variable 'a' holds '1,234', whose comma may be decimal or a thousands separator"
    ):
        columns_of(table(tmp_path / "h.csv", a=["1,234", "2,500"] * 48))
    one = ["0,25" if row == 10 else str(value) for row, value in enumerate(VALUES)]
    with pytest.raises(DataError, match=r"holds '0,25' in row 11, not a number in the format of the others; write it"):
        columns_of(table(tmp_path / "i.csv", a=one))


def test_a_csv_with_a_comment_or_in_latin_1_says_so(tmp_path):
    text = table(tmp_path / "f.csv").read_text()
    for comment in ("# station 5\n", "# a, b\n# c, d, e, f\n"):
        (tmp_path / "f.csv").write_text(comment + text)
        with pytest.raises(
            DataError, match=r"comment lines \(#\) are not supported: remove them, so that the first line names"
        ):
            columns_of(tmp_path / "f.csv")
    (tmp_path / "f.csv").write_text(text.replace("when,", "\ufeffwhen,", 1))
    assert len(columns_of(tmp_path / "f.csv")) == len(HOURS)
    (tmp_path / "f.csv").write_bytes(text.replace("when,a", "when °,a", 1).encode("latin-1"))
    with pytest.raises(DataError, match=r"its first line holds text that is not UTF-8; save the file as UTF-8"):
        columns_of(tmp_path / "f.csv")
    place = text.replace("when,", "place,when,", 1).replace("\n2020", "\nKöln,2020").replace("\n2021", "\nKöln,2021")
    (tmp_path / "f.csv").write_bytes(place.encode("latin-1"))
    assert (
        "not read: place: it holds text that is not UTF-8"
        in inspect_data(config_of(tmp_path / "f.csv", *NAMES)).render_table()
    )


def test_text_that_is_neither_is_named_as_text(tmp_path):
    with pytest.raises(DataError, match=r"variable 'a' holds text, such as 'DAKAR', expected numbers; name another"):
        columns_of(table(tmp_path / "f.csv", a=["DAKAR", "PARIS"] * 48))


def test_times_of_a_zone_are_those_of_utc_with_a_line(tmp_path):
    india = pandas.DatetimeIndex(HOURS).tz_localize("Asia/Kolkata")
    for ending in ("csv", "parquet"):
        path = table(tmp_path / f"f.{ending}", india)
        source = open_source(selection_of(config_of(path, *NAMES)))
        assert read_all(source).inputs[0, 1] == 18.5
        assert any("times with time zone" in line and line.endswith(": converted to UTC") for line in source.notices)


MASSES = 10 ** np.random.default_rng(32).uniform(28.5, 32, 200)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("ending", ["csv", "parquet", "npz", "nc", "zarr", "h5"])
def test_no_number_is_missing_for_its_size(tmp_path, ending, sign):
    import h5py
    import xarray

    path, columns = tmp_path / f"f.{ending}", {"x": sign * MASSES, "y": np.log10(MASSES)}
    if ending in ("csv", "parquet"):
        frame = pandas.DataFrame(columns)
        frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    elif ending == "npz":
        np.savez(path, **columns)
    elif ending == "zarr":
        xarray.Dataset({name: ("star", values) for name, values in columns.items()}).to_zarr(path, consolidated=False)
    elif ending == "nc":
        write_netcdf(path, {name: (("star",), values) for name, values in columns.items()})
    else:
        with h5py.File(path, "w") as file:
            file.update(columns)
    names = "variables.input_variables=[x]", "variables.output_variables=[y]"
    found = read_all(open_source(selection_of(config_of(path, *names)))).inputs[:, 0]
    assert found == pytest.approx(sign * MASSES, rel=1e-6)
    before = read_all(open_source(selection_of(config_of(path, *names, "data.rules=1")))).inputs[:, 0]
    assert (np.isnan(before) == (MASSES >= 1e29)).all()


LAND = np.array([1.5, 1e30, float(np.float32(1e30)), 9.9e36, 2.5])


@pytest.mark.parametrize(
    ("fill", "missing"),
    [(1e30, [1, 2, 3]), (np.float32(1e30), [1, 2, 3]), (None, [1, 2]), (-999.0, []), (9.96e36, [])],
)
def test_a_large_fill_value_is_a_limit_and_land_of_cice_is_known_without_one(tmp_path, fill, missing):
    attributes = {} if fill is None else {"missing_value": fill}
    path = write_netcdf(tmp_path / "f.nc", {"x": (("i",), LAND), "y": (("i",), np.arange(5.0))}, x=attributes)
    names = "variables.input_variables=[x]", "variables.output_variables=[y]", "training.dtype=float64"
    found = read_all(open_source(selection_of(config_of(path, *names)))).inputs[:, 0]
    assert np.flatnonzero(np.isnan(found)).tolist() == missing
    assert found[~np.isnan(found)].tolist() == np.delete(LAND, missing).tolist()


@pytest.mark.parametrize("dtype", ["f4", "f8", "i2", "u1", "i8"])
def test_numbers_that_the_user_names_are_missing(tmp_path, dtype):
    x = np.arange(20).astype(dtype)
    x[3] = 99
    path = write_netcdf(tmp_path / "f.nc", {"x": (("i",), x), "y": (("i",), np.arange(20.0))})
    names = "variables.input_variables=[x]", "variables.output_variables=[y]"
    found = read_all(open_source(selection_of(config_of(path, *names, "data.missing_values=[99, -1, 7.5]")))).inputs[
        :, 0
    ]
    assert np.flatnonzero(np.isnan(found)).tolist() == [3]


def test_fill_values_and_wrong_values_of_times_are_told_apart(tmp_path):
    when = np.array([20200101, -9999, 20200103] * 32)
    path = write_netcdf(tmp_path / "f.nc", {"when": (("i",), when), "a": (("i",), VALUES), "b": (("i",), VALUES)})
    asked = "data.coordinates={time: when}", 'data.time_format="%Y%m%d"', "variables.input_variables=[month]"
    with pytest.raises(DataError, match=r"variable 'when' holds -9999 in row 2, which does not match"):
        columns_of(path, *asked)
    found = columns_of(path, *asked, "data.missing_values=[-9999]")[:, 0]
    assert np.flatnonzero(np.isnan(found)).tolist() == list(range(1, 96, 3))
    half = write_netcdf(tmp_path / "g.nc", {"when": (("i",), when + 0.5), "a": (("i",), VALUES), "b": (("i",), VALUES)})
    with pytest.raises(DataError, match=r"holds 20200101\.5 in row 1, which does not match"):
        columns_of(half, *asked)


def test_text_that_no_time_format_fits_is_a_line(tmp_path):
    path = table(tmp_path / "f.csv", ["31.12.2020", "bad"] * 48)
    for setting in ("%d.%m.%Y", "seconds since 1970-01-01", "%Z"):
        with pytest.raises(DataError, match=r"when|not a valid strptime format"):
            columns_of(path, "data.coordinates={time: when}", f'data.time_format="{setting}"')


def test_other_columns_stop_nothing(tmp_path):
    path = tmp_path / "f.parquet"
    others = {"bytes": [b"\xe9"] * 96, "lists": [[1]] * 96, "kinds": pandas.Categorical(["1", None, "2"] * 32)}
    pandas.DataFrame({"when": HOURS, "a": VALUES, "b": VALUES, **others}).to_parquet(path)
    assert columns_of(path)[:, 0] == pytest.approx(VALUES, rel=1e-6)
    kinds = columns_of(path, "variables.input_variables=[kinds]")[:, 0]
    assert np.isnan(kinds[1::3]).all()
    assert kinds[::3].tolist() == [1.0] * 32


def test_numbers_as_text_are_times_only_where_the_settings_name_them(tmp_path):
    years = [str(1900 + row) for row in range(96)]
    path = table(tmp_path / "f.parquet", a=years)
    assert columns_of(path, 'data.time_format="%Y"')[0, 0] == 1900
    named = columns_of(path, "variables.input_variables=[year]", "data.coordinates={time: a}", 'data.time_format="%Y"')
    assert named[:, 0].tolist() == [1900 + row for row in range(96)]
