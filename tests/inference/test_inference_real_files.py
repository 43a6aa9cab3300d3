"""Predictions for files as others write them: levels, standard names, coordinates, what a sample was used for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import netCDF4
import numpy as np
import pytest
from played_ranks import on_played_ranks, played_ranks_of
from predicting import config_of, mlp, predict_played, read, save

from mpitrain.data.dataset.exchange import open_source_on_root
from mpitrain.data.dataset.split import plan_split
from mpitrain.data.dataset.split_rule import VALIDATION
from mpitrain.data.samples import valid_rows
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.inference import maps, roles
from mpitrain.inference.maps import draw_prediction
from mpitrain.inference.predictor import (
    _describe_constant,
    count_outside,
    describe_doubts,
    describe_prediction,
    predict_to_file,
)
from mpitrain.inference.roles import find_roles
from mpitrain.models.files.stored_network import load_network
from mpitrain.observe.page.places import GridErrors

DEPTHS, ALONG = [0.0, 10.0, 30.0], ("time", "depth", "lat", "lon")
LEVELS = ("variables.input_variables=['salt[depth=:]']", "variables.output_variables=['temp[depth=:]']")
NAMES = {name: tuple(f"{name}[depth={depth:g}]" for depth in DEPTHS) for name in ("salt", "temp")}


def write_ocean(path: Path, num_times: int = 2) -> Path:
    """Temperature and salinity at three depths on a grid of 2 x 3, with a hole."""
    random = np.random.default_rng(0)
    with netCDF4.Dataset(str(path), "w") as dataset:
        for name, numbers, attributes in (
            ("time", np.arange(num_times), {"units": "days since 2000-01-01"}),
            ("depth", DEPTHS, {"units": "m", "positive": "down", "standard_name": "depth"}),
            ("lat", [10.0, 20.0], {"units": "degrees_north"}),
            ("lon", [0.0, 1.0, 2.0], {"units": "degrees_east"}),
        ):
            dataset.createDimension(name, len(numbers))
            variable = dataset.createVariable(name, "f8", (name,))
            variable.setncatts(attributes)
            variable[:] = numbers
        for name, standard in (("temp", "sea_water_potential_temperature"), ("salt", "sea_water_salinity")):
            variable = dataset.createVariable(name, "f4", ALONG)
            variable.setncatts({"standard_name": standard, "units": {"temp": "degC", "salt": "1e-3"}[name]})
            variable.long_name = {"temp": "potential temperature", "salt": "salinity"}[name]
            values = random.normal(size=(num_times, 3, 2, 3))
            values[0, 0, 0, 0] = np.nan
            variable[:] = values
    return path


@pytest.fixture(scope="module")
def ocean_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(mlp(3, 3), tmp_path_factory.mktemp("model") / "model.pt", NAMES["salt"], NAMES["temp"])


def write_rotated(path: Path, height: float = 2.0) -> Path:
    """x and y on a rotated grid, with all that CF says of one."""
    with netCDF4.Dataset(str(path), "w") as dataset:
        for name, size in (("time", 2), ("rlat", 3), ("rlon", 4), ("corners", 2)):
            dataset.createDimension(name, size)
        variables = {
            "time": (("time",), {"units": "days since 2000-01-01", "bounds": "time_bnds"}),
            "time_bnds": (("time", "corners"), {}),
            "rlat": (("rlat",), {"standard_name": "grid_latitude", "units": "degrees", "axis": "Y", "bounds": "edges"}),
            "edges": (("rlat", "corners"), {}),
            "rlon": (("rlon",), {"standard_name": "grid_longitude", "units": "degrees", "axis": "X"}),
            "lat": (("rlat", "rlon"), {"standard_name": "latitude", "units": "degrees_north"}),
            "lon": (("rlat", "rlon"), {"standard_name": "longitude", "units": "degrees_east"}),
            "height": ((), {"standard_name": "height", "units": "m", "positive": "up"}),
            "mapping": ((), {"grid_mapping_name": "rotated_latitude_longitude", "grid_north_pole_latitude": 39.25,
                            "grid_north_pole_longitude": -162.0}),
            **{name: (("time", "rlat", "rlon"), {"coordinates": "lat lon height", "grid_mapping": "mapping",
                                                 "units": "K", "long_name": f"the {name} wind"}) for name in "xy"},
        }  # fmt: skip
        for name, (along, attributes) in variables.items():
            variable = dataset.createVariable(name, "f8" if name != "mapping" else "i4", along)
            variable.setncatts(attributes)
            size = [len(dataset.dimensions[one]) for one in along]
            values = np.arange(np.prod(size)).reshape(size)
            if along[-1:] == ("corners",):
                values = np.add.outer(np.arange(size[0]), [-0.5, 0.5])
            variable[...] = height if name == "height" else values
    return path


def test_all_coordinates_of_the_target_come_back(tmp_path: Path) -> None:
    model = save(mlp(1), tmp_path / "m.pt", ("x",), ("y",))
    settings = ("variables.input_variables=[x]", "variables.output_variables=[y]")
    path = write_rotated(tmp_path / "f.nc")
    predict_played(model, config_of(path, *settings), tmp_path / "p.nc")
    with netCDF4.Dataset(str(path)) as data, netCDF4.Dataset(str(tmp_path / "p.nc")) as file:
        for name in ("time", "time_bnds", "rlat", "edges", "rlon", "lat", "lon", "height"):
            np.testing.assert_array_equal(file[name][...], data[name][...], err_msg=name)
            assert file[name].dimensions == data[name].dimensions
        assert (file["time"].bounds, file["rlat"].bounds, file["rlat"].axis) == ("time_bnds", "edges", "Y")
        assert file["mapping"].grid_mapping_name == "rotated_latitude_longitude"
        assert file["mapping"].grid_north_pole_latitude == 39.25
        for name in ("y", "y_predicted", "y_error", "dy_dx"):
            assert file[name].grid_mapping == "mapping"
            assert sorted(file[name].coordinates.split()) == ["height", "lat", "lon"]
        assert file["y"].long_name == "the y wind, from the data"
        assert file["y_predicted"].long_name == "the y wind, predicted"
        assert file["y_error"].long_name == "the y wind, predicted minus data"
        assert file["dy_dx"].long_name == "derivative of the y wind, predicted, by the x wind"
        assert not any("_FillValue" in file[name].ncattrs() for name in ("time", "rlat", "rlon", "edges"))
    # Of several files what differs is left out: one of these times, and the height.
    paths = [str(path), str(write_rotated(tmp_path / "g.nc", 10.0))]
    predict_played(model, config_of(paths, *settings), tmp_path / "two.nc")
    found = read(tmp_path / "two.nc")
    assert {"rlat", "edges", "rlon", "mapping"} <= set(found)
    assert not {"height", "time_bnds"} & set(found)


def test_absolute_times_and_their_bounds_come_back_as_days(tmp_path: Path) -> None:
    path = write_ocean(tmp_path / "f.nc")
    with netCDF4.Dataset(str(path), "a") as dataset:
        dataset["time"].units, dataset["time"].bounds = "day as %Y%m%d.%f", "time_bnds"
        dataset["time"][:] = [20000101.5, 20000102.5]
        dataset.createDimension("two", 2)
        dataset.createVariable("time_bnds", "f8", ("time", "two"))[:] = [[20000101, 20000102], [20000102, 20000103]]
    model = save(mlp(3, 3), tmp_path / "m.pt", NAMES["salt"], NAMES["temp"])
    predict_played(model, config_of(path, *LEVELS), tmp_path / "p.nc", layout="grid")
    with netCDF4.Dataset(str(tmp_path / "p.nc")) as file:
        assert (file["time"].units, file["time"][:].tolist()) == ("days since 1970-01-01", [10957.5, 10958.5])
        assert file["time_bnds"][:].tolist() == [[10957, 10958], [10958, 10959]]


def test_bounds_of_places_in_radians_come_back_in_degrees_as_these_do(tmp_path: Path) -> None:
    with netCDF4.Dataset(str(tmp_path / "f.nc"), "w") as dataset:
        dataset.createDimension("cells", 4)
        dataset.createDimension("corners", 3)
        for name, of in (("clat", "latitude"), ("clon", "longitude")):
            variable = dataset.createVariable(name, "f8", ("cells",))
            variable.setncatts({"standard_name": of, "units": "radian", "bounds": f"{name}_vertices"})
            variable[:] = np.radians([0.0, 10.0, 20.0, 30.0])
            corners = dataset.createVariable(f"{name}_vertices", "f8", ("cells", "corners"))
            corners[:] = np.radians(np.add.outer([0.0, 10.0, 20.0, 30.0], [-1.0, 0.0, 1.0]))
        for name in "xy":
            dataset.createVariable(name, "f8", ("cells",))[:] = np.arange(4.0)
            dataset[name].coordinates = "clat clon"
    model = save(mlp(1), tmp_path / "m.pt", ("x",), ("y",))
    settings = ("variables.input_variables=[x]", "variables.output_variables=[y]")
    predict_played(model, config_of(tmp_path / "f.nc", *settings), tmp_path / "p.nc")
    with netCDF4.Dataset(str(tmp_path / "p.nc")) as file:
        for name in ("clat", "clon"):
            assert (file[name].units[:7], file[name].bounds) == ("degrees", f"{name}_vertices")
            np.testing.assert_allclose(file[f"{name}_vertices"][:].mean(axis=1), file[name][:], atol=1e-5)


def write_mesh(path: Path) -> Path:
    """x and y on the faces of a UGRID mesh, whose places it names."""
    with netCDF4.Dataset(str(path), "w") as dataset:
        for part, size in (("node", 5), ("face", 4)):
            dataset.createDimension(part, size)
            for axis, units in (("x", "degrees_east"), ("y", "degrees_north")):
                dataset.createVariable(f"{part}_{axis}", "f8", (part,))[:] = np.arange(float(size)) * 10
                dataset[f"{part}_{axis}"].units = units
        mesh = dataset.createVariable("mesh", "i4", ())
        coordinates = {f"{part}_coordinates": f"{part}_x {part}_y" for part in ("node", "face")}
        mesh.setncatts({"cf_role": "mesh_topology", "topology_dimension": 2, **coordinates})
        for name in "xy":
            dataset.createVariable(name, "f8", ("face",))[:] = np.arange(4.0)
            dataset[name].setncatts({"mesh": "mesh", "location": "face"})
    return path


def test_predictions_on_the_faces_of_a_mesh_have_their_places(tmp_path: Path) -> None:
    model = save(mlp(1), tmp_path / "m.pt", ("x",), ("y",))
    settings = ("variables.input_variables=[x]", "variables.output_variables=[y]")
    predict_played(model, config_of(write_mesh(tmp_path / "f.nc"), *settings), tmp_path / "p.nc")
    with netCDF4.Dataset(str(tmp_path / "p.nc")) as file:
        assert file["y_predicted"].dimensions == ("face",)
        assert set(file["y_predicted"].coordinates.split()) == {"face_x", "face_y"}
        np.testing.assert_array_equal(file["face_x"][:], np.arange(4.0) * 10)


def test_a_single_time_comes_back_as_one(tmp_path: Path) -> None:
    with netCDF4.Dataset(str(tmp_path / "f.nc"), "w") as dataset:
        dataset.createDimension("dim0", None)
        dataset.createDimension("dim1", 3)
        for name, units in (("nav_lat", "degrees_north"), ("nav_lon", "degrees_east"), ("x", "m"), ("y", "m")):
            variable = dataset.createVariable(name, "f4", ("dim0", "dim1"))
            variable.units, variable.coordinates = units, "nav_lat nav_lon when"
            variable[:] = np.arange(6).reshape(2, 3)
        dataset.createVariable("when", "f8", ()).units = "days since 2000-01-01"
        dataset["when"][...] = 3.5
    model = save(mlp(1), tmp_path / "m.pt", ("x",), ("y",))
    settings = ("variables.input_variables=[x]", "variables.output_variables=[y]")
    for layout, name, dimensions in (("grid", "when", ()), ("rows", "time", ("n",))):
        predict_played(model, config_of(tmp_path / "f.nc", *settings), tmp_path / "p.nc", layout=layout)
        with netCDF4.Dataset(str(tmp_path / "p.nc")) as file:
            assert file[name].dimensions == dimensions
            assert float(file[name][...].ravel()[0]) == 3.5
            assert name in file["y_predicted"].coordinates.split()


@pytest.mark.parametrize("layout", ["grid", "rows"])
def test_levels_of_a_target_come_back_as_one_variable(tmp_path: Path, ocean_model: Path, layout) -> None:
    config = config_of(write_ocean(tmp_path / "f.nc"), *LEVELS)
    predict_played(ocean_model, config, tmp_path / "p.nc", num_ranks=1, layout=layout, chunk_bytes=16)
    found, data = read(tmp_path / "p.nc"), read(tmp_path / "f.nc")
    shape = {"grid": (2, 3, 2, 3), "rows": (11, 3)}[layout]
    names = ["temp", "temp_predicted", "temp_error", *(f"dtemp_dsalt_depth_{depth:g}" for depth in DEPTHS)]
    assert all(found[name].shape == shape for name in names)
    assert found["depth"].tolist() == DEPTHS
    truth = data["temp"] if layout == "grid" else np.moveaxis(data["temp"], 1, -1).reshape(-1, 3)[1:]
    kept = found["temp_predicted"] < 1e30
    assert kept.sum() == 33
    np.testing.assert_array_equal(found["temp"][kept], truth[kept])
    np.testing.assert_allclose((found["temp_predicted"] - found["temp"])[kept], found["temp_error"][kept], atol=1e-6)
    with netCDF4.Dataset(str(tmp_path / "p.nc")) as file:
        assert file["temp_predicted"].dimensions == {"grid": ALONG, "rows": ("n", "depth")}[layout]
        assert file["temp_predicted"].standard_name == "sea_water_potential_temperature"
        assert file["temp_predicted"].long_name == "potential temperature, predicted"
        assert "standard_name" not in file["temp_error"].ncattrs()
        assert (file["depth"].positive, file["depth"].units, file["depth"].axis) == ("down", "m", "Z")


@pytest.mark.parametrize("layout", ["grid", "rows"])
def test_coordinates_and_bounds_along_levels_come_back(tmp_path: Path, ocean_model: Path, layout) -> None:
    """As of hybrid levels: what the variable names, the terms of the axis' formula, and bounds."""
    path = write_ocean(tmp_path / "f.nc")
    values = {"sigma": np.arange(3.0), "sigma_bounds": np.arange(6.0).reshape(3, 2), "hyam": np.arange(3.0) + 7,
              "edges": np.arange(6.0).reshape(3, 2) - 1, "unnamed": np.arange(3.0)}  # fmt: skip
    with netCDF4.Dataset(str(path), "a") as file:
        file.createDimension("two", 2)
        for name, one in values.items():
            file.createVariable(name, "f8", ("depth", "two")[: one.ndim])[:] = one
        of_formula = {"standard_name": "ocean_sigma_coordinate", "formula_terms": "sigma: sigma", "axis": "Z"}
        file["sigma"].setncatts({"units": "1", "bounds": "sigma_bounds", **of_formula})
        file["depth"].setncatts({"bounds": "edges", "formula_terms": "a: hyam ps: nowhere"})
        file["temp"].coordinates = "sigma"
    predict_played(ocean_model, config_of(path, *LEVELS), tmp_path / "p.nc", layout=layout)
    with netCDF4.Dataset(str(tmp_path / "p.nc")) as file:
        assert "unnamed" not in file.variables
        for name in ("sigma", "sigma_bounds", "hyam", "edges"):
            np.testing.assert_array_equal(file[name][...], values[name])
            assert file[name].dimensions == ("depth", "two")[: values[name].ndim]
        assert (file["depth"].bounds, file["sigma"].bounds, file["sigma"].units) == ("edges", "sigma_bounds", "1")
        assert sorted(file["sigma"].ncattrs()) == ["_FillValue", "bounds", "units"]
        assert {"sigma", "hyam"} <= set(file["temp_predicted"].coordinates.split())


