"""Small files with the structure of real ones: Ferret's, NEMO's, WRF's, stations; what was silently wrong with them."""

import netCDF4
import numpy as np
import pytest
from field_files import config_of, ramp, read_all, write_netcdf

from mpitrain.config import load_run_config, load_settings_tree
from mpitrain.data.dataset.split import plan_split
from mpitrain.data.dataset.split_rule import VALIDATION, split_notices
from mpitrain.data.files.rotated_pole import true_coordinates
from mpitrain.data.selection.coordinates import open_coordinates
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import DataError

FREE = "domain.mask_mode=null"
FERRET = ("TIME", "COADSY", "COADSX")
YEAR_ZERO = {"units": "hour since 0000-01-01 00:00:00"}
LATITUDES, LONGITUDES = np.array([-50.0, -10.0, 10.0, 50.0]), np.arange(5) * 60.0


def ferret_file(path, **more):
    """A climatology as Ferret writes it: coordinates known by their units alone, times in the year 0."""
    values = {name: (FERRET, ramp(first)) for name, first in (("x", 0), ("y", 1000))}
    axes = {"COADSX": (("COADSX",), LONGITUDES), "COADSY": (("COADSY",), LATITUDES)}
    time = {"TIME": (("TIME",), np.array([366.0, 1096.5, 1827.0]))}
    units = {"COADSX": {"units": "degrees_east"}, "COADSY": {"units": "degrees_north"}, "TIME": YEAR_ZERO}
    return write_netcdf(path, axes | time | values, "TIME", None, **(units | more))


def orca_file(path):
    """A curvilinear level as iris writes it: the rows are an unlimited dimension, coordinates are named."""
    places = {"nav_lat": np.linspace(-80, 80, 20), "nav_lon": np.linspace(0, 300, 20)}
    variables = {name: (("dim0", "dim1"), ramp(first, (4, 5))) for name, first in (("x", 0), ("y", 100))}
    variables |= {name: (("dim0", "dim1"), one.reshape(4, 5)) for name, one in places.items()}
    variables["time_counter"] = ((), np.array(3600.0))
    named = {"coordinates": "deptht nav_lat nav_lon time_counter"}
    standard = {name: {"standard_name": word} for name, word in (("nav_lat", "latitude"), ("nav_lon", "longitude"))}
    times = {"units": "seconds since 0001-01-01 00:00:00", "standard_name": "time", "calendar": "360_day"}
    return write_netcdf(path, variables, "dim0", None, x=named, y=named, time_counter=times, **standard)


def source_of(path, *settings):
    return open_source(selection_of(config_of(path, FREE, *settings)))


def latitudes_of(source):
    return set(open_coordinates(source).at(read_all(source).grid_index)["lat"].tolist())


# Hemispheres, ranges and masks


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ((), {-50, -10, 10, 50}),
        (("domain.pole=south",), {-50, -10}),
        (("domain.pole=south", "domain.mask_mode=all"), {-50, -10}),
        (("domain.pole=north", "domain.mask_mode=all"), {10, 50}),
        (("domain.pole=north", "domain.mask_mode=ocean"), {10, 50}),
        (("domain.pole=both", "domain.mask_mode=all"), {-50, -10, 10, 50}),
        (("domain.pole=south", "domain.latitude_range=[-20, 90]"), {-10}),
        (("domain.clean_data=false", "domain.latitude_range=[-90, 90]", "domain.pole=both"), set()),
    ],
)
def test_a_hemisphere_needs_a_latitude_and_nothing_else(tmp_path, settings, expected):
    source = source_of(ferret_file(tmp_path / "f.nc"), *settings)
    assert (latitudes_of(source) if expected else set()) == expected
    if not expected:
        assert len(source.chunks) == 0  # none beyond 60 degrees


def test_what_earlier_versions_wrote_as_a_default_is_no_hemisphere():
    earlier = {"domain": {"pole": "north", "mask_mode": "all"}, "data": {"samples": "points"},
               "model": {"hidden_size": 16}, "output": {"model_dir": "run"}}  # fmt: skip
    assert load_settings_tree(earlier, "config.yaml").config.domain.pole is None
    asked = {"domain": {"pole": "north", "mask_mode": "all"}}
    assert load_settings_tree(asked, "config.yaml").config.domain.pole == "north"
    assert load_settings_tree(load_run_config(None).config.model_dump(), "c").config == load_run_config(None).config


