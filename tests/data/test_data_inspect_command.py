"""`mpitrain data inspect` and `generate`, through the command tree, and once as users type them."""

import json
import shlex

import netCDF4
import numpy as np
import pytest
import xarray
from conftest import launch
from field_files import ramp, read_all, write_netcdf, write_xy

from mpitrain.cli.main import main
from mpitrain.config import load_run_config
from mpitrain.data.files.variable import VariableInfo
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.datatools.inspect import inspect_data
from mpitrain.datatools.maps import draw_maps
from mpitrain.datatools.suggestion import Measured, complete_together

PNG = b"\x89PNG\r\n\x1a\n"


def test_years_of_files_are_one_series_cut_in_files(tmp_path, capsys):
    size = ["--latitudes", "20", "--longitudes", "24"]
    parts = ["--files", "3", "--times", "2", "--chunks", "1,10,24", "--compress", "4"]
    assert main(["data", "generate", str(tmp_path / "part.nc"), *size, *parts]) == 0
    assert main(["data", "generate", str(tmp_path / "whole.nc"), *size, "--times", "6"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    names = [f"part_{number:04d}.nc" for number in (1, 2, 3)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "whole.nc"]
    with netCDF4.Dataset(tmp_path / "whole.nc") as whole:
        assert whole["sst_h"].chunking() == "contiguous"
        for number, name in enumerate(names):
            with netCDF4.Dataset(tmp_path / name) as part:
                assert part["sst_h"].chunking() == [1, 10, 24]
                assert part["sst_h"].filters()["complevel"] == 4
                for variable in ("time", "aice_h", "sst_h"):
                    expected = whole[variable][2 * number : 2 * number + 2]
                    np.testing.assert_array_equal(part[variable][:].filled(), expected.filled())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--files", "0"], "--files 0: give 1 or more"),
        (["--chunks", "1,2"], "--chunks 1,2: give the times, rows and columns"),
        (["--chunks", "2,10,10"], "do not fit"),
        (["--compress", "10"], "compress=10"),
    ],
)
def test_wrong_flags_are_one_line_and_write_nothing(tmp_path, capsys, flags, words):
    assert main(["data", "generate", str(tmp_path / "x.nc"), *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert words in line
    assert not any(tmp_path.iterdir())


def test_what_is_in_a_file_and_what_would_be_selected(small_history, tmp_path):
    shown = launch(
        ["-m", "mpitrain", "data", "inspect", "--full", "--maps", "maps", str(small_history), "domain.pole=south"],
        cwd=tmp_path,
    )
    assert shown.returncode == 0, shown.stderr
    (aice,) = [line for line in shown.stdout.splitlines() if line.startswith("aice_h")]
    assert "time=1, nj=48, ni=72" in aice
    with netCDF4.Dataset(small_history) as dataset:
        values = dataset["aice_h"][:]
        latitude, mask = dataset["ULAT"][:], dataset["umask"][:]
        assert f"{values.mean(dtype='f8'):.6g}" in aice
        assert f"{100 * np.ma.getmaskarray(values).mean():.1f} %" in aice
        selected = int(((mask == 1) & (latitude < -40) & (values.filled(0)[0] > 0)).sum())
    assert f"selected samples: {selected}\n" in shown.stdout
    assert "grid: 48 rows x 72 columns" in shown.stdout
    maps = sorted((tmp_path / "maps").iterdir())
    assert len(maps) == 8
    assert all(path.read_bytes().startswith(PNG) for path in maps)


def test_json_and_a_selection_that_fails(tmp_path, capsys):
    path = str(write_xy(tmp_path / "f.nc"))
    assert main(["data", "inspect", path, "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in content["variables"]] == ["x", "y"]
    assert content["variables"][0]["maximum"] == 59
    assert content["selection"]["train_with"].endswith(
        'f.nc --output RUN "variables.input_variables=[y]" "variables.output_variables=[x]"'
    )
    assert main(["data", "inspect", path, "variables.input_variables=[Tair_h]"]) == 0
    assert "why: " + path + ": no variable 'Tair_h'; this one has x, y" in capsys.readouterr().out
    assert main(["data", "inspect", path, "variables.input_variables=[q]", "--maps", str(tmp_path / "maps")]) == 2
    assert main(["data", "inspect"]) == 2
    assert main(["data", "inspect", str(tmp_path / "none.nc")]) == 2
    assert all(line.startswith("mpitrain: error: ") for line in capsys.readouterr().err.splitlines())


def test_a_file_that_nobody_describes_comes_with_places_times_and_a_command_that_trains(tmp_path, capsys):
    shape, along = (3, 2, 4, 5), ("time", "Z", "lat", "lon")
    variables = {name: (along, ramp(first, shape)) for name, first in (("temp", 0), ("salt", 100))}
    variables |= {
        "lat": (("lat",), np.arange(4.0)),
        "lon": (("lon",), np.arange(5.0)),
        "Z": (("Z",), np.array([5.0, 9])),
    }
    variables |= {"time": (("time",), np.arange(3.0)), "empty": (along, np.full(shape, np.nan))}
    attributes = {"lat": {"units": "degrees_north"}, "lon": {"units": "degrees_east"}, "Z": {"positive": "down"},
                  "time": {"units": "days since 2000-02-28"}, "temp": {"long_name": "the water's"}}  # fmt: skip
    path = str(write_netcdf(tmp_path / "f.nc", variables, "", None, **attributes))
    assert main(["data", "inspect", path]) == 0
    shown = capsys.readouterr().out
    assert "  the water's\n" in shown
    assert "latitude: lat, 0 to 3\nlongitude: lon, 0 to 4\n" in shown
    assert "times: 3, 2000-02-28 00:00:00 to 2000-03-01 00:00:00, calendar standard\n" in shown
    assert "selected samples: 60\n" in shown
    assert (
        "dimensions: time: time (units 'days since 2000-02-28' of time); Z: one level (named in the settings); "
        "lat: rows (units 'degrees_north' of lat); lon: columns (units 'degrees_east' of lon)\n"
    ) in shown
    (command,) = [line.removeprefix("train with: ") for line in shown.splitlines() if line.startswith("train with")]
    words = shlex.split(command)
    assert words[-2:] == ["variables.input_variables=['salt[Z=5]']", "variables.output_variables=['temp[Z=5]']"]
    config = load_run_config(None, [f"data.data_path={path}", *words[-2:]]).config
    assert len(read_all(open_source(selection_of(config)))) == 60
    one = {name: variables[name] for name in ("temp", "lat", "lon", "time")}
    alone = write_netcdf(tmp_path / "g.nc", one, "", None, **attributes)
    assert main(["data", "inspect", str(alone)]) == 0
    assert '"variables.input_variables=[lat, lon, day_of_year]"' in capsys.readouterr().out


def test_what_is_not_selected_is_pale_on_the_map(small_history, tmp_path):
    import matplotlib.image

    from mpitrain.config import load_run_config

    def colours(*settings):
        config = load_run_config(
            None, [f"data.data_path={small_history}", "variables.input_variables=[sst_h]", *settings]
        ).config
        (path,) = [path for path in draw_maps(inspect_data(config), tmp_path) if path.stem == "aice_h"]
        return matplotlib.image.imread(path)[..., :3].mean()

    # Pale is nearer to white; the titles' words differ by far less.
    assert colours("domain.mask=aice_h > 0.5", "domain.mask_mode=ocean") > colours("domain.mask_mode=ocean") + 0.05


@pytest.mark.lab
def test_the_limit_acts_before_incomplete_samples_are_dropped_as_in_a_run(tmp_path, capsys):
    x = np.arange(4 * 5 * 6, dtype=np.float64).reshape(4, 5, 6)
    y = np.where(x % 3 == 0, np.nan, x)
    path = write_xy(tmp_path / "third_missing.nc", x, y)
    settings = [str(path), "variables.input_variables=[x]", "variables.output_variables=[y]",
                "domain.mask_mode=all", "data.max_patterns=30"]  # fmt: skip
    assert main(["data", "inspect", "--json", *settings]) == 0
    inspected = json.loads(capsys.readouterr().out)["selection"]
    done = launch(["-m", "mpitrain", "data", "stats", "--json", *settings], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    counted = json.loads(done.stdout)["samples"]
    assert (counted["selected"], counted["kept"]) == (120, 30)
    assert inspected["kept_samples"] == counted["valid"] < 30


def suggested(path, capsys):
    assert main(["data", "inspect", str(path)]) == 0
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("train with")]
    words = shlex.split(line)[-2:]
    assert len(read_all(open_source(selection_of(load_run_config(None, [f"data.data_path={path}", *words]).config))))
    return words[0]


def test_what_is_suggested_varies_and_is_there(tmp_path, capsys):
    """A day of the year that is always the same, places that are all missing, and an axis of levels are no inputs."""
    axes = {"y": (("y",), np.arange(4.0)), "x": (("x",), np.arange(5.0))}
    places = {"lat": (("y",), np.arange(4.0)), "lon": (("x",), np.arange(5.0))}
    units = {"lat": {"units": "degrees_north"}, "lon": {"units": "degrees_east"}}
    along, shape = ("time", "y", "x"), (3, 4, 5)
    yearly = axes | places | {"time": (("time",), 365.0 * np.arange(3)), "t": (along, ramp(0, shape))}
    days = {"time": {"units": "days since 2001-06-01", "calendar": "noleap"}}
    path = write_netcdf(tmp_path / "years.nc", yearly, "", None, **units, **days)
    assert suggested(path, capsys) == "variables.input_variables=[lat, lon, time]"
    missing = axes | places | {"lon": (("x",), np.full(5, np.nan)), "t": (("y", "x"), ramp(0, (4, 5)))}
    path = write_netcdf(tmp_path / "missing.nc", missing, "", None, **units)
    assert suggested(path, capsys) == "variables.input_variables=[y, x]"
    levels = axes | {"level": (("level",), np.arange(1.0, 4)), "t": (("level", "y", "x"), ramp(0, shape))}
    path = write_netcdf(tmp_path / "levels.nc", levels, "", None, level={"axis": "Z"})
    assert suggested(path, capsys) == "variables.input_variables=[y, x]"


def test_what_is_suggested_of_meshes_and_stations_is_what_was_measured(tmp_path, capsys):
    """Connections of a mesh, which station reports belong to, its height, and masks without units are no targets."""
    degrees = {name: {"units": f"degrees_{where}"} for name, where in (("fx", "east"), ("fy", "north"))}
    mesh = {"fx": (("face",), np.arange(4.0)), "fy": (("face",), np.arange(4.0))}
    mesh["corners"] = (("face", "three"), ramp(0, (4, 3)))
    mesh |= {"level": (("time", "face"), ramp(0, (3, 4))), "speed": (("time", "face"), ramp(50, (3, 4)))}
    of_mesh = {"cf_role": "face_node_connectivity"}
    path = write_netcdf(tmp_path / "ugrid.nc", mesh, "", None, corners=of_mesh, **degrees)
    assert suggested(path, capsys) == "variables.input_variables=[speed]"

    times = {"time": (("obs",), np.arange(12.0) * 30)}
    units = {"time": {"units": "days since 2001-01-01", "standard_name": "time"}, "t": {"units": "K"}}
    reports = times | {"which": (("obs",), ramp(0, (12,)) % 3), "t": (("obs",), ramp(5, (12,)))}
    reports["count"] = (("station",), np.array([4.0, 5, 3]))
    units |= {"which": {"instance_dimension": "station"}, "count": {"sample_dimension": "obs"}}
    path = write_netcdf(tmp_path / "stations.nc", reports, "", None, **units)
    assert main(["data", "inspect", str(path)]) == 0
    assert "variables.output_variables=[t]" in capsys.readouterr().out

    hourly = {"elev": ramp(3, (6, 4)), "t": ramp(0, (6, 4)), "dew": ramp(50, (6, 4))}
    of_hours = {name: (("report", "hour"), values) for name, values in hourly.items()}
    units = {"elev": {"units": "meters", "long_name": "elevation"}, "t": {"units": "K"}, "dew": {"units": "K"}}
    path = write_netcdf(tmp_path / "hours.nc", of_hours, "", None, **units)
    assert suggested(path, capsys) == "variables.input_variables=[dew]"

    cells = {"wet": (("depth", "cell"), ramp(0, (3, 8))), "s": (("time", "depth", "cell"), ramp(0, (1, 3, 8)))}
    cells |= {"depth": (("depth",), np.array([10.0, 30, 50])), "clon": (("cell",), np.arange(8.0))}
    cells["clat"] = (("cell",), np.arange(8.0))
    path = write_netcdf(tmp_path / "icon.nc", cells, "", None, s={"units": "psu"}, depth={"axis": "Z"})
    assert main(["data", "inspect", str(path)]) == 0
    assert "variables.output_variables=['s[depth=10]']" in capsys.readouterr().out


def test_a_bathymetry_is_suggested_a_copy_is_not_and_no_command_that_must_fail(tmp_path, capsys):
    degrees = {name: {"units": f"degrees_{where}"} for name, where in (("x", "east"), ("y", "north"))}
    mesh = {name: (("node",), ramp(0, (8,))) for name in ("x", "y", "depth")}
    mesh["element"] = (("nele", "three"), ramp(0, (10, 3)))
    path = write_netcdf(tmp_path / "bay.nc", mesh, "", None, depth={"positive": "down", "units": "m"}, **degrees)
    assert main(["data", "inspect", str(path)]) == 0
    assert '"variables.input_variables=[x, y]" "variables.output_variables=[depth]"' in capsys.readouterr().out

    copies = {name: (("t", "y", "x"), ramp(first, (2, 3, 4))) for name, first in (("a", 0), ("b", 0), ("c", 9))}
    path = write_netcdf(tmp_path / "copies.nc", copies, "", None, a={"units": "K"}, b={"units": "K"})
    assert suggested(path, capsys) == "variables.input_variables=[c]"

    profile = {name: (("z",), ramp(first, (5,))) for name, first in (("z", 0), ("t", 9), ("s", 20))}
    path_of_profile = write_netcdf(tmp_path / "profile.nc", profile, "", None, z={"axis": "Z"})
    assert suggested(path_of_profile, capsys) == "variables.input_variables=[s]"

    other = write_netcdf(tmp_path / "other.nc", {name: (one, ramp(0, (2, 3, 5))) for name, (one, _) in copies.items()})
    assert main(["data", "inspect", str(path), str(other)]) == 0
    shown = capsys.readouterr().out
    assert "train with" not in shown
    assert f"why: {other}: its grid of 3 rows x 5 columns differs from that of {path}" in shown


def test_what_is_suggested_can_be_learnt_from_together(tmp_path, capsys):
    """A level that is the same everywhere is no target, and inputs that are seldom there together are left out."""
    random = np.random.default_rng(0)
    ne = random.normal(size=(4, 5, 6))
    ne[:2] = 7.0
    levels = {"ne": (("height", "y", "x"), ne), "height": (("height",), np.arange(4.0) * 100)}
    levels |= {"y": (("y",), np.arange(5.0)), "x": (("x",), np.arange(6.0))}
    path = write_netcdf(tmp_path / "levels.nc", levels, "", None, height={"axis": "Z"})
    assert main(["data", "inspect", str(path)]) == 0
    assert "variables.output_variables=['ne[height=200]']" in capsys.readouterr().out

    reports = {name: random.normal(size=200) for name in ("t", "ice", "dew", "snow", "wind")}
    reports["t"][:10] = np.nan
    reports["ice"][10:80], reports["snow"][80:150] = np.nan, np.nan  # each is mostly there, both seldom
    reports["wind"][:5] = np.nan
    of_obs = {name: (("obs",), values) for name, values in reports.items()}
    path = write_netcdf(tmp_path / "reports.nc", of_obs, "", None, t={"units": "K"})
    assert suggested(path, capsys) == "variables.input_variables=[ice, dew, wind]"
    assert main(["data", "inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "left out: snow: missing too often where other variables have values\n" in shown
    assert "complete samples: 120\n" in shown

    # What is constant where the target is known teaches nothing.
    sea = {"sst": np.where(np.arange(200) < 60, np.nan, random.normal(size=200)), "x": random.normal(size=200)}
    sea["is_land"] = (np.arange(200) < 60) * 1.0
    path = write_netcdf(tmp_path / "sea.nc", {name: (("obs",), one) for name, one in sea.items()}, "", None)
    assert suggested(path, capsys) == "variables.input_variables=[x]"


def test_a_series_is_suggested_to_be_learnt_from_its_past(tmp_path, capsys):
    series, monthly = (("n",), ramp(0, (60,))), {"units": "days since 2000-01-01"}
    for name in ("n", "when"):
        variables = {"soi": series, name: (("n",), 30.0 * np.arange(60))}
        path = write_netcdf(tmp_path / f"{name}.nc", variables, "", None, **{name: monthly})
        assert suggested(path, capsys) == (
            "variables.input_variables=['soi[time-1]', 'cos(0.017202*day_of_year)', 'sin(0.017202*day_of_year)']"
        )


@pytest.mark.parametrize("ending", ["nc", "h5", "zarr"])
def test_variables_without_dimensions_are_inspected_or_named(tmp_path, ending):
    x = ("x",)
    data = xarray.Dataset(
        {"a": (x, ramp(0, (20,))), "b": (x, ramp(5, (20,))), "packed": ((), np.int16(4), {"scale_factor": 0.5}),
         "missing": ((), np.int16(-1), {"scale_factor": 0.5, "missing_value": np.int16(-1)}), "text": ((), "word"),
         "filled": ((), np.float32(-999), {"missing_value": np.float32(-999)}), "none": (("empty",), np.empty(0)),
         "time": ((), 3.0, {"units": "days since 2000-01-01"}), "plain": ((), 7.0)},
    )  # fmt: skip
    path = tmp_path / f"f.{ending}"
    data.to_zarr(path, consolidated=False, zarr_format=2) if ending == "zarr" else data.to_netcdf(
        path, engine="netcdf4"
    )
    for is_full in (False, True):
        config = load_run_config(None, [f"data.data_path={path}"]).config
        found = {one.name: one for one in inspect_data(config, is_full).variables}
        assert [found[name].mean for name in ("packed", "missing", "filled", "plain")] == [2.0, None, None, 7.0]
        assert found["missing"].missing_share == 1


def test_the_hour_is_suggested_where_it_differs(tmp_path, capsys):
    hours = {"units": "hours since 2000-06-01"}
    variables = {"load": (("n",), ramp(0, (72,))), "when": (("n",), np.arange(72.0))}
    path = write_netcdf(tmp_path / "hourly.nc", variables, "", None, when=hours)
    assert suggested(path, capsys) == (
        "variables.input_variables=['load[time-1]', day_of_year, "
        "'cos(0.261799*hour_of_day)', 'sin(0.261799*hour_of_day)']"
    )


def test_flags_and_row_numbers_are_not_suggested(tmp_path, capsys):
    obs, values = ("obs",), np.random.default_rng(0).normal(size=(2, 30))
    flags = np.arange(30) % 3
    measured = {"temp": (obs, values[0]), "salt": (obs, values[1])}
    beside = {"temp_qc": (obs, flags), "state": (obs, flags * 1.0), "number": (obs, np.arange(30)), "QC": (obs, flags)}
    said = {"state": {"flag_meanings": "good bad missing"}, "temp": {"units": "degC"}}
    path = write_netcdf(tmp_path / "f.nc", measured | beside, "", None, **said)
    assert suggested(path, capsys) == "variables.input_variables=[salt]"
    table = {"Unnamed: 0": np.arange(30), "a": values[0], "quality_flag": flags, "b": values[1]}
    np.savez(tmp_path / "f.npz", **table)
    assert suggested(tmp_path / "f.npz", capsys) == "variables.input_variables=[a]"


def test_files_of_different_variables_are_suggested_together(tmp_path, capsys):
    for name, first in (("a_1", 0), ("a_2", 100), ("b_1", 50), ("b_2", 150)):
        values = np.random.default_rng(first).normal(size=(3, 4, 5))
        variables = {"time": (("time",), np.arange(3.0)), name[0]: (("time", "y", "x"), values)}
        write_netcdf(tmp_path / f"{name}.nc", variables, "", None, time={"units": f"days since 200{name[-1]}-01-01"})
    assert suggested(tmp_path / "?_?.nc", capsys) == "variables.input_variables=[b]"


def test_heights_are_a_target_where_nothing_else_was_measured(tmp_path, capsys):
    axes = {"lat": (("lat",), np.arange(4.0)), "lon": (("lon",), np.arange(5.0))}
    units = {"lat": {"units": "degrees_north"}, "lon": {"units": "degrees_east"}}
    height = {"standard_name": "surface_altitude", "units": "m"}
    heights = axes | {"orog": (("lat", "lon"), ramp(0, (4, 5)))}
    path = write_netcdf(tmp_path / "orog.nc", heights, "", None, orog=height, **units)
    assert suggested(path, capsys) == "variables.input_variables=[lat, lon]"
    path = write_netcdf(tmp_path / "alone.nc", {"a": (("n",), ramp(0, (4,))), "b": (("m",), ramp(0, (5,)))}, "", None)
    assert main(["data", "inspect", str(path)]) == 0
    assert (
        "why: no variable has both varying values and possible inputs (variables along the same dim"
        in capsys.readouterr().out
    )


def test_values_that_stand_apart_are_told(tmp_path, capsys):
    """0 over land and 9999 in reports are told; rain, whole numbers and classes are not."""
    random = np.random.default_rng(0)

    def notes(**columns):
        of_obs = {name: (("obs",), values) for name, values in columns.items()}
        path = write_netcdf(tmp_path / f"{'_'.join(columns)}.nc", of_obs, "", None)
        assert main(["data", "inspect", str(path)]) == 0
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("note")]

    salt = np.where(np.arange(500) < 100, 0.0, random.uniform(20, 38, 500))
    dew = np.where(np.arange(500) == 7, 9999.0, random.normal(10, 5, 500))
    first, second = notes(salt=salt, dew=dew)
    assert first.startswith("note: dew: 0.2 % of its values are 9999, far from the others, ")
    assert first.endswith("if 9999 is a fill value, exclude it with domain.mask='dew < 9999'")
    assert second.startswith("note: salt: 20 % of its values are 0, far from the others, 20")
    assert second.endswith("exclude it with domain.mask='salt > 0'")
    rain = np.maximum(0, random.normal(size=500))
    assert notes(rain=rain, wind=random.integers(0, 30, 500) * 0.5144, kind=random.integers(0, 3, 500) * 50.0) == []
    np.savez(tmp_path / "table.npz", inputs=dew[:, None].astype("f4"), targets=rain[:, None].astype("f4"))
    assert main(["data", "inspect", str(tmp_path / "table.npz")]) == 0
    assert "if 9999 is a fill value, replace it by NaN\n" in capsys.readouterr().out


def test_a_place_that_nothing_names_is_named_where_one_variable_is_called_so(tmp_path, capsys):
    grid = {name: (("j", "i"), ramp(first, (4, 5))) for first, name in enumerate(("t", "geolat_c", "lon_a", "lon_b"))}
    path = write_netcdf(tmp_path / "f.nc", grid, "", None)
    assert main(["data", "inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "latitude: unknown; set data.coordinates={latitude: geolat_c}\n" in shown
    assert "longitude: unknown; set data.coordinates={longitude: NAME}\n" in shown


@pytest.mark.parametrize(("units", "scale"), [("degrees_east", 1.0), ("radian", np.pi / 180)])
def test_longitudes_around_the_globe_are_suggested_without_a_seam(tmp_path, capsys, units, scale):
    """0.1 and 359.9 degrees are neighbours; those of a region are numbers that go on."""
    for name, lon in (
        ("globe", np.arange(0, 360, 30.0)),
        ("around", np.arange(-180, 180, 30.0)),
        ("part", np.arange(12.0)),
    ):
        variables = {
            "t": (("cell",), ramp(0, (12,))),
            "lat": (("cell",), np.arange(12.0)),
            "lon": (("cell",), lon * scale),
        }
        attributes = {"lat": {"units": "degrees_north"}, "lon": {"units": units, "standard_name": "longitude"}}
        path = write_netcdf(tmp_path / f"{name}.nc", variables, "", None, **attributes)
        angle = "lon" if units == "radian" else "0.017453*lon"
        seamless = f"lat, 'cos({angle})', 'sin({angle})'"
        expected = "lat, lon" if name == "part" else seamless
        assert suggested(path, capsys) == f"variables.input_variables=[{expected}]"


def test_a_copy_of_the_target_is_no_input_whatever_both_lack():
    info = VariableInfo("x", ("n",), (5,), "<f8")
    target, copy, other = (
        Measured(name, info, np.array(values))
        for name, values in (("t", [1, np.nan, 3, 4, 5]), ("c", [1, np.nan, 3, 4, 5]), ("o", [2.0, 1, np.nan, 7, 6]))
    )
    assert [one.name for one in complete_together(target, [copy, other], 5)] == ["o"]