@pytest.mark.parametrize(
    "settings",
    [
        (), ("data.split=region", "data.split_blocks=4"), ("data.thin_fraction=0.5",), ("data.max_patterns=30",),
        ("data.samples=fields",), ("domain.mask=lon > 0", "training.area_weighted_loss=true"),
    ],
)  # fmt: skip
def test_what_each_sample_was_used_for(tmp_path: Path, settings) -> None:
    """The roles are those of the run's own data sets: by position, on one rank and on three."""
    path, test = write_ocean(tmp_path / "f.nc", 5), write_ocean(tmp_path / "t.nc", 3)
    config = config_of(path, *LEVELS, f"data.test_path={test}", "data.validation_split=0.3", *settings)
    predicted = open_source(selection_of(config_of([str(path), str(test)], *LEVELS, *settings[:1])), num_predicted=3)

    def roles_on(num_ranks: int):
        def body(communicator):
            return find_roles(selection_of(config), config.split_data, predicted, played_ranks_of(communicator))

        return on_played_ranks(num_ranks, body)[0]

    found, source = roles_on(1), open_source(selection_of(config))
    np.testing.assert_array_equal(found, roles_on(3))
    samples = source.read_all()
    samples = samples.take(np.flatnonzero(source.keeps(np.arange(len(samples)), len(samples))))
    index = samples.grid_index[valid_rows(samples)]
    held_out = plan_split(config.split_data, source).roles(index, 0) == VALIDATION
    assert 0 < held_out.sum() < len(index)
    size = 1 if source.kind == "fields" else 6
    expected = np.zeros(8 * size, dtype=int)
    expected[index] = np.where(held_out, 2, 1)
    expected[5 * size :] = 3
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("num_ranks", [1, 3])
@pytest.mark.parametrize(
    "settings",
    [
        ("data.validation_split=0.3",), ("data.validation_split=0.3", "data.max_patterns=30"),
        ("data.folds=3", "data.fold=1"), ("data.validation_split=0.3", "data.samples=fields"),
    ],
)  # fmt: skip
def test_samples_are_numbered_through_all_chunks_for_their_roles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...], num_ranks: int
) -> None:
    """Two files of several chunks, the first of which lacks a value: whose number it is differs from whose place."""
    files = [str(write_ocean(tmp_path / f"{name}.nc", num_times)) for name, num_times in (("a", 7), ("b", 5))]
    config = config_of(files, *LEVELS, *settings)
    predicted = open_source(
        selection_of(config_of(files, *LEVELS, f"data.samples={config.data.samples}")), num_predicted=3
    )
    in_chunks = []

    def opened(selection, ranks):
        in_chunks.append(open_source_on_root(selection, ranks, target_bytes=150))
        return in_chunks[-1]

    monkeypatch.setattr(roles, "open_source_on_root", opened)

    second = replace(
        predicted, files=(replace(predicted.files[1], first_time=0),), num_points=predicted.num_points * 5 // 12
    )

    def body(communicator):
        ranks = played_ranks_of(communicator)
        return [find_roles(selection_of(config), config.split_data, one, ranks) for one in (predicted, second)]

    found, of_second = on_played_ranks(num_ranks, body)[0]
    assert found is not None
    assert [len({one.file for one in source.chunks}) for source in in_chunks] == [2] * 2 * num_ranks
    assert len(in_chunks[0].chunks) >= 12
    whole = open_source(selection_of(config))
    samples = whole.read_all()
    samples = samples.take(np.flatnonzero(whole.keeps(np.arange(len(samples)), len(samples))))
    index = samples.grid_index[valid_rows(samples)]
    held_out = plan_split(config.split_data, whole).roles(index, 0) == VALIDATION
    assert 0 < held_out.sum() < len(index)
    expected = np.zeros(whole.num_points, dtype=int)
    expected[index] = np.where(held_out, 2, 1)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(of_second, expected[-second.num_points :])