def test_clean_data_beside_a_mask_mode_gets_a_line():
    loaded = load_run_config(None, ["domain.mask_mode=all", "domain.clean_data=false"])
    assert any(line.startswith("domain.clean_data=false: has no effect") for line in loaded.notices)


# Axes


def test_an_unlimited_dimension_of_rows_is_no_time(tmp_path):
    source = source_of(orca_file(tmp_path / "f.nc"))
    assert source.grid_shape == (4, 5)
    assert sum(one.num_times for one in source.files) == 1
    fields = source_of(tmp_path / "f.nc", "data.samples=fields")
    assert read_all(fields).inputs.shape == (1, 1, 4, 5)
    plan_split(config_of(tmp_path / "f.nc", FREE, "data.split=region").split_data, source)


def test_an_unlimited_dimension_of_reports_is_stations(tmp_path):
    values = {name: (("report",), ramp(0, (30,))) for name in ("x", "y", "lat", "lon")}
    units = {"lat": {"units": "degrees_N"}, "lon": {"units": "degrees_E"}}
    source = source_of(write_netcdf(tmp_path / "f.nc", values, "report", None, **units))
    assert source.grid_shape == (1, 30)
    values["when"] = (("report",), ramp(0, (30,)))
    drifting = write_netcdf(tmp_path / "g.nc", values, "report", None, when={"units": "days since 2000-01-01"}, **units)
    source = source_of(drifting, "variables.input_variables=[x, month]")
    assert source.grid_shape == (1, 1)  # each with a time of its own, which month needs
    assert read_all(source).inputs[:, 1].tolist() == [1.0] * 30


def test_a_vertical_axis_is_no_time(tmp_path):
    variables = {name: (("Z", "COADSY", "COADSX"), ramp()) for name in ("x", "y")}
    variables["Z"] = (("Z",), np.array([0.0, 10.0, 20.0]))
    path = write_netcdf(tmp_path / "f.nc", variables, "", None, Z={"units": "METERS", "positive": "down"})
    with pytest.raises(DataError, match=r"dimension Z of size 3 is neither .* take one level, as in \w\[Z=0\]"):
        source_of(path)
    levels = source_of(path, "data.coordinates={time: Z}")
    assert sum(one.num_times for one in levels.files) == 3  # where the user says so, levels are samples


# Coordinates


def test_coordinates_by_units_alone(tmp_path):
    found = open_coordinates(source_of(ferret_file(tmp_path / "f.nc")))
    assert np.array_equal(found.grids["lat"][:, 0], LATITUDES)
    assert np.array_equal(found.grids["lon"][0], LONGITUDES)


@pytest.mark.parametrize("units", ["degrees_north", "degree_north", "degree_N", "degrees_N", "degreeN", "degreesN"])
def test_all_of_the_spellings_of_cf(tmp_path, units):
    path = ferret_file(tmp_path / "f.nc", COADSY={"units": units})
    assert "lat" in open_coordinates(source_of(path)).grids


def test_bounds_and_rotated_coordinates_are_no_places(tmp_path):
    variables = {name: (("rlat", "rlon"), ramp(0, (4, 5))) for name in ("x", "y")}
    variables["rlat"] = (("rlat",), LATITUDES)
    variables["edges_of_it"] = (("rlat", "two"), ramp(0, (4, 2)))
    attributes = {"rlat": {"standard_name": "grid_latitude", "units": "degrees_north", "bounds": "edges_of_it"},
                  "edges_of_it": {"units": "degrees_north"}}  # fmt: skip
    assert open_coordinates(source_of(write_netcdf(tmp_path / "f.nc", variables, "", None, **attributes))).grids == {}


def wrf_file(path, **more):
    """As WRF writes: coordinates that move, named by the attribute `coordinates`, and staggered ones beside them."""
    shape, along = (2, 4, 5), ("Time", "south_north", "west_east")
    variables = {name: (along, ramp(0, shape)) for name in ("x", "y", "XLAT_U", "XLONG_U", "XLAT", "XLONG")}
    variables["XTIME"] = (("Time",), np.array([0.0, 60.0]))
    named = {"coordinates": "XLONG XLAT XTIME"}
    north, east = {"units": "degree_north"}, {"units": "degree_east"}
    attributes = {"x": named, "y": named, "XLAT": north, "XLAT_U": north, "XLONG": east, "XLONG_U": east,
                  "XTIME": {"units": "minutes since 2001-10-25 00:00:00"}}  # fmt: skip
    return write_netcdf(path, variables, "Time", None, **(attributes | more))


