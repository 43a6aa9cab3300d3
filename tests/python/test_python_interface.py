"""The functions for Python: the hashes and messages of the command line, in one process and on ranks."""

from __future__ import annotations

import inspect
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PROJECT, TIMEOUT_S, find_mpirun, launch, launcher_environment

import mpitrain
from mpitrain.cli.main import main
from mpitrain.data import Asked
from mpitrain.data.formats.in_memory import open_variables, write_variables
from mpitrain.errors import DataError, OutputError
from mpitrain.python.variables import variables_of

xarray = pytest.importorskip("xarray")

OPTIONS: dict[str, Any] = {"inputs": ["u", "v"], "targets": ["w"], "epochs": 2, "quiet": True}
COLLECTIVE = """
import json, os, sys
from pathlib import Path
import xarray
import mpitrain
options = json.loads(sys.argv[1])
ds = xarray.open_dataset("rows.nc")
runs = [mpitrain.train(ds, output="together", **options), mpitrain.train("rows.nc", output="of_file", **options)]
predicted = runs[0].predict(ds)
try:
    mpitrain.train(ds, output="wrong", **{**options, "inputs": ["nothing"]})
except mpitrain.ConfigError as error:
    said = str(error)
hashes = [run.weights_sha256 for run in runs]
found = [hashes, said.partition(": ")[2], int(predicted.w.notnull().sum())]
Path(f"found_{os.getpid()}.json").write_text(json.dumps(found))
"""


@pytest.fixture(scope="module")
def columns() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    u, v = rng.normal(size=(2, 1000)).astype(np.float32)
    return {"u": u, "v": v, "w": (u * v + 0.1 * rng.normal(size=1000)).astype(np.float32)}


@pytest.fixture(scope="module")
def dataset(columns: dict[str, np.ndarray]) -> Any:
    return xarray.Dataset({name: (("row",), values, {"units": "m"}) for name, values in columns.items()})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, dataset: Any) -> Path:
    path = tmp_path_factory.mktemp("python")
    dataset.to_netcdf(path / "rows.nc")
    return path


@pytest.fixture(autouse=True)
def users_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in launcher_environment().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="module")
def run(folder: Path, dataset: Any) -> mpitrain.Run:
    os.environ.setdefault("PYTHONPATH", str(PROJECT))
    return mpitrain.train(dataset, output=folder / "dataset", **OPTIONS)


def test_importing_loads_nothing_heavy() -> None:
    code = "import sys, mpitrain; mpitrain.load_config({'training': {'epochs': 3}}); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=launcher_environment(), capture_output=True, check=True)
    assert not {"torch", "mpi4py", "numpy", "xarray"} & set(done.stdout.decode().split())


def test_public_names_are_a_handful() -> None:
    assert set(mpitrain.__all__) == {
        "ConfigError", "Run", "UserError", "__version__", "ensemble", "load_config", "open", "predict", "train",
    }  # fmt: skip
    assert all(hasattr(mpitrain, name) for name in mpitrain.__all__)


def test_a_function_is_called_also_once_its_room_is_loaded() -> None:
    import mpitrain.train.trainer

    with pytest.raises(mpitrain.UserError, match="set cannot be read"):
        mpitrain.train({1, 2})
    assert mpitrain.train.trainer is sys.modules["mpitrain.train.trainer"]
    assert list(inspect.signature(mpitrain.train).parameters)[:3] == ["data", "inputs", "targets"]
    assert str(mpitrain.train.__doc__).startswith("Train one network and return its run.")


@pytest.mark.parametrize(
    "function",
    [mpitrain.ensemble, mpitrain.load_config, mpitrain.open, mpitrain.predict, mpitrain.python.interface.train,
     mpitrain.Run.predict, mpitrain.Run.export],
)  # fmt: skip
def test_public_functions_document_each_parameter(function: Any) -> None:
    described = (inspect.getdoc(function) or "").partition("Parameters\n----------\n")[2].partition("Returns\n")[0]
    names = {word.strip("* ") for line in described.splitlines() if not line.startswith(" ")
             for word in line.partition(" : ")[0].split(",")}  # fmt: skip
    parameters = [one for one in inspect.signature(function).parameters.values() if one.name != "self"]
    assert names == {one.name for one in parameters} | ({""} & names)
    assert all(one.annotation is not one.empty for one in parameters)