def test_roles_are_in_the_file_and_in_what_is_told(tmp_path: Path, ocean_model: Path) -> None:
    path = write_ocean(tmp_path / "f.nc", 5)
    config = config_of(path, *LEVELS, "data.validation_split=0.3")

    def body(communicator):
        ranks, network = played_ranks_of(communicator), load_network(ocean_model)
        source = ranks.on_root(lambda: open_source(selection_of(config), num_predicted=3))
        roles = find_roles(selection_of(config), config.split_data, source, ranks)
        return predict_to_file(network, source, tmp_path / "p.nc", ranks, False, roles=roles), source.units

    prediction, units = on_played_ranks(1, body)[0]
    role = read(tmp_path / "p.nc")["sample_role"]
    assert role.shape == (5, 2, 3)
    assert (role == -1).sum() == 1  # an input is missing there
    with netCDF4.Dataset(str(tmp_path / "p.nc")) as file:
        assert file["sample_role"].flag_meanings == "unused training validation test"
        assert file["sample_role"].flag_values.tolist() == [0, 1, 2, 3]
        errors = file["temp_error"][:, 0]
        held_out = np.sqrt(float((errors[role == 2] ** 2).mean()))
    lines = describe_prediction(prediction, units)
    assert len(lines) == 7
    (line,) = [line for line in lines if line.startswith(NAMES["temp"][0]) and "held out" in line]
    assert f"RMSE {held_out:.6g} degC" in line
    assert line.endswith(f", {(role == 2).sum()} values, held out for validation")
    assert any(line.endswith(f", {(role == 1).sum()} values, trained on") for line in lines)