def test_coordinates_by_the_attribute_that_names_them(tmp_path):
    found = open_coordinates(source_of(wrf_file(tmp_path / "f.nc")))
    assert [found.stored[name].info.name for name in ("lat", "lon")] == ["XLAT", "XLONG"]
    assert found.times.tolist() == [0.0, 60.0]


def test_coordinates_that_the_user_names(tmp_path):
    nothing = {name: {} for name in ("x", "y", "XLAT", "XLAT_U", "XLONG", "XLONG_U")}
    path = wrf_file(tmp_path / "f.nc", **nothing)
    assert open_coordinates(source_of(path)).stored == {}
    named = source_of(path, "data.coordinates={latitude: XLAT, longitude: XLONG, time: XTIME}", "domain.pole=north")
    found = open_coordinates(named)
    assert [found.stored[name].info.name for name in ("lat", "lon")] == ["XLAT", "XLONG"]
    with pytest.raises(DataError, match=r"no variable 'LAT', which data.coordinates names as latitude; .* x, y, XLAT"):
        source_of(path, "data.coordinates={latitude: LAT}")
    with pytest.raises(DataError, match=r"no variable 'T', which data.coordinates names as time"):
        source_of(path, "data.coordinates={time: T}")


def test_a_named_coordinate_of_another_grid_is_refused(tmp_path):
    variables = {name: (("time", "a", "b"), ramp()) for name in ("x", "y")} | {"where": (("c",), np.arange(7.0))}
    path = write_netcdf(tmp_path / "f.nc", variables)
    with pytest.raises(DataError, match=r"'where' \(c=7\), which data.coordinates names, is not on the grid of"):
        open_coordinates(source_of(path, "data.coordinates={latitude: where}"))


# Times


def test_times_of_the_year_zero(tmp_path):
    path = ferret_file(tmp_path / "f.nc")
    names = "variables.input_variables=[month, year, day_of_year, hour_of_day]"
    found = read_all(source_of(path, names)).inputs[::20]
    assert found.tolist() == [[1, 0, 16.25, 6], [2, 0, 46.6875, 16.5], [3, 0, 77.125, 3]]


MONTHS = "variables.input_variables=[month, year, day_of_year, hour_of_day]"


@pytest.mark.parametrize(
    ("units", "calendar", "numbers", "expected"),
    [
        ("months since 1958-1-1 00:00:00", "standard", [0, 1, 25],
         [[1, 1958, 1, 0], [2, 1958, 32, 0], [2, 1960, 32, 0]]),
        ("month since 2001-03-15 06:00", "noleap", [-3, 0, 9],
         [[12, 2000, 349.25, 6], [3, 2001, 74.25, 6], [12, 2001, 349.25, 6]]),
        ("years since 2000-02-28", "standard", [0, 1, 4], [[2, 2000, 59, 0], [2, 2001, 59, 0], [2, 2004, 59, 0]]),
        ("months since 2001-01-01", "360_day", [0, 0.5, 1], [[1, 2001, 1, 0], [1, 2001, 16, 0], [2, 2001, 31, 0]]),
    ],
)  # fmt: skip
def test_whole_months_and_years_are_counted_in_the_calendar(tmp_path, units, calendar, numbers, expected):
    times = {"TIME": {"units": units, "calendar": calendar}}
    path = ferret_file(tmp_path / "f.nc", **times)
    with netCDF4.Dataset(path, "a") as file:
        file["TIME"][:] = numbers
    assert read_all(source_of(path, MONTHS)).inputs[::20].tolist() == expected


@pytest.mark.parametrize(
    ("units", "numbers", "why"),
    [
        ("months since 2001-01-01", [0.0, 0.5, 1.0], "a fraction of a month or year is not a date"),
        ("months since 2001-01-31", [0, 1, 2], "month 2 of 2001 has no day 31"),
        ("years since 2000-02-29", [0, 1, 2], "month 2 of 2001 has no day 29"),
    ],
)
def test_months_that_are_no_dates_are_refused_in_one_line(tmp_path, units, numbers, why):
    path = ferret_file(tmp_path / "f.nc", TIME={"units": units})
    with netCDF4.Dataset(path, "a") as file:
        file["TIME"][:] = numbers
    with pytest.raises(DataError, match=rf"f.nc: its times, '{units}', cannot be read \(.*{why}.*; correct its units, "
                       "or write days since a date to TIME"):  # fmt: skip
        read_all(source_of(path, MONTHS))


