"""Sources of samples: what is selected from which files, in what order, and what each bad file is told."""

import multiprocessing
import pickle
import time
from concurrent.futures import ThreadPoolExecutor

import h5py
import netCDF4
import numpy as np
import pytest
import torch
from field_files import COLUMNS, ROWS, TIMES, config_of, counted_reads, ramp, read_all, write_netcdf, write_xy
from tiny_history import FIELD, GRID, write_tiny_history

from mpitrain.config import load_run_config
from mpitrain.data.describe.names import CICE_INPUTS
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import ConfigError, DataError, UserError

NAN = np.nan
FIELDS = "data.samples=fields"


def history_config(path, *settings):
    return load_run_config(None, [f"data.data_path={path}", *settings]).config


def as_the_cpp_program_selects(path, pole, clean):
    """Grid indices, inputs and target of the selected points, in plain loops over the file's own numbers."""
    with netCDF4.Dataset(path) as dataset:
        dataset.set_auto_maskandscale(False)
        latitude, mask = (np.asarray(dataset[name][:]).ravel() for name in ("ULAT", "umask"))
        fields = [np.asarray(dataset[name][:]).ravel() for name in (*CICE_INPUTS, "aice_h")]
    sign, aice = (1 if pole == "north" else -1), fields[-1]
    is_clean = (mask == 1) & (sign * latitude > 40) & (aice > 0) & (aice <= 1)
    chosen = np.flatnonzero(is_clean if clean else sign * latitude > 60)
    return chosen, np.stack([field[chosen] for field in fields[:-1]], axis=1), aice[chosen]