def test_one_level_and_fields_of_levels(tmp_path: Path) -> None:
    path, names = write_ocean(tmp_path / "f.nc"), ("salt[depth=0]",)
    one = save(mlp(1), tmp_path / "one.pt", names, ("temp[depth=10]",))
    settings = ("variables.input_variables=['salt[depth=0]']", "variables.output_variables=['temp[depth=10]']")
    predict_played(one, config_of(path, *settings), tmp_path / "one.nc")
    assert read(tmp_path / "one.nc")["temp_depth_10_predicted"].shape == (2, 2, 3)
    cnn = mlp(3, 3, name="cnn", hidden_layers=1)
    fields = save(cnn, tmp_path / "cnn.pt", NAMES["salt"], NAMES["temp"])
    predict_played(fields, config_of(path, *LEVELS, "data.samples=fields"), tmp_path / "cnn.nc", with_jacobian=False)
    with netCDF4.Dataset(str(tmp_path / "cnn.nc")) as file:
        assert file["temp_predicted"].dimensions == ALONG
        np.testing.assert_array_equal(file["temp"][1], netCDF4.Dataset(str(path))["temp"][1])


@pytest.mark.parametrize("layout", ["grid", "rows"])
def test_a_target_at_one_level_has_it_as_its_coordinate(tmp_path: Path, layout) -> None:
    targets, inputs = ("temp[depth=10]", "salt[depth=10]", "salt[depth=30]"), ("salt[depth=0]",)
    model = save(mlp(1, 3), tmp_path / "m.pt", inputs, targets)
    names = {"input": inputs, "output": targets}
    settings = [f"variables.{kind}_variables=[{', '.join(map(repr, names[kind]))}]" for kind in names]
    path = write_ocean(tmp_path / "f.nc")
    with netCDF4.Dataset(str(path), "a") as dataset:
        dataset["temp"].cell_methods = "time: mean (interval: 1 day) area: point"
    predict_played(model, config_of(path, *settings), tmp_path / "p.nc", layout=layout)
    with netCDF4.Dataset(str(tmp_path / "p.nc")) as file:
        # Two levels of salt are one variable on an axis; temperature lies at one.
        assert file["salt_predicted"].dimensions[-3 if layout == "grid" else -1] == "depth"
        assert file["depth"][:].tolist() == [10, 30]
        for name in ("temp_depth_10", "temp_depth_10_predicted", "temp_depth_10_error", "dtemp_depth_10_dsalt_depth_0"):
            assert "depth_" in file[name].coordinates.split(), name
        assert (file["depth_"].shape, float(file["depth_"][...])) == ((), 10.0)
        assert (file["depth_"].standard_name, file["depth_"].units, file["depth_"].positive) == ("depth", "m", "down")
        assert file["depth_"].long_name == "depth"
        assert "_FillValue" not in file["depth_"].ncattrs()
        for name in ("temp_depth_10", "temp_depth_10_predicted", "temp_depth_10_error"):
            assert file[name].cell_methods == "time: mean (interval: 1 day) area: point"
        assert "cell_methods" not in file["dtemp_depth_10_dsalt_depth_0"].ncattrs()
        assert "depth_" not in getattr(file["salt_predicted"], "coordinates", "").split()
    one = save(mlp(1, 2), tmp_path / "one.pt", inputs, ("temp[depth=0]", "salt[depth=30]"))
    settings[1] = "variables.output_variables=['temp[depth=0]', 'salt[depth=30]']"
    predict_played(one, config_of(path, *settings), tmp_path / "one.nc", layout=layout)
    with netCDF4.Dataset(str(tmp_path / "one.nc")) as file:
        named = {name: file[name].coordinates.split()[-1] for name in ("temp_depth_0_error", "salt_depth_30_error")}
        assert {name: float(file[one][...]) for name, one in named.items()} == {
            "temp_depth_0_error": 0.0,
            "salt_depth_30_error": 30.0,
        }