@pytest.mark.parametrize("kind", ["file", "dataframe", "arrays", "dask"])
def test_every_kind_of_data_gives_one_hash(
    run: mpitrain.Run, folder: Path, dataset: Any, columns: dict[str, np.ndarray], kind: str
) -> None:
    data = {
        "file": lambda: folder / "rows.nc",
        "dataframe": lambda: dataset.to_dataframe().reset_index(drop=True),
        "arrays": lambda: columns,
        "dask": lambda: dataset.chunk(row=100),
    }[kind]()
    again = mpitrain.train(data, output=folder / kind, **OPTIONS)
    assert again.weights_sha256 == run.weights_sha256


def test_each_chunk_of_a_lazy_dataset_is_computed_once(tmp_path: Path) -> None:
    from dask import array

    computed: list[int] = []

    def compute(block: np.ndarray) -> np.ndarray:
        computed.append(len(block))
        return block * 2.0

    values = array.from_array(np.arange(1000.0), chunks=100)
    lazy = xarray.Dataset({"u": ("row", values.map_blocks(compute, dtype=float, meta=np.empty(0)))})
    write_variables(tmp_path, variables_of(lazy, Asked()))
    assert computed == [100] * 10
    written = open_variables(tmp_path / "variables.bin")
    np.testing.assert_array_equal(written.read_stored("u", (slice(None),)), 2.0 * np.arange(1000.0))


def test_ranks_give_the_same_hash(run: mpitrain.Run, folder: Path, dataset: Any) -> None:
    again = mpitrain.train(dataset, output=folder / "three", ranks=3, **OPTIONS)
    assert again.weights_sha256 == run.weights_sha256


def test_ranks_of_a_launcher_train_together(run: mpitrain.Run, folder: Path) -> None:
    done = launch(["-c", COLLECTIVE, json.dumps(OPTIONS)], 3, folder)
    assert done.returncode == 0, done.stderr
    found = [json.loads(path.read_text()) for path in folder.glob("found_*.json")]
    said = "no variable 'nothing'; this one has u, v, w; name those to use in variables.input_variables"
    assert found == [[[run.weights_sha256] * 2, said, 1000]] * 3
    assert not [line for line in done.our_lines if "error" in line]


