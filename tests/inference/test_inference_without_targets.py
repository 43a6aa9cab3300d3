"""Files that do not hold the truth, such as a forecast: predicted from the inputs alone, and nothing else forgiven."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import netCDF4
import numpy as np
import pytest
from conftest import launch, train, without_notes_on_cores
from predicting import (
    DERIVATIVES,
    HISTORY,
    XY,
    config_of,
    copy_without,
    golden_icenet,
    mlp,
    predict_played,
    read,
    save,
    write_grid,
)

from mpitrain.data.describe.names import CICE_INPUTS
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.errors import DataError
from mpitrain.inference.maps import draw_prediction
from mpitrain.inference.roles import notices_of_unknown_targets
from mpitrain.train.run_folder import RunFolder

FILL = np.float32(9.969209968386869e36)


@pytest.mark.lab
def test_icenet_on_a_forecast_of_cice(tmp_path: Path) -> None:
    history = Path(shutil.copy(HISTORY, tmp_path / "h.nc"))
    model, forecast = save(golden_icenet(), tmp_path / "model.pt"), copy_without(history, "aice_h")
    command = ["-m", "mpitrain", "predict", str(model), "--data", str(forecast), "--output", "f.nc", "--maps", "maps"]
    done = launch(command, 2, tmp_path)
    assert done.returncode == 0, done.stderr
    said = [line for line in without_notes_on_cores(done.stderr.splitlines()) if line.startswith("note: ")]
    assert said == [
        f"note: {forecast}: no variable 'aice_h': predicted from the inputs alone, without errors and statistics",
        f"note: {forecast}: has no ice concentration: the condition 0 < aice <= 1 (domain.clean_data) is not "
        "applied, points without ice are also predicted",
        "note: f.nc: one row per point, as the C++ program writes it; --layout grid writes the grid",
    ]
    assert "RMSE" not in done.stdout
    assert [path.name for path in (tmp_path / "maps").iterdir()] == ["aice_predicted.png"]
    found, stored = read(tmp_path / "f.nc"), read(history)
    assert list(found) == ["lon", "lat", "aice_ffnn", *DERIVATIVES]
    ocean = np.broadcast_to((stored["ULAT"] > 40) & (stored["umask"] == 1), stored["aice_h"].shape)
    measured = np.all([np.abs(stored[name]) < 1e29 for name in CICE_INPUTS], axis=0)
    icy = ((stored["aice_h"] > 0) & (stored["aice_h"] <= 1))[ocean & measured]
    assert len(found["lat"]) == len(icy) > icy.sum() > 1000
    predict_played(model, config_of(history), tmp_path / "p.nc")
    for name, expected in read(tmp_path / "p.nc").items():
        if name != "aice":
            np.testing.assert_allclose(found[name][icy], expected, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", ["points", "fields"])
def test_all_but_truth_and_errors_is_as_with_targets(tmp_path: Path, kind: str) -> None:
    whole = [write_grid(tmp_path / "a.nc"), write_grid(tmp_path / "b.nc", 2, 1, "2000-01-03")]
    bare = [copy_without(path, "y") for path in whole]
    own = {"name": "cnn", "hidden_layers": 1} if kind == "fields" else {}
    model = save(mlp(2, **own), tmp_path / "model.pt", ("x", "z"), ("y",))
    predictions, found = [], []
    for number, files in enumerate((whole, bare)):
        config, output = (
            config_of([str(path) for path in files], *XY, f"data.samples={kind}"),
            tmp_path / f"{number}.nc",
        )
        with_jacobian = kind == "points"
        predictions.append(
            predict_played(model, config, output, with_jacobian=with_jacobian, chunk_bytes=100, layout="rows")
        )
        found.append(read(output))
    expected, alone = found
    assert list(alone) == [name for name in expected if name not in ("y", "y_error")]
    assert len(alone["y_predicted"]) > 4
    for name, values in alone.items():
        # A field's prediction is hidden where the truth is missing: at the holes in y that are no land.
        counted = expected[name] != FILL
        assert (~counted).sum() == (2 + 5 * 2 if (name, kind) == ("y_predicted", "fields") else 0)
        np.testing.assert_array_equal(values[counted], expected[name][counted])
        assert (values == FILL).sum() == (5 * 2 if (name, kind) == ("y_predicted", "fields") else 0)
    assert predictions[1].statistics == {}
    assert predictions[1].num_samples == predictions[0].num_samples
    assert predictions[1].num_dropped == predictions[0].num_dropped
    assert draw_prediction(tmp_path / "1.nc", tmp_path / "maps") == [tmp_path / "maps" / "y_predicted.png"]


@pytest.mark.parametrize(("inputs", "own"), [((50, 3), {}), ((4, 3, 6, 5), {"name": "cnn", "hidden_layers": 1})])
def test_a_table_of_inputs(tmp_path: Path, inputs: tuple[int, ...], own: dict) -> None:
    values = np.random.default_rng(0).normal(size=inputs).astype(np.float32)
    np.savez(tmp_path / "with.npz", inputs=values, targets=np.zeros((len(values), 2, *inputs[2:]), np.float32))
    np.savez(tmp_path / "bare.npz", inputs=values)
    model = save(mlp(3, 2, **own), tmp_path / "model.pt", ("a", "b", "c"), ("u", "v"))
    found = []
    for name in ("with", "bare"):
        config = config_of(tmp_path / f"{name}.npz", f"data.samples={'points' if len(inputs) == 2 else 'fields'}")
        prediction = predict_played(model, config, tmp_path / "p.nc", with_jacobian=False, chunk_bytes=400)
        found.append(read(tmp_path / "p.nc"))
    assert list(found[1]) == ["grid_index", "targets_0_predicted", "targets_1_predicted"]
    assert prediction.statistics == {}
    for name, answers in found[1].items():
        np.testing.assert_array_equal(answers, found[0][name])
    both = f"[{tmp_path}/bare.npz, {tmp_path}/with.npz]"
    for files, message in ((both, "do not have the columns of"), (tmp_path / "bare.npz", None)):
        with pytest.raises(DataError, match=message):
            open_source(selection_of(config_of(files)), num_predicted=2 if message else None)


@pytest.mark.parametrize(
    ("files", "settings", "message"),
    [
        (["without.a.nc"], ["variables.output_variables=[y, z]"], r"without\.a\.nc: no variable 'y'; this one has"),
        (["a.nc"], ["variables.output_variables=[y, typo]"], r"a\.nc: no variable 'typo'; this one has"),
        (["without.a.nc"], ["domain.mask=y > 0"], r"no variable 'y'; this one has"),
        (["without.a.nc"], ["variables.input_variables=[x, typo]"], r"no variable 'typo'; .*; the network needs it"),
        (["a.nc", "without.a.nc"], [], r"without\.a\.nc: no variable 'y'; this one has"),
        (["without.a.nc", "a.nc"], [], r"^a\.nc: has a target that without\.a\.nc lacks \(of 'y'\); predict for files"),
    ],
)
def test_what_is_still_refused(tmp_path, monkeypatch, files: list[str], settings: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    copy_without(write_grid(Path("a.nc")), "y")
    with pytest.raises(DataError, match=message) as caught:
        open_source(selection_of(config_of(files, *XY, *settings)), num_predicted=1)
    assert "\n" not in str(caught.value)


def test_a_run_ends_with_the_prediction_of_a_forecast(tmp_path: Path) -> None:
    forecast = copy_without(Path(shutil.copy(HISTORY, tmp_path / "h.nc")), "aice_h")
    settings = ("training.epochs=1", f"data.data_path={HISTORY}", f"prediction.cice_history={forecast}")
    done = train(None, tmp_path / "run", *settings)
    assert done.returncode == 0, done.stderr
    assert f"note: {forecast}: no variable 'aice_h': predicted from the inputs alone" in done.stderr
    assert list(read(tmp_path / "run" / "prediction.nc")) == ["lon", "lat", "aice_ffnn", *DERIVATIVES]


def test_longitudes_that_the_run_s_own_prediction_meets_are_in_the_turn_it_learnt(tmp_path: Path) -> None:
    history, turned = write_grid(tmp_path / "a.nc"), tmp_path / "turned.nc"
    with netCDF4.Dataset(str(history), "a") as dataset:
        dataset["lon"][:] += 180.0  # 180 to 184
    shutil.copy(history, turned)
    with netCDF4.Dataset(str(turned), "a") as dataset:
        dataset["lon"][:] -= 360.0
    settings = ("variables.input_variables=[x, lon]", *XY[1:], f"data.data_path={history}", "training.epochs=2")
    done = train(None, tmp_path / "run", *settings, f"prediction.cice_history={turned}")
    assert done.returncode == 0, done.stderr
    predict_played(tmp_path / "run" / "model.pt", config_of(history, *settings[:3]), tmp_path / "p.nc")
    expected, found = (read(path)["y_predicted"] for path in (tmp_path / "p.nc", tmp_path / "run" / "prediction.nc"))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_training_needs_targets_and_predictions_say_what_they_miss(tmp_path: Path) -> None:
    bare = copy_without(write_grid(tmp_path / "a.nc"), "y")
    with pytest.raises(DataError, match="no variable 'y'; this one has"):
        open_source(selection_of(config_of(bare, *XY)))
    ocean = open_source(selection_of(config_of(bare, *XY[:2], "domain.mask_mode=sea_ice")), num_predicted=1)
    assert len(ocean.notices) == 2
    assert "(domain.mask_mode=sea_ice) is not applied" in ocean.notices[1]
    index = np.concatenate([ocean.read(chunk).grid_index for chunk in ocean.chunks])
    assert len(index) == 60 - 3 * 2 - 1  # without a mask, the ocean is where both inputs are measured
    assert len(open_source(selection_of(config_of(bare, *XY)), num_predicted=1).notices) == 1


def test_a_file_that_cannot_tell_where_its_targets_would_be_missing_is_told(tmp_path: Path) -> None:
    """As of an ocean's model that knows where a point is and not whether it is land."""
    run, path = RunFolder(tmp_path), tmp_path / "f.nc"

    def notices(missing_inputs: int, missing_targets: int) -> list[str]:
        variables = [{"role": "input", "missing": missing_inputs}, {"role": "target", "missing": missing_targets}]
        samples = {"kept": 1000, "valid": 1000 - missing_targets}
        run.statistics.write_text(json.dumps({"samples": samples, "variables": variables}))
        return notices_of_unknown_targets(run, path)

    (told,) = notices(0, 400)
    assert told.startswith(
        f"{path}: the network was trained only where its targets have values, at 600 of 1,000 samples; this"
    )
    assert notices(400, 400) == notices(0, 0) == notices(0, 5) == []
    for text in ("", "[]", '{"samples": {}, "variables": []}', '{"variables": [{"role": "input", "missing": "x"}]}'):
        run.statistics.write_text(text)
        assert notices_of_unknown_targets(run, path) == []
    run.statistics.unlink()
    assert notices_of_unknown_targets(run, path) == []