def test_a_dimension_of_one_level_comes_back_and_cell_methods_follow_the_names(tmp_path: Path) -> None:
    """As CORDEX writes 2 m temperature: a height of one level, with bounds, and means over a time called otherwise."""
    with netCDF4.Dataset(str(tmp_path / "f.nc"), "w") as dataset:
        sizes = {"TIME": 2, "height": 1, "lat": 2, "lon": 3, "corners": 2}
        for name, size in sizes.items():
            dataset.createDimension(name, size)
        attributes = {"TIME": {"units": "days since 2000-01-01"}, "lat": {"units": "degrees_north"},
                      "lon": {"units": "degrees_east"}}  # fmt: skip
        attributes["height"] = {"units": "m", "positive": "up", "axis": "Z", "bounds": "height_bnds"}
        for name, own in attributes.items():
            dataset.createVariable(name, "f8", (name,)).setncatts(own)
            dataset[name][:] = np.arange(sizes[name]) + 2.0
        dataset.createVariable("height_bnds", "f8", ("height", "corners"))[:] = [[1.5, 2.5]]
        for name in "xy":
            dataset.createVariable(name, "f4", ("TIME", "height", "lat", "lon"))[:] = np.arange(12).reshape(2, 1, 2, 3)
            dataset[name].cell_methods = "TIME: mean lon: point"
    model = save(mlp(1), tmp_path / "m.pt", ("x",), ("y",))
    settings = ("variables.input_variables=[x]", "variables.output_variables=[y]")
    predict_played(model, config_of(tmp_path / "f.nc", *settings), tmp_path / "p.nc")
    with netCDF4.Dataset(str(tmp_path / "p.nc")) as file:
        assert file["y_predicted"].dimensions == ("TIME", "lat", "lon")
        assert file["y_predicted"].cell_methods == "TIME: mean lon: point"
        assert file["y_predicted"].coordinates.split() == ["height"]
        assert (file["height"].shape, float(file["height"][...]), file["height"].axis) == ((), 2.0, "Z")
        assert file["height_bnds"].dimensions == ("corners",)
        assert file["height_bnds"][:].tolist() == [1.5, 2.5]
    predict_played(model, config_of(tmp_path / "f.nc", *settings), tmp_path / "r.nc", layout="rows")
    with netCDF4.Dataset(str(tmp_path / "r.nc")) as file:
        assert file["y_predicted"].cell_methods == "time: mean lon: point"