ABSOLUTE = "day as %Y%m%d.%f"


def test_absolute_times_are_days(tmp_path):
    """As CDO writes them for ICON: 20981118.75 is 18:00 of 18 November 2098. What is no date is missing."""
    path = ferret_file(tmp_path / "f.nc", TIME={"units": ABSOLUTE, "calendar": "proleptic_gregorian"})
    with netCDF4.Dataset(path, "a") as file:
        file["TIME"][:] = [20981118.75, 20990101.0, 20990231.0]
    source = source_of(path, "variables.input_variables=[hour_of_day, day_of_year, year]")
    assert read_all(source).inputs[::20].tolist()[:2] == [[18, 322.75, 2098], [0, 1, 2099]]
    found = open_coordinates(source)
    assert found.attributes["time"]["units"] == "days since 1970-01-01"
    assert found.times.tolist()[:2] == [47073.75, 47117.0]
    assert np.isnan(found.times[2])
    # Beside files with times since a date.
    other = ferret_file(tmp_path / "g.nc", TIME={"units": "days since 2100-01-01", "calendar": "proleptic_gregorian"})
    times = open_coordinates(source_of(f"[{path}, {other}]")).times
    assert times[3:].tolist() == [47848.0, 48578.5, 49309.0]


@pytest.mark.parametrize(("third", "expected"), [(151, [0, 1, 2, 3, 4, 5]), (150, None)])
def test_times_of_a_later_file_are_put_into_the_months_of_the_first(tmp_path, third, expected):
    paths = [ferret_file(tmp_path / "a.nc", TIME={"units": "months since 2001-01-01"})]
    paths += [ferret_file(tmp_path / "b.nc", TIME={"units": "days since 2001-01-01"})]
    for path, numbers in zip(paths, ([0, 1, 2], [90, 120, third]), strict=True):
        with netCDF4.Dataset(path, "a") as file:
            file["TIME"][:] = numbers
    source = source_of(f"[{paths[0]}, {paths[1]}]")
    if expected:
        assert open_coordinates(source).times.tolist() == expected
        return
    with pytest.raises(
        DataError,
        match=r"b.nc: its times.*cannot be converted to 'months since 2001-01-01', calendar 'standard' \(2001-05-31",
    ):
        open_coordinates(source)


def test_a_time_beside_a_dimension_without_units(tmp_path):
    along = ("time_counter", "y", "x")
    variables = {name: (along, ramp()) for name in ("a", "b")}
    variables |= {
        "time_counter": (("time_counter",), np.zeros(3)),
        "time_centered": (("time_counter",), np.arange(3.0)),
    }
    attributes = {"time_centered": {"units": "days since 2015-01-31", "standard_name": "time"},
                  "time_counter": {"axis": "T"}}  # fmt: skip
    path = write_netcdf(tmp_path / "f.nc", variables, "time_counter", None, **attributes)
    source = source_of(path, "variables.input_variables=[a, month]", "variables.output_variables=[b]")
    assert read_all(source).inputs[::20, 1].tolist() == [1, 2, 2]
    assert open_coordinates(source).times.tolist() == [0, 1, 2]


# Rotated poles


def rotated_file(path, **mapping):
    """A small grid around the middle of EURO-CORDEX, with the rotated coordinates alone."""
    variables = {name: (("rlat", "rlon"), ramp(first, (3, 4))) for name, first in (("x", 0), ("y", 100))}
    variables |= {"rlat": (("rlat",), np.array([-23.375, 0.0, 21.835]))}
    variables |= {"rlon": (("rlon",), np.array([-28.375, 0.0, 10.0, 18.155]))}
    variables["pole"] = ((), np.array(0))
    named = {"grid_mapping_name": "rotated_latitude_longitude", "grid_north_pole_latitude": 39.25,
             "grid_north_pole_longitude": -162.0}  # fmt: skip
    attributes = {"rlat": {"standard_name": "grid_latitude", "units": "degrees"}, "pole": named | mapping,
                  "rlon": {"standard_name": "grid_longitude", "units": "degrees"}}  # fmt: skip
    return write_netcdf(path, variables, "", None, **attributes, **{name: {"grid_mapping": "pole"} for name in "xy"})