@pytest.mark.parametrize("pole", ["north", "south"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_plain_history_file_gives_its_selected_points(small_history, pole, clean):
    expected = as_the_cpp_program_selects(small_history, pole, clean)
    settings = (f"domain.pole={pole}", f"domain.clean_data={str(clean).lower()}")
    source = open_source(selection_of(history_config(small_history, *settings)), target_bytes=4000)
    samples = read_all(source)
    assert len(source.chunks) > 3
    for new, old in zip((samples.grid_index, samples.inputs, samples.targets[:, 0]), expected, strict=True):
        assert new.dtype == old.dtype
        np.testing.assert_array_equal(new, np.where(np.abs(old) >= 1e29, NAN, old))
    assert (source.kind, source.grid_shape, source.num_points) == ("points", (48, 72), 48 * 72)
    assert (source.input_names, source.units["hi_h"]) == (CICE_INPUTS, "m")


def test_both_poles(small_history):
    counts = [len(read_all(open_source(selection_of(history_config(small_history, f"domain.pole={pole}"))))) for pole in
              ("north", "south", "both")]  # fmt: skip
    assert counts[2] == counts[0] + counts[1]
    assert min(counts) > 0


def test_the_fourteen_inputs_of_an_older_file(tmp_path):
    """Users' short names find the variables of a CICE file, and CF names those of another model."""
    cice = ("sst_h", "sss_h", "Tair_h", "Tsfc_h", "hi_h", "hs_h", "sice_h", "uocn_h", "vocn_h", "uatm_h", "vatm_h",
            "Qref_h", "flwdn_h", "fswdn_h", "aice_h")  # fmt: skip
    variables = {name: (FIELD, ramp(100 * number, (1, 2, 3)) / 2000) for number, name in enumerate(cice)}
    variables |= {name: (GRID, np.ones((2, 3), "f4")) for name in ("ULAT", "umask", "TLAT")}
    variables["other"] = variables.pop("sst_h")
    path = write_netcdf(
        tmp_path / "gdas.nc", variables, other={"standard_name": "sea_surface_temperature", "units": "K"}
    )
    from conftest import TESTS

    older = TESTS / "data" / "older_configs" / "emulator_large.yaml"
    config = load_run_config(older, [f"data.data_path={path}"]).config
    source = open_source(selection_of(config))
    assert source.input_names == tuple(config.variables.input_variables)
    samples = read_all(source)
    assert samples.inputs.shape == (6, 14)
    assert samples.inputs[1].tolist() == [np.float32((100 * number + 1) / 2000) for number in range(14)]
    assert source.files[0].variables["sst"].info.name == "other"


def test_a_name_that_may_be_two_or_none(tmp_path):
    path = write_xy(tmp_path / "f.nc")
    with netCDF4.Dataset(str(path), "a") as dataset:
        for name in ("sst_h", "sst_d"):
            dataset.createVariable(name, "f4", ("time", "nj", "ni"))[:] = 0
    with pytest.raises(DataError, match=r"'sst' may be any of sst_h, sst_d; give one of these names"):
        open_source(selection_of(config_of(path, "variables.input_variables=[sst]")))
    lacks = r"no variable 'nothing'; this one has x, y, sst_h, sst_d; name those to use in variables.input_variables"
    with pytest.raises(DataError, match=lacks):
        open_source(selection_of(config_of(path, "variables.input_variables=[nothing]")))
    of_cice = (
        r"no variable 'Tair_h' \(the default variables are those of a CICE history\).*name those to use in "
        r"variables.input_variables$"
    )
    with pytest.raises(DataError, match=of_cice):
        open_source(selection_of(load_run_config(None, [f"data.data_path={path}"]).config))


ORDERS = [
    (("time", "nj", "ni"), {}),
    (("ni", "nj", "time"), {}),
    (("lat", "time", "lon"), {}),
    (
        ("a", "b", "c"),
        {"a": {"axis": "X"}, "b": {"units": "days since 2000-01-01"}, "c": {"standard_name": "latitude"}},
    ),
    (("p", "q", "grow"), {}),
]


@pytest.mark.parametrize(
    ("dimensions", "coordinates"), ORDERS, ids=["usual", "reversed", "mixed", "by CF", "unlimited"]
)
@pytest.mark.parametrize("chunked", [False, True])
def test_any_order_of_dimensions(tmp_path, dimensions, coordinates, chunked):
    kinds = [
        coordinates.get(name, {}).get("axis") or {"time": "T", "b": "T", "grow": "T", "nj": "Y", "lat": "Y", "c": "Y",
                                                   "p": "Y"}.get(name, "X")
        for name in dimensions
    ]  # fmt: skip
    order = ["TYX".index(kind) for kind in kinds]
    variables = {name: (dimensions, ramp(first).transpose(order)) for name, first in (("x", 0), ("y", 1000))}
    sizes = dict(zip(dimensions, variables["x"][1].shape, strict=True))
    variables |= {name: ((name,), np.zeros(sizes[name])) for name in coordinates}
    path = write_netcdf(
        tmp_path / "f.nc", variables, unlimited="grow", chunks=dict.fromkeys("xy", (2, 2, 2)) if chunked else None,
        **coordinates,
    )  # fmt: skip
    source = open_source(selection_of(config_of(path)), target_bytes=100)
    with counted_reads() as reads:
        samples = read_all(source)
    order = np.argsort(samples.grid_index)
    assert samples.inputs[order, 0].tolist() == list(range(TIMES * ROWS * COLUMNS))
    assert (samples.targets - samples.inputs).tolist() == [[1000.0]] * 60
    assert samples.grid_index[order].tolist() == list(range(60))
    assert set(reads.values()) == {1}
    assert len(source.chunks) > 1


def test_squeezed_axes_one_dimensional_coordinates_and_further_levels(tmp_path):
    lev = ("time", "lev", "nj", "ni")
    variables = {
        "x": (lev, ramp()[:, None]),
        "y": (("time", "nj", "ni"), ramp(1000)),
        "lat": (("nj",), np.array([0, 10, 20, 30.0])),
        "depth": (("nj", "ni"), ramp(500, (ROWS, COLUMNS))),
        "z": (("time", "z", "nj", "ni"), np.zeros((3, 2, 4, 5), "f4")),
    }
    path = write_netcdf(tmp_path / "f.nc", variables)
    settings = ("variables.input_variables=[x, depth, lat]", "domain.latitude_range=[10, 20]")
    samples = read_all(open_source(selection_of(config_of(path, *settings)), target_bytes=200))
    assert len(samples) == TIMES * 2 * COLUMNS
    assert set(samples.inputs[:, 2]) == {10, 20}
    np.testing.assert_array_equal(samples.inputs[:, 1], 500 + samples.grid_index % 20)
    with pytest.raises(DataError, match=r"'z' \(time=3, z=2, nj=4, ni=5\): dimension z of size 2 is neither"):
        open_source(selection_of(config_of(path, "variables.input_variables=[z]")))


def longitudes(tmp_path):
    lon = np.array([0, 90, 180, 270, 359.0])
    return write_netcdf(
        tmp_path / "f.nc",
        {name: (("time", "lat", "lon"), ramp(first)) for name, first in (("x", 0), ("y", 1000))}
        | {"lon": (("lon",), lon), "lat": (("lat",), np.array([-60, 0, 45, 70.0]))},
    )


@pytest.mark.parametrize(
    ("range_", "columns"),
    [("[350, 10]", {0, 4}), ("[-90, 0]", {0, 3, 4}), ("[80, 190]", {1, 2}), ("[0, 360]", {0, 1, 2, 3, 4})],
)
def test_longitude_ranges_cross_the_meridian(tmp_path, range_, columns):
    path = longitudes(tmp_path)
    samples = read_all(open_source(selection_of(config_of(path, f"domain.longitude_range={range_}"))))
    assert set(samples.grid_index % COLUMNS) == columns


def test_rows_without_any_sample_are_not_read(tmp_path):
    path = longitudes(tmp_path)
    source = open_source(selection_of(config_of(path, "domain.latitude_range=[40, 80]")))
    with counted_reads() as reads:
        assert set(read_all(source).grid_index // COLUMNS % ROWS) == {2, 3}
    assert {block[1] for _, name, block in reads if name == "x"} == {2, 3}
    with pytest.raises(ConfigError, match=r"domain.latitude_range=\[80.0, 40.0\]"):
        open_source(selection_of(config_of(path, "domain.latitude_range=[80, 40]")))


def test_mask_modes_and_masks(tmp_path):
    y = ramp(1000) / 2000
    y[:, 0, 0], y[:, 0, 1] = 1e30, 0
    variables = {"x": (FIELD, ramp()), "aice": (FIELD, y), "g/m": (FIELD, ramp())}
    path = write_netcdf(tmp_path / "f.nc", variables)

    def selected(*settings):
        return len(read_all(open_source(selection_of(config_of(path, "variables.output_variables=[aice]", *settings)))))

    assert [selected(f"domain.mask_mode={mode}") for mode in ("all", "ocean", "sea_ice")] == [60, 57, 54]
    assert selected("domain.mask=x >= 50 and aice > 0") == 10
    assert selected('domain.mask=var("g/m") < 10') == 10
    assert selected("domain.mask_mode=null") == 60  # no CICE history: nobody asked for a hemisphere
    with pytest.raises(DataError, match=r"has no latitude \(.*this one has x, aice, g/m; domain.pole needs it"):
        selected("domain.mask_mode=null", "domain.pole=south")
    with pytest.raises(DataError, match=r"has no latitude"):
        selected("domain.mask_mode=null", "domain.clean_data=false")
    with pytest.raises(ConfigError, match=r"domain.mask: column 1: the call __import__"):
        selected("domain.mask=__import__('os').system('x') == 0")


def test_fields_have_weights_where_there_is_a_target(tmp_path):
    y, x = ramp(1000), ramp()
    y[0, 1, 1], x[2, 3, 4] = 1e30, 1e30
    path = write_xy(tmp_path / "f.nc", x, y)
    source = open_source(selection_of(config_of(path, FIELDS, "domain.mask=x != 0")), target_bytes=100)
    samples = read_all(source)
    assert samples.inputs.shape == samples.targets.shape == samples.weights.shape == (TIMES, 1, ROWS, COLUMNS)
    assert samples.grid_index.tolist() == [0, 1, 2]
    unused = np.argwhere(samples.weights == 0).tolist()
    assert unused == [[0, 0, 0, 0], [0, 0, 1, 1]]
    assert np.isnan(samples.inputs[0, 0, 0, 0])
    assert np.isnan(samples.targets[0, 0, 1, 1])
    assert np.isnan(samples.inputs[2, 0, 3, 4])
    assert (len(source.chunks), source.num_points, source.kind) == (3, 3, "fields")


def test_area_weights_are_cosines_of_the_latitude(tmp_path):
    path = longitudes(tmp_path)
    points = read_all(open_source(selection_of(config_of(path, "data.area_weighted=true"))))
    assert points.area_weights[:COLUMNS] == pytest.approx([0.5] * COLUMNS)
    fields = read_all(open_source(selection_of(config_of(path, "data.area_weighted=true", FIELDS))))
    assert fields.area_weights.shape == (TIMES, ROWS, COLUMNS)
    assert fields.area_weights[0, :, 0] == pytest.approx(np.cos(np.radians([-60, 0, 45, 70])), abs=1e-7)


def test_thinning_and_max_patterns_do_not_depend_on_the_chunks(tmp_path):
    path = write_xy(tmp_path / "f.nc", ramp(shape=(30, 20, 20)), ramp(shape=(30, 20, 20)))
    kept = [
        read_all(
            open_source(selection_of(config_of(path, "data.thin_fraction=0.25", f"seed={seed}")), target)
        ).grid_index.tolist()
        for seed, target in ((1, 500), (1, 10**6), (2, 10**6))
    ]
    assert kept[0] == kept[1] != kept[2]
    assert 0.22 < len(kept[0]) / 12000 < 0.28
    source = open_source(selection_of(config_of(path, "data.max_patterns=7")))
    flags = source.keeps(np.arange(100), 100)
    assert flags.sum() == 7
    assert set(np.diff(np.flatnonzero(flags))) == {14, 15}
    assert source.keeps(np.arange(50, 100), 100).tolist() == flags[50:].tolist()
    assert source.keeps(np.arange(7), 7).all()


def test_files_in_natural_order_follow_one_another_in_time(tmp_path):
    for number in (1, 2, 10):
        write_xy(
            tmp_path / f"year_{number}.nc", ramp(number, (number, ROWS, COLUMNS)), ramp(shape=(number, ROWS, COLUMNS))
        )
    source = open_source(selection_of(config_of(tmp_path / "year_*.nc")))
    assert [record.path.name for record in source.files] == ["year_1.nc", "year_2.nc", "year_10.nc"]
    assert [record.first_time for record in source.files] == [0, 1, 3]
    samples = read_all(source)
    assert samples.grid_index.tolist() == list(range(13 * 20))
    assert samples.inputs[60, 0] == 10
    listed = open_source(selection_of(config_of(f"[{tmp_path}/year_10.nc, {tmp_path}/year_*.nc]")))
    assert [record.num_times for record in listed.files] == [10, 1, 2]
    for entry, words in (
        ("none_*.nc", "no file matches"),
        ("none.nc", "no such file"),
        ("", "a folder; add a pattern"),
    ):
        with pytest.raises(DataError, match=words):
            open_source(selection_of(config_of(tmp_path / entry)))


def test_files_without_time_are_one_level_each(tmp_path):
    for number in range(3):
        grid = ("nj", "ni")
        variables = {name: (grid, ramp(100 * number, (ROWS, COLUMNS))) for name in ("x", "y")}
        variables |= {"lat": (grid, ramp(0, (ROWS, COLUMNS))), "depth": (grid, ramp(50 * number, (ROWS, COLUMNS)))}
        write_netcdf(tmp_path / f"f{number}.nc", variables)
    source = open_source(
        selection_of(config_of(tmp_path / "f*.nc", "domain.latitude_range=[5, 90]", "domain.mask=depth < 60"))
    )
    samples = read_all(source)
    # Latitudes are the grid's, read once; x, y and what the mask compares belong to each file.
    assert samples.grid_index.tolist() == [*range(5, 20), *range(25, 30)]
    assert samples.inputs[:, 0].tolist() == [*range(5, 20), *range(105, 110)]


def test_two_threads_do_not_share_handles(tmp_path):
    source = open_source(selection_of(config_of(write_xy(tmp_path / "f.nc"))))
    file = source.files[0]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(source.handles.get, file).result() is not source.handles.get(file)
        assert pool.submit(lambda: read_all(source)).result().inputs.shape == read_all(source).inputs.shape


@pytest.mark.parametrize("chunks", [(1, 2, 5), (TIMES, 2, 2), (2, 3, 5)], ids=["levels", "whole series", "crossing"])
@pytest.mark.parametrize("target_bytes", [1, 200, 10**6])
def test_no_stored_block_is_read_twice(tmp_path, chunks, target_bytes):
    path = write_xy(tmp_path / "f.nc", chunks={"x": chunks, "y": (1, ROWS, COLUMNS)})
    source = open_source(selection_of(config_of(path)), target_bytes)
    with counted_reads() as reads:
        samples = read_all(source)
    assert set(reads.values()) == {1}
    assert sorted(samples.grid_index.tolist()) == list(range(60))
    num_blocks = np.prod([-(-size // length) for size, length in zip((TIMES, ROWS, COLUMNS), chunks, strict=True)])
    assert sum(name == "x" for _, name, _ in reads) == num_blocks


@pytest.mark.parametrize("format_", ["npz", "pt", "h5"])
def test_samples_that_are_ready(tmp_path, format_):
    inputs, targets = np.arange(40, dtype="f4").reshape(20, 2), np.arange(20, dtype="f4")
    path = tmp_path / f"s.{format_}"
    if format_ == "npz":
        np.savez(path, inputs=inputs, targets=targets)
    elif format_ == "pt":
        torch.save({"inputs": torch.from_numpy(inputs), "targets": torch.from_numpy(targets)}, path)
    else:
        with h5py.File(path, "w") as file:
            file.create_dataset("inputs", data=inputs, chunks=(4, 2))
            file.create_dataset("targets", data=targets, chunks=(6,))
    source = open_source(selection_of(history_config(path)), target_bytes=50)
    with counted_reads() as reads:
        samples = read_all(source)
    assert samples.inputs.tolist() == inputs.tolist()
    assert samples.targets.tolist() == targets[:, None].tolist()
    assert (samples.grid_index.tolist(), source.num_points) == (list(range(20)), 20)
    assert set(reads.values()) == {1}
    assert len(source.chunks) == (2 if format_ == "h5" else 1)
    assert source.notices == ()
    named = open_source(
        selection_of(history_config(path, "variables.input_variables=[sst, hi]", "domain.mask=sst > 0"))
    )
    assert "domain.mask: not used with" in named.notices[0]
    assert named.input_names == ("sst", "hi")


def test_named_arrays_of_an_npz_file_are_a_grid(tmp_path):
    np.savez(tmp_path / "f.npz", x=ramp(), y=ramp(1000), lat=np.arange(ROWS, dtype="f4"))
    samples = read_all(open_source(selection_of(config_of(tmp_path / "f.npz", "domain.latitude_range=[1, 2]"))))
    assert samples.grid_index.tolist() == [t * 20 + k for t in range(TIMES) for k in range(5, 15)]


def bad_list(tmp_path, case):
    """A list of two files, the second of which is bad."""
    first, second = write_xy(tmp_path / "a.nc"), tmp_path / "b.nc"
    grid = ("time", "nj", "ni")
    if case == "without":
        write_netcdf(second, {"x": (grid, ramp())})
    elif case == "grid":
        write_xy(second, ramp(shape=(3, 5, 5)), ramp(shape=(3, 5, 5)))
    elif case == "latitudes":
        for path, shift in ((first, 0), (second, 1)):
            lat = (("nj",), np.arange(ROWS, dtype="f4") + shift)
            write_netcdf(path, {"x": (grid, ramp()), "y": (grid, ramp()), "lat": lat})
    elif case == "no times":
        write_xy(second, ramp(shape=(0, ROWS, COLUMNS)), ramp(shape=(0, ROWS, COLUMNS)), unlimited="time")
    elif case == "cut":
        second.write_bytes(first.read_bytes()[:-3000])
    elif case == "text":
        write_netcdf(second, {"x": (grid, np.full((3, 4, 5), b"a")), "y": (grid, ramp())})
    return config_of(f"[{first}, {second}]", *(["domain.latitude_range=[0, 90]"] if case == "latitudes" else []))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("without", r"b.nc: no variable 'y'; this one has x"),
        ("grid", r"b.nc: its grid of 5 rows x 5 columns differs from that of .*a.nc, 4 rows x 5 columns"),
        ("latitudes", r"b.nc: variable 'lat' differs from that of .*a.nc: the grid must be the same"),
        ("no times", r"b.nc: variable '.' has shape \(0, 4, 5\): a dimension has length 0"),
        ("cut", r"b.nc: cannot be read as NetCDF .*is it a complete NetCDF file\?"),
        ("text", r"b.nc: variable 'x' holds text, expected numbers; name another"),
    ],
)
def test_a_bad_file_in_the_list(tmp_path, case, words):
    with pytest.raises(DataError, match=words) as caught:
        open_source(selection_of(bad_list(tmp_path, case)))
    assert "\n" not in str(caught.value)


def test_odd_units_are_a_notice(tmp_path):
    fine = write_tiny_history(tmp_path / "a.nc")
    odd = write_tiny_history(tmp_path / "b.nc")
    for path, units in ((fine, "m"), (odd, "kg")):
        with netCDF4.Dataset(str(path), "a") as dataset:
            dataset["hi_h"].units = units
    assert open_source(selection_of(history_config(fine))).notices == ()
    (alone,) = open_source(selection_of(history_config(odd))).notices
    assert "b.nc: variable 'hi_h' has units 'kg', expected m" in alone
    other = r"b.nc: variable 'hi_h' has units 'kg', which cannot be converted to 'm'; give data in 'm', or correct"
    with pytest.raises(DataError, match=other):
        open_source(selection_of(history_config(f"[{fine}, {odd}]")))


def test_nothing_selected_and_all_values_filled(tmp_path):
    path = write_xy(tmp_path / "f.nc", np.full((TIMES, ROWS, COLUMNS), 1e30, "f4"))
    source = open_source(selection_of(config_of(path)))
    samples = read_all(source)
    measured = [int(np.isfinite(column).sum()) for column in (samples.inputs, samples.targets)]
    with pytest.raises(DataError, match=r"variable 'x' holds fill values only, at all 60 selected samples"):
        source.check_selection(len(samples), measured)
    with pytest.raises(DataError, match=r"f.nc: no point is selected; the rule is: domain.mask_mode=all"):
        source.check_selection(0, [0, 0])
    source.check_selection(60, [1, 1])


def test_a_file_that_changes_between_epochs(tmp_path):
    path = write_xy(tmp_path / "f.nc")
    source = open_source(selection_of(config_of(path)))
    source.check_unchanged()
    read_all(source)
    write_xy(tmp_path / "new.nc", ramp(5, (4, ROWS, COLUMNS)), ramp(0, (4, ROWS, COLUMNS))).replace(path)
    for check in (source.check_unchanged, lambda: read_all(source)):
        with pytest.raises(DataError, match=r"f.nc: changed since the run began"):
            check()
    path.unlink()
    with pytest.raises(DataError, match=r"f.nc: can no longer be read"):
        source.check_unchanged()


def test_a_source_travels_and_survives_a_fork(tmp_path):
    source = open_source(selection_of(config_of(write_xy(tmp_path / "f.nc"))))
    expected = read_all(source).inputs.tolist()
    copy = pickle.loads(pickle.dumps(source))
    assert copy == source
    assert read_all(copy).inputs.tolist() == expected
    file, parents = source.files[0], source.handles.get(source.files[0])
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()
    child = context.Process(
        target=lambda: answers.put((read_all(source).inputs.tolist(), source.handles.get(file) is parents))
    )
    child.start()
    assert answers.get() == (expected, False), "the child read through its parent's handle"
    child.join()
    assert source.handles.get(file) is parents
    assert read_all(source).inputs.tolist() == expected


@pytest.mark.lab
def test_selection_is_at_least_ten_times_faster_than_a_loop_over_points(tmp_path):
    shape = (10, 300, 400)
    generator = np.random.default_rng(0)
    variables = {name: (FIELD, generator.random(shape, dtype="f4")) for name in ("aice_h", *CICE_INPUTS)}
    variables |= {"ULAT": (GRID, np.full(shape[1:], 70, "f4")), "umask": (GRID, np.ones(shape[1:], "f4"))}
    path = write_netcdf(tmp_path / "f.nc", variables)
    source = open_source(selection_of(history_config(path)))

    def seconds_of(work):
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    samples = read_all(source)
    ours_s = min(seconds_of(lambda: read_all(source)) for _ in range(3))
    part = 40_000
    flat = [variables[name][1].reshape(-1)[:part] for name in ("aice_h", *CICE_INPUTS)]
    loop = lambda: [[column[i] for column in flat] for i in range(part) if 0 < flat[0][i] <= 1]  # noqa: E731
    loop_s = seconds_of(loop) * len(samples) / part
    assert len(samples) == np.prod(shape)
    assert loop_s > 10 * ours_s


@pytest.mark.parametrize("setting", ["data.samples=fields", "variables.input_variables=[a]"])
def test_a_table_that_cannot_be_what_is_asked(tmp_path, setting):
    np.savez(tmp_path / "s.npz", inputs=np.zeros((3, 2)), targets=np.zeros(3))
    with pytest.raises(UserError):
        open_source(selection_of(history_config(tmp_path / "s.npz", setting)))