def test_maps_of_levels_are_of_the_first_middle_and_last(tmp_path: Path, ocean_model: Path) -> None:
    pytest.importorskip("matplotlib")
    predict_played(ocean_model, config_of(write_ocean(tmp_path / "f.nc"), *LEVELS), tmp_path / "p.nc")
    drawn = {path.name for path in draw_prediction(tmp_path / "p.nc", tmp_path / "maps")}
    kinds = ("predicted", "error", "scatter")
    assert drawn == {f"temp_depth_{depth:g}_m_{kind}.png" for depth in DEPTHS for kind in kinds}


def test_errors_at_places_add_up_in_any_parts() -> None:
    random = np.random.default_rng(0)
    index, errors = random.integers(0, 60, 500), random.normal(size=500)
    errors[::7] = np.nan
    parts = [GridErrors.of(index[part], errors[part]) for part in (slice(0, 200), slice(200, None))]
    found = GridErrors.together(parts).of_one_level(12)
    assert found.num_samples == np.isfinite(errors).sum()
    for place in range(12):
        here = errors[(index % 12 == place) & np.isfinite(errors)]
        assert found.mean_on((3, 4)).reshape(-1)[place] == pytest.approx(here.mean())
        assert found.rmse_on((3, 4)).reshape(-1)[place] == pytest.approx(np.sqrt((here**2).mean()))
    assert np.isnan(GridErrors.of(index[:1], errors[1:2]).mean_on((60,))).sum() == 59