def test_a_rotated_pole_tells_true_places(tmp_path):
    """The corners are those of EUR-11's files with true places; its middle is 50.75 N, 18 E."""
    path = rotated_file(tmp_path / "f.nc")
    found = open_coordinates(source_of(path)).grids
    assert (found["lat"][1, 1], found["lon"][1, 1]) == (pytest.approx(50.75), pytest.approx(18.0))
    corners = found["lat"][[0, 0, -1, -1], [0, -1, 0, -1]], found["lon"][[0, 0, -1, -1], [0, -1, 0, -1]]
    np.testing.assert_allclose(corners[0], [21.99, 25.11, 60.20, 66.69], atol=0.01)
    np.testing.assert_allclose(corners[1], [-10.06, 36.41, -44.59, 64.96], atol=0.01)
    assert latitudes_of(source_of(path, "domain.latitude_range=[50, 51]")) == {found["lat"][1, 1]}
    assert read_all(source_of(path, "variables.input_variables=[lat, lon]")).inputs.shape == (12, 2)


def test_rotated_poles_meet_their_own_definition():
    """The rotated pole lies where the mapping says, the true one at its rotated longitude; distances stay."""
    random = np.random.default_rng(0)
    y, x = np.degrees(np.arcsin(random.uniform(-1, 1, 200))), random.uniform(-180, 180, 200)
    y[:2], x[:2] = [90.0, 39.25], [0.0, 30.0]
    lat, lon = true_coordinates(y, x, 39.25, -162.0, 30.0)
    assert (lat[0], lon[0]) == (pytest.approx(39.25), pytest.approx(-162.0))
    assert lat[1] == pytest.approx(90.0)

    def cosines(lat, lon):
        lat, lon = np.radians(lat), np.radians(lon)
        places = np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])
        return places.T @ places, np.linalg.det(places[:, 2:5])

    (before, hand), (after, same_hand) = cosines(y, x), cosines(lat, lon)
    np.testing.assert_allclose(before[2:, 2:], after[2:, 2:], atol=1e-9)
    assert same_hand == pytest.approx(hand)  # a rotation, no mirror


def test_places_that_a_file_has_are_its_own(tmp_path):
    path = rotated_file(tmp_path / "f.nc")
    with netCDF4.Dataset(path, "a") as file:
        for name in ("lat", "lon"):
            file.createVariable(name, "f4", ("rlat", "rlon"))[:] = np.arange(12.0).reshape(3, 4)
            file[name].units = {"lat": "degrees_north", "lon": "degrees_east"}[name]
    assert open_coordinates(source_of(path)).grids["lat"][1, 1] == 5
    # Without the pole nothing is known of them.
    other = rotated_file(tmp_path / "g.nc", grid_north_pole_latitude="north")
    assert open_coordinates(source_of(other)).grids == {}


# Splits, targets and units


def test_regions_are_drawn_from_the_selected_points(tmp_path):
    shape = (2, 36, 72)
    variables = {name: (("time", "lat", "lon"), ramp(0, shape)) for name in ("x", "y")}
    variables |= {"lat": (("lat",), np.linspace(-87.5, 87.5, 36)), "lon": (("lon",), np.arange(72) * 5.0)}
    path = write_netcdf(tmp_path / "f.nc", variables)
    for seed in range(5):
        settings = (FREE, "data.split=region", "domain.latitude_range=[20, 50]", f"seed={seed}")
        config = config_of(path, *settings)
        source = open_source(selection_of(config))
        index = read_all(source).grid_index
        flags = plan_split(config.split_data, source).roles(index, 0) == VALIDATION
        assert 0.07 < flags.mean() < 0.13
    folds = [
        (
            plan_split(config_of(path, *settings, "data.folds=5", f"data.fold={fold}").split_data, source).roles(
                index, 0
            )
            == VALIDATION
        )
        for fold in range(5)
    ]
    assert (np.sum(folds, axis=0) == 1).all()