@pytest.mark.lab
@pytest.mark.parametrize("python", [sys.executable, os.environ.get("MPITRAIN_OPENMPI_PYTHON", "")])
def test_a_process_that_has_used_mpi_starts_ranks(run: mpitrain.Run, folder: Path, python: str) -> None:
    if not python:
        pytest.skip("MPITRAIN_OPENMPI_PYTHON names no Python with Open MPI; tests/run.sh does")
    output = folder / f"after_{Path(python).parents[1].name}"
    code = (
        "import json, sys\nfrom mpi4py import MPI\nimport mpitrain\nassert MPI.COMM_WORLD.size == 1\n"
        f"run = mpitrain.train('rows.nc', output={str(output)!r}, ranks=2, **json.loads(sys.argv[1]))\n"
        "print(run.weights_sha256)"
    )
    for prefix in ([], [find_mpirun(python), "-np", "1"]):
        done = subprocess.run(
            [*prefix, python, "-c", code, json.dumps({**OPTIONS, "overwrite": True})], cwd=folder, capture_output=True,
            text=True, timeout=TIMEOUT_S, env=launcher_environment(), check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[-1] == run.weights_sha256


def test_mistakes_are_exceptions_with_the_line_of_the_command(run: mpitrain.Run, folder: Path, dataset: Any) -> None:
    with pytest.raises(mpitrain.ConfigError) as wrong_name:
        mpitrain.train(folder / "rows.nc", output=folder / "wrong", **{**OPTIONS, "inputs": ["nothing"]})
    words = [
        "variables.input_variables=[nothing]",
        "variables.output_variables=[w]",
        f"output.model_dir={folder}/wrong",
    ]
    done = launch(["-m", "mpitrain", "train", f"data.data_path={folder}/rows.nc", *words])
    assert done.our_lines == [f"mpitrain: error: {wrong_name.value}"]
    with pytest.raises(mpitrain.ConfigError, match=r"^command line: training\.epochs=-5: "):
        mpitrain.train(dataset, output=folder / "wrong", **{**OPTIONS, "epochs": -5})
    with pytest.raises(DataError, match="no such file"):
        mpitrain.train(folder / "none.nc", output=folder / "wrong", **OPTIONS)
    with pytest.raises(OutputError, match="dataset"):
        mpitrain.train(dataset, output=run.path, **OPTIONS)
    with pytest.raises(mpitrain.UserError, match="holds no run"):
        mpitrain.open(folder / "nowhere")
    assert not (folder / "wrong").exists()


def test_lines_about_data_in_memory_name_the_data_and_no_file(run: mpitrain.Run, folder: Path, dataset: Any) -> None:
    with pytest.raises(mpitrain.UserError, match=r"^data: 'u' has shape \(3,\), 'w' \(2,\); give arrays with equal"):
        mpitrain.train({"u": [1.0, 2.0, 3.0], "v": [1.0, 2.0, 3.0], "w": [1.0, 2.0]}, output=folder / "no", **OPTIONS)
    with pytest.raises(mpitrain.ConfigError, match=r"^data: no variable 'nothing'; this one has u, v, w"):
        mpitrain.train(dataset, output=folder / "no", **{**OPTIONS, "inputs": ["nothing"]})
    for ranks in ("2", 0, 1.5, True):
        with pytest.raises(mpitrain.UserError, match=rf"^ranks={ranks!r}: give a whole number from 1 on"):
            mpitrain.train(dataset, output=folder / "no", ranks=ranks, **OPTIONS)
    with pytest.raises(mpitrain.UserError, match=r"passed in memory by a Python program and are not stored; pass them"):
        run.predict()
    done = launch(["-m", "mpitrain", "reproduce", str(run.path), "--output", str(folder / "no")])
    assert (done.returncode, len(done.our_lines)) == (2, 1)
    assert "are not stored; write them to a file, train the run's config.yaml with --data FILE and" in done.our_lines[0]


def test_notes_about_data_in_memory_name_no_file(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    random = np.random.default_rng(0)
    grid = xarray.Dataset({name: (("t", "q", "r"), random.normal(size=(4, 5, 6))) for name in "uvw"})
    mpitrain.train(grid, output=folder / "noted", **{**OPTIONS, "quiet": False})
    said = capfd.readouterr().out
    assert "note: data: variable 'w' (t=4, q=5, r=6): dimension q is assumed to be rows because of its position" in said
    assert "/dev/shm" not in said


def test_settings_as_mapping_keywords_and_file(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("training: {epochs: 3, optimizer: {type: adamw}}\n")
    mapping = {"training": {"epochs": 3, "optimizer": {"type": "adamw"}}}
    keywords = {"training.epochs": 3, "training.optimizer": {"type": "adamw"}}
    configs = [
        mpitrain.load_config(tmp_path / "run.yaml"), mpitrain.load_config(mapping), mpitrain.load_config(keywords),
        mpitrain.load_config(**keywords), mpitrain.load_config(mapping, epochs=3),
    ]  # fmt: skip
    assert all(config == configs[0] for config in configs)
    assert mpitrain.load_config(mapping, epochs=7).training.epochs == 7
    assert mpitrain.load_config(domain={"mask": "umask == 1", "latitude_range": np.array([50, 90])}).domain.mask
    with pytest.raises(mpitrain.ConfigError, match="not a value of a setting"):
        mpitrain.load_config({"training": {"epochs": object()}})


def in_two_parts(columns: dict[str, np.ndarray], folder: Path) -> tuple[list[Any], list[Path]]:
    """The first 800 rows and the others, as DataFrames and as CSV files."""
    pandas = pytest.importorskip("pandas")
    parts = [pandas.DataFrame(columns)[:800], pandas.DataFrame(columns)[800:].reset_index(drop=True)]
    paths = [folder / "first.csv", folder / "others.csv"]
    for part, path in zip(parts, paths, strict=True):
        part.to_csv(path, index=False)
    return parts, paths


def test_test_data_are_a_path_or_data_in_memory(tmp_path: Path, columns: dict[str, np.ndarray]) -> None:
    """Data of either kind with test data of the other give one skill, on the test data alone."""
    parts, paths = in_two_parts(columns, tmp_path)
    found = []
    for data, test in ((paths[0], xarray.Dataset.from_dataframe(parts[1])), (parts[0], paths[1])):
        run = mpitrain.train(data, output=tmp_path / "run", overwrite=True, **OPTIONS, **{"data.test_path": test})
        found.append(run.test_skill["w"])
        assert run.skill["w"] != run.test_skill["w"]
    assert found[0] == found[1]
    assert 0 < found[0]["rmse"] < 2


def test_validation_data_are_a_path_or_data_in_memory(tmp_path: Path, columns: dict[str, np.ndarray]) -> None:
    """Data of either kind with validation data of the other hold out the same samples, and train the same weights."""
    parts, paths = in_two_parts(columns, tmp_path)
    found = []
    for data, held_out in ((paths[0], parts[1]), (parts[0], paths[1]), (parts[0], dict(parts[1].items()))):
        options = {**OPTIONS, "overwrite": True, "data.validation_path": held_out}
        run = mpitrain.train(data, output=tmp_path / "run", **options)
        found.append((run.skill["w"], run.weights_sha256))
    assert found[0] == found[1] == found[2]
    errors = run.predict(parts[1])["w"] - parts[1]["w"]
    assert np.isclose(np.sqrt(np.mean(errors**2)), run.skill["w"]["rmse"], rtol=1e-4)


def test_test_data_in_memory_are_called_by_their_setting_and_are_gone_afterwards(
    tmp_path: Path, columns: dict[str, np.ndarray], capfd: pytest.CaptureFixture[str]
) -> None:
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame(columns)[:800].to_csv(tmp_path / "train.csv", index=False)
    test = {name: one[800:] for name, one in columns.items()}
    options: dict[str, Any] = {**OPTIONS, "quiet": False, "output": tmp_path / "run", "data": tmp_path / "train.csv"}
    for wrong, match in (
        ({"u": test["u"], "v": test["v"]}, "no variable 'w'"),
        ({**test, "w": test["w"][1:]}, ".*shape"),
    ):
        with pytest.raises(mpitrain.UserError, match=rf"^data\.test_path: {match}"):
            mpitrain.train(**{**options, "data.test_path": wrong})
    run = mpitrain.train(**{**options, "data.test_path": test})
    assert "200 samples of data in memory" in capfd.readouterr().out
    assert "data in memory" in Path(str(run.report)).read_text()
    assert mpitrain.train(**{**options, "resume": True, "epochs": 3}).test_skill == {}
    assert main(["predict", str(run.path), "--output", str(tmp_path / "p.nc")]) == 0
    assert "values, held out for validation" in capfd.readouterr().out


def test_a_run_tells_its_metrics_skill_and_report(run: mpitrain.Run) -> None:
    assert run.metrics["epoch"] == [1, 2]
    assert all(loss > 0 for loss in run.metrics["train_loss"])
    assert run.skill["w"]["rmse"] > 0
    assert run.skill["w"]["units"] == "m"
    assert Path(run.report).is_file()
    assert '<iframe sandbox="" srcdoc=' in run.report._repr_html_(), "a stranger's page runs no script in a notebook"
    assert "<td>" in run.metrics._repr_html_()
    assert run.config.training.epochs == 2
    assert run.weights_sha256[:12] in repr(run)


def test_predictions_are_like_the_data(run: mpitrain.Run, dataset: Any, columns: dict[str, np.ndarray]) -> None:
    again = mpitrain.open(run.path)
    predicted = again.predict(dataset[["u", "v"]])
    assert list(predicted.data_vars) == ["w"]
    assert predicted.w.dims == ("row",)
    assert predicted.w.attrs["units"] == "m"
    rows = dataset.to_dataframe()
    rows.index = rows.index[::-1]
    table = mpitrain.predict(run.path, rows, jacobian=True)
    assert list(table.columns) == ["w", "dw_du", "dw_dv"]
    assert table.index.equals(rows.index)
    np.testing.assert_array_equal(table["w"].to_numpy(), predicted.w.values)
    holes = {name: values.copy() for name, values in columns.items()}
    holes["u"][3] = np.nan
    with_hole = again.predict(holes).w.values
    assert np.isnan(with_hole[3])
    np.testing.assert_array_equal(np.delete(with_hole, 3), np.delete(predicted.w.values, 3))


def test_one_value_of_each_input_is_one_sample(run: mpitrain.Run, dataset: Any, columns: dict[str, np.ndarray]) -> None:
    """Numbers in a dict, as a model's loop has them, and a Dataset of which no dimension is left."""
    again, (u, v) = mpitrain.open(run.path), (columns[name][7] for name in ("u", "v"))
    point = dataset[["u", "v"]].assign_coords(day=("row", np.arange(1000))).isel(row=7)
    right = again.predict(dataset[["u", "v"]]).w.values[7]
    for one in (
        {"u": float(u), "v": float(v)}, {"u": np.array(u), "v": v}, {"u": point.u, "v": point.v}, point,
        {"u": np.ma.array(u), "v": v},
    ):  # fmt: skip
        predicted = again.predict(one, jacobian=True)
        assert predicted.w.shape == predicted.dw_du.shape == ()
        assert predicted.w.values == right
    assert again.predict(point).day == 7
    with pytest.raises(mpitrain.UserError, match="no usable sample"):
        again.predict({"u": np.ma.masked, "v": v})
    with pytest.raises(
        mpitrain.UserError, match="'u' is not read: it is a single value without a dimension; give arrays"
    ):
        mpitrain.train({"u": 1.0, "v": 2.0, "w": 3.0}, output=run.path.parent / "none", **OPTIONS)


def test_predictions_on_a_grid_have_its_coordinates(tmp_path: Path, small_history: Path) -> None:
    with xarray.open_dataset(small_history) as opened:
        ds = opened.load()
    run = mpitrain.train(ds, output=tmp_path / "run", epochs=1, quiet=True)
    predicted = run.predict(ds)
    assert predicted.aice_h.dims == ds.aice_h.dims
    assert set(ds.coords) <= set(predicted.coords)
    assert (predicted.aice_h - ds.aice_h).notnull().sum() == run.predict(str(small_history)).aice_h.notnull().sum() > 0


def test_times_of_a_year_0_come_back_as_they_were_given(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    time = ("time", np.arange(12.0) * 730.5 + 366, {"units": "hours since 0000-01-01", "calendar": "standard"})
    axes = ("time", "lat", "lon")
    coordinates = {"time": time, "lat": ("lat", np.arange(5.0), {"units": "degrees_north"}),
                   "lon": ("lon", np.arange(6.0), {"units": "degrees_east"})}  # fmt: skip
    ds = xarray.Dataset({name: (axes, random.normal(size=(12, 5, 6))) for name in "uvw"}, coordinates)
    run = mpitrain.train(ds, output=tmp_path / "run", **{**OPTIONS, "inputs": ["u", "month"]})
    predicted = run.predict(ds)
    assert predicted.w.notnull().all()
    np.testing.assert_array_equal(predicted.time, ds.time)


def test_dates_of_a_dataframe_are_times(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    table = pandas.DataFrame({name: random.normal(size=60) for name in "uvw"})
    table["when"] = pandas.date_range("2001-01-01", periods=60, freq="7D")
    run = mpitrain.train(table, output=tmp_path / "run", **{**OPTIONS, "inputs": ["u", "month", "when"]})
    predicted = run.predict(table)
    assert list(predicted.columns) == ["w"]
    assert predicted.w.notnull().all()


def test_an_ensemble_predicts_a_spread(folder: Path, dataset: Any) -> None:
    runs = mpitrain.ensemble(dataset, members=2, output=folder / "members", **OPTIONS)
    predicted = runs.predict(dataset)
    assert float(predicted["w_spread"].max()) > 0


def test_an_export_is_written_and_compared(run: mpitrain.Run, tmp_path: Path) -> None:
    assert "subroutine" in run.export(tmp_path / "emulator.f90").read_text()
    with pytest.raises(mpitrain.UserError, match=r"the ending determines the format: \.pt"):
        run.export(tmp_path / "emulator.txt")


@pytest.mark.parametrize("ranks", [None, 2])
@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGKILL])
def test_a_killed_script_leaves_no_data_and_no_process(
    folder: Path, tmp_path: Path, ranks: int | None, signal_number: signal.Signals
) -> None:
    output = tmp_path / "killed"
    code = (
        "import numpy as np, mpitrain\n"
        "rows = {name: np.random.default_rng(1).normal(size=400) for name in ('u', 'w')}\n"
        f"mpitrain.train(rows, inputs=['u'], targets=['w'], epochs=1000000, output={str(output)!r}, ranks={ranks})"
    )
    environ = {**launcher_environment(), "TMPDIR": str(tmp_path)}
    places = [Path("/dev/shm"), tmp_path]
    before = {path for place in places for path in place.glob("mpitrain-*")}
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert child.stdout is not None
    while "step" not in child.stdout.readline():
        assert child.poll() is None
    assert {path for place in places for path in place.glob("mpitrain-*")} - before
    child.send_signal(signal_number)
    child.communicate(timeout=TIMEOUT_S)
    deadline_s = time.monotonic() + TIMEOUT_S
    while left := processes_with(str(output)) or [
        str(path) for place in places for path in place.glob("mpitrain-*") if path not in before
    ]:
        assert time.monotonic() < deadline_s, left
        time.sleep(0.05)
    assert (output / "checkpoints" / "latest").exists()


@pytest.mark.parametrize("ranks", [None, 2])
def test_an_interrupt_leaves_a_checkpoint_and_no_process(folder: Path, ranks: int | None) -> None:
    output = folder / f"interrupted_{ranks}"
    code = (
        "import sys, mpitrain\n"
        "mpitrain.train('rows.nc', inputs=['u', 'v'], targets=['w'], epochs=1000000, "
        f"output={str(output)!r}, ranks={ranks})"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, env=launcher_environment(), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    while "step" not in child.stdout.readline():
        assert child.poll() is None
    child.send_signal(signal.SIGINT)  # to the interpreter alone, as Jupyter does
    _, said = child.communicate(timeout=TIMEOUT_S)
    assert "KeyboardInterrupt" in said
    assert (output / "checkpoints" / "latest").exists()
    deadline_s = time.monotonic() + TIMEOUT_S
    while left := processes_with(str(output)):  # those that end are given the time that this machine needs
        assert time.monotonic() < deadline_s, left
        time.sleep(0.05)
    assert not list(Path("/dev/shm").glob("mpitrain-*/rows.nc"))


def processes_with(word: str) -> list[str]:
    """The processes whose command line has `word`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if word in text and "pytest" not in text:
            found.append(text)
    return found