@pytest.mark.parametrize("kind", ["grid", "table"])
def test_predictions_where_the_data_has_no_value_are_told_and_pale(tmp_path: Path, kind: str) -> None:
    """A network of places alone predicts over land too, where it has learnt nothing."""
    pytest.importorskip("matplotlib")
    is_land = np.zeros((4, 5), dtype=bool)
    is_land[1, 2:4] = True
    values = np.where(is_land, np.nan, np.arange(20.0).reshape(4, 5))
    if kind == "grid":
        path, names = tmp_path / "f.nc", ("lat", "lon")
        with netCDF4.Dataset(str(path), "w") as dataset:
            for name, numbers, units in (
                ("lat", np.arange(4.0), "degrees_north"),
                ("lon", np.arange(5.0), "degrees_east"),
            ):
                dataset.createDimension(name, len(numbers))
                dataset.createVariable(name, "f8", (name,)).units = units
                dataset[name][:] = numbers
            dataset.createVariable("sst", "f4", ("lat", "lon"), fill_value=-99)[:] = np.nan_to_num(values, nan=-99)
    else:
        path, names = tmp_path / "f.npz", ("inputs[:, 0]", "inputs[:, 1]")
        places = np.stack(np.mgrid[:4, :5], axis=-1).reshape(20, 2).astype("f4")
        np.savez(path, inputs=places, targets=values.reshape(20, 1).astype("f4"))
    target = "sst" if kind == "grid" else "targets[:, 0]"
    settings = (f"variables.input_variables=[{', '.join(names)}]", f"variables.output_variables=[{target}]")
    settings = settings if kind == "grid" else ()
    model = save(mlp(2), tmp_path / "m.pt", names, (target,))
    found = [
        predict_played(model, config_of(path, *settings), tmp_path / "p.nc", num_ranks=number, chunk_bytes=32)
        for number in (1, 2, 3)
    ]
    assert all(one.beyond_data == {target: (2, 20)} for one in found)
    source = open_source(selection_of(config_of(path, *settings)))
    (line,) = describe_doubts(found[0], load_network(model), source)
    words = f"{target}: 2 of 20 predictions are where the data has no value%s, so their errors are unknown%s"
    more = (" (as over land)", "; domain.mask_mode=ocean leaves them out") if kind == "grid" else ("", "")
    assert line == words % more
    if kind == "grid":
        ocean = config_of(path, *settings, "domain.mask_mode=ocean")
        assert describe_doubts(predict_played(model, ocean, tmp_path / "o.nc"), load_network(model), source) == []
        figures = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(maps, "render_png", lambda figure: figures.append(figure) or b"Software\0mpitrain")
            draw_prediction(tmp_path / "p.nc", tmp_path / "maps")
            draw_prediction(tmp_path / "o.nc", tmp_path / "maps")
        titles = [figures[number].axes[0].get_title() for number in (0, 3)]
        assert titles == ["sst, predicted; pale where the data has no value", "sst, predicted"]


def test_an_input_that_never_varied_is_told():
    known = SimpleNamespace(input_names=("a", "c"), input_ranges=("-1.5 2.0", "3.0 3.0"))
    (line,) = _describe_constant(SimpleNamespace(description=known))
    assert line.startswith("input 'c': 3 in all training samples; its effect on predictions, and the derivatives with ")


def test_values_below_and_above_the_trained_range_are_outside_of_it():
    known = SimpleNamespace(input_names=("a", "b"), input_ranges=("-1.5 2.0", "0.0 1.0"))
    inputs = np.array([[-1.6, 0], [-1.5, np.nan], [2, 1], [2.1, 0.5], [-9, -0.1]], np.float32)
    counts = count_outside(SimpleNamespace(description=known), inputs)
    assert counts.tolist() == [[3, 1], [5, 4]]