def test_a_held_out_share_that_is_not_the_one_asked_for_is_told(tmp_path):
    path = ferret_file(tmp_path / "f.nc")
    config = config_of(path, FREE, "data.split=region", "data.split_blocks=4")
    rule = plan_split(config.split_data, source_of(path))
    assert next(split_notices(rule, 15, 0, 60)).endswith(
        "15 samples: 25 % of all, 10 % were requested; skill on them says little about the others: set "
        "data.split_blocks with data.split=time or region, or data.split=random"
    )
    assert list(split_notices(rule, 6, 0, 60)) == ["held out for validation: 1 of 4 blocks of the grid, 6 samples"]


def test_a_target_that_is_an_input_gets_a_notice(tmp_path):
    path = ferret_file(tmp_path / "f.nc", y={"standard_name": "sea_surface_temperature"})
    both = source_of(path, "variables.input_variables=[x, sst]")
    assert "variables.output_variables: y is also an input (sst): the network can simply copy it" in both.notices
    lagged = source_of(path, "variables.input_variables=['y[time-1]']")
    assert not any("is also an input" in notice for notice in lagged.notices)


@pytest.mark.parametrize("units", ["degree_C", "degrees_C", "deg_C", "degree_Celsius", "celsius", "Deg C"])
def test_spellings_of_celsius_get_no_notice(tmp_path, units):
    path = ferret_file(tmp_path / "f.nc", x={"standard_name": "sea_surface_temperature", "units": units})
    assert source_of(path, "variables.input_variables=[sst]").notices == ()


def test_longitudes_are_turned_to_those_of_the_network(tmp_path):
    from dataclasses import replace

    file = ferret_file(tmp_path / "f.nc")
    names = "variables.input_variables=[COADSX]"
    selection = selection_of(config_of(file, FREE, names))
    turned = open_source(replace(selection, longitude_ranges={"COADSX": (-135.0, -45.0)}))
    found = sorted(set(read_all(turned).inputs[:, 0].tolist()))
    assert found == [-240.0, -180.0, -120.0, 0.0, 60.0]
    assert "are shifted by whole turns towards it" in turned.notices[0]
    same = open_source(replace(selection, longitude_ranges={"COADSX": (0.0, 240.0)}))
    assert same.notices == ()
    assert sorted(set(read_all(same).inputs[:, 0].tolist())) == LONGITUDES.tolist()
    # Ends that are rounded to single precision are no other turn.
    rounded = open_source(replace(selection, longitude_ranges={"COADSX": (0.0, float(np.nextafter(240.0, 0.0)))}))
    assert rounded.notices == ()
    # What is no longitude, such as x, is left as it is.
    other = open_source(replace(selection_of(config_of(file, FREE)), longitude_ranges={"x": (100.0, 110.0)}))
    assert np.array_equal(read_all(other).inputs[:, 0], ramp().reshape(-1))


def test_longitudes_in_radians_are_turned_by_turns_of_radians(tmp_path):
    from dataclasses import replace

    radians = {"standard_name": "longitude", "units": "radian"}
    file = ferret_file(tmp_path / "f.nc", COADSX=radians)
    selection = selection_of(config_of(file, FREE, "variables.input_variables=[COADSX]"))
    with netCDF4.Dataset(str(file), "a") as dataset:
        dataset["COADSX"][:] = np.radians(LONGITUDES)
    turned = open_source(replace(selection, longitude_ranges={"COADSX": (-np.pi, np.pi / 2)}))
    found = np.degrees(sorted(set(read_all(turned).inputs[:, 0].tolist())))
    np.testing.assert_allclose(found, [-180, -120, 0, 60, 120], atol=1e-4)


# Other formats


def test_a_format_that_is_not_read_comes_with_a_command_that_converts_it(tmp_path):
    for name, start, words in (
        (
            "f.grb",
            b"GRIB....",
            r"f.grb: GRIB is not supported; convert it to NetCDF: cfgrib to_netcdf -o f.nc .*f.grb \(python -m",
        ),
        ("a.pp", b"\0\0\1\0....", r"a.pp: PP of the Met Office is not supported; .*iris.load\('.*a.pp'\), 'a.nc'"),
        ("a.hdf", b"\x0e\x03\x13\x01....", "a.hdf: HDF4 is not supported; convert it to NetCDF: h4toh5 .*a.hdf a.nc"),
    ):
        (tmp_path / name).write_bytes(start)
        with pytest.raises(DataError, match=words):
            source_of(tmp_path / name)
