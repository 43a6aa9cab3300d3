"""Skill on held-out samples: of all, of folds, times and groups, as an independent computation finds it."""

from __future__ import annotations

import csv
import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import netCDF4
import numpy as np
import pytest
from conftest import launch

import mpitrain
from mpitrain.ensemble import held_out
from mpitrain.ensemble.held_out import HeldOut, PartSkill, _skill_of
from mpitrain.errors import OutputError
from mpitrain.inference.quality.held_out import HeldOutSums
from mpitrain.observe import ErrorSums, GridErrors, Pairs, Skill

BASINS, DAYS = 6, 60
NONE = Pairs(np.zeros((0, 1)), np.zeros((0, 1)), np.arange(0))
FOLDS = ["ensemble.folds=3", "training.epochs=2", "model.name=mlp", "model.hidden_size=8"]
OF_TABLE = ["variables.input_variables=[x, s]", "variables.output_variables=[y]", *FOLDS]


def basins(path: Path) -> list[dict[str, Any]]:
    """Write a table of basins, sorted by basin, and return its rows."""
    rng = np.random.default_rng(1)
    days = [datetime.date(2001, 11, 1) + datetime.timedelta(days=4 * day) for day in range(DAYS)]
    rows = []
    for basin in range(BASINS):
        for day in days:
            x = float(rng.normal())
            rows.append({"time": str(day), "basin": f"B{basin}", "x": x, "s": basin, "y": np.sin(x) + 0.1 * basin})
    with path.open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return rows


def lines_of(folder: Path) -> list[dict[str, str]]:
    with (folder / "skill.csv").open() as file:
        return list(csv.DictReader(file))


def validated(folder: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Predict a run's own data; return which samples were held out for validation, and a variable of the file."""
    path = folder / "predicted.nc"
    done = launch(["-m", "mpitrain", "predict", str(folder), f"--output={path}"], None)
    assert done.returncode == 0, done.stderr
    with netCDF4.Dataset(path) as file:
        role = np.asarray(file["sample_role"][:])
        held = np.flatnonzero((role.reshape(len(role), -1) == 2).any(axis=1))
        return held, np.ma.filled(file[name][:].astype(np.float64), np.nan)


@pytest.fixture(scope="module")
def by_group(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]], str]:
    """An ensemble of folds that hold out whole basins, its data, and what it printed."""
    folder = tmp_path_factory.mktemp("folds")
    rows = basins(folder / "t.csv")
    words = [f"data.data_path={folder / 't.csv'}", "data.split=group", "data.group=basin", *OF_TABLE]
    done = launch(["-m", "mpitrain", "ensemble", f"output.model_dir={folder / 'one'}", *words], None)
    assert done.returncode == 0, done.stderr
    more = launch(["-m", "mpitrain", "ensemble", f"output.model_dir={folder / 'three'}", *words], 3)
    assert more.returncode == 0, more.stderr
    return folder, rows, done.stdout


def test_skill_of_folds_is_what_their_predictions_say(by_group: tuple[Path, list[dict[str, Any]], str]) -> None:
    folder, rows, said = by_group
    run = mpitrain.open(folder / "one")
    errors, held = np.full(len(rows), np.nan), dict[str, int]()
    for fold in range(3):
        own, of_fold = validated(folder / "one" / "members" / f"{fold:04d}", "y_predicted")
        errors[own] = of_fold[own] - np.array([row["y"] for row in rows], np.float32)[own]
        held |= {rows[number]["basin"]: fold for number in own}
    assert len(held) == BASINS
    assert np.isfinite(errors).all()

    def part(kind: str, chosen: list[int], name: str) -> None:
        line = next(one for one in lines_of(folder / "one") if (one["kind"], one["name"]) == (kind, name))
        found = [float(line[key]) for key in ("values", "bias", "rmse")]
        expected = [len(chosen), errors[chosen].mean(), np.sqrt((errors[chosen] ** 2).mean())]
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-9)

    part("all", list(range(len(rows))), "")
    for fold in range(3):
        part("fold", [number for number, row in enumerate(rows) if held[row["basin"]] == fold], str(fold))
    for basin in held:
        part("group", [number for number, row in enumerate(rows) if row["basin"] == basin], basin)
    for month in sorted({row["time"][:7] for row in rows}):
        part("time", [number for number, row in enumerate(rows) if row["time"].startswith(month)], month)
    assert len(lines_of(folder / "one")) == 1 + 3 + BASINS + 8  # November to June: years would be two
    rmse = run.skill["y"]["rmse"]
    assert f"RMSE {rmse:.6g}" in said
    assert "over samples that 3 folds of 3 held out, which also chose the epoch: 360 values of each target" in said
    assert run.skill_of_parts["kind"].count("group") == BASINS
    assert run.skill_of_parts["values"][0] == len(rows)
    page = (folder / "one" / "report.html").read_text()
    assert all(f"Skill by {kind}" in page for kind in ("fold", "time", "group"))


def test_skill_is_the_same_on_any_number_of_ranks(by_group: tuple[Path, list[dict[str, Any]], str]) -> None:
    folder = by_group[0]
    assert (folder / "one" / "skill.csv").read_bytes() == (folder / "three" / "skill.csv").read_bytes()


def test_an_ensemble_of_fields_tells_its_skill(tmp_path: Path) -> None:
    """Of two seeds, whose mean is judged at the held-out fields; land does not count."""
    rng = np.random.default_rng(3)
    with netCDF4.Dataset(tmp_path / "f.nc", "w") as file:
        for name, size in (("time", 24), ("y", 6), ("x", 5)):
            file.createDimension(name, size)
        file.createVariable("time", "f8", ("time",))[:] = np.arange(24.0)
        file["time"].units = "days since 2001-01-01"
        a = rng.normal(size=(24, 6, 5))
        file.createVariable("a", "f4", ("time", "y", "x"))[:] = a
        b = file.createVariable("b", "f4", ("time", "y", "x"), fill_value=-9.0)
        b[:] = np.ma.masked_array(2 * a, np.broadcast_to(np.arange(5) == 0, a.shape))
    words = [
        f"data.data_path={tmp_path / 'f.nc'}", "variables.input_variables=[a]", "variables.output_variables=[b]",
        "data.samples=fields", "data.split=time", "ensemble.members=2", "training.epochs=2", "model.name=unet",
    ]  # fmt: skip
    done = launch(["-m", "mpitrain", "ensemble", f"output.model_dir={tmp_path / 'e'}", *words], 2)
    assert done.returncode == 0, done.stderr
    held, predicted = validated(tmp_path / "e", "b_predicted")
    errors = (predicted - (2 * a).astype(np.float32))[held][:, :, 1:]
    first = lines_of(tmp_path / "e")[0]
    assert int(first["values"]) == errors.size > 0
    np.testing.assert_allclose(float(first["rmse"]), np.sqrt((errors**2).mean()), rtol=1e-5)
    assert "over all held-out samples" in done.stdout


def test_the_map_of_spread_is_of_the_standard_deviation_over_members_less_one(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(held_out, "draw_place_map", lambda source, values, look: drawn.setdefault(look.title, values))
    source: Any = SimpleNamespace(kind="points", grid_shape=(2, 2), target_names=("y",), units={"y": "K"})
    parts = [
        HeldOutSums(
            {("fold", "0"): [ErrorSums.of(np.zeros(3), np.full(3, -0.5))]},
            [GridErrors.of(np.array([0, 0, 1]), np.array([-0.5, -0.5, -0.5]))],
            [GridErrors.of(np.array([0, 0, 1]), np.array([1.0, 5.0, 2.0]))],
            [],
            [Pairs(np.zeros((3, 1)), np.zeros((3, 1)), np.arange(3))],
            [np.zeros((3, 3))],
        ),
        HeldOutSums(
            {("fold", "1"): [ErrorSums.of(np.zeros(2), np.array([1.0, 2.0]))]},
            [GridErrors.of(np.array([1, 3]), np.array([1.0, 2.0]))],
            [GridErrors.of(np.array([1, 3]), np.array([2**0.5, 8**0.5]))],
            [],
            [Pairs(np.zeros((2, 1)), np.ones((2, 1)), np.arange(2))],
            [np.ones((2, 2))],
        ),
    ]
    sums = HeldOutSums()
    for part in parts:
        sums.merge(part)
    found = _skill_of(source, sums, ["0", "1"], "over all")
    assert sorted(found.maps) == ["Where the errors are", "Where the members differ"]
    np.testing.assert_array_equal(found.maps["Where the errors are"], [[-0.5, (-0.5 + 1) / 2], [np.nan, 2]])
    expected = [[(1 + 5) / 2, (2 + np.sqrt(2)) / 2], [np.nan, 2 * np.sqrt(2)]]
    np.testing.assert_allclose(found.maps["Where the members differ"], expected, rtol=1e-15)
    assert found.calibration is not None
    assert found.calibration.num_samples == 5
    assert [(part.kind, part.name) for part in found.parts] == [("all", ""), ("fold", "0"), ("fold", "1")]
    np.testing.assert_allclose(found.skills[0].sums.rmse, np.sqrt((3 * 0.25 + 1 + 4) / 5))


def test_folds_are_told_apart_by_the_standard_deviation_of_their_errors() -> None:
    folds = [
        PartSkill("fold", str(number), [Skill("y", "K", ErrorSums.of(np.arange(2.0), np.full(2, error)))])
        for number, error in enumerate((1.0, 2.0, 3.0))
    ]
    total = PartSkill("all", "", [Skill("y", "K", ErrorSums.of(np.arange(2.0), np.full(2, 2.0)))])
    found = HeldOut([total, *folds], "over all", NONE, None)
    assert found.lines()[0].endswith("; RMSE 1 to 3 over the folds, standard deviation 1")


def test_a_fold_without_values_of_a_target_leaves_its_line_out() -> None:
    """And one whose error is infinite is not among those that are compared."""
    of_one = [
        PartSkill(
            "fold", str(number), [Skill("y", "", ErrorSums.of(np.arange(2.0), errors)), Skill("z", "", ErrorSums())]
        )
        for number, errors in enumerate((np.ones(2), np.full(2, np.inf), np.full(2, 3.0)))
    ]
    total = PartSkill(
        "all", "", [Skill("y", "", ErrorSums.of(np.arange(2.0), np.ones(2))), Skill("z", "", ErrorSums())]
    )
    (line, words) = HeldOut([total, *of_one], "over all", NONE, None).lines()
    assert line.startswith("y: ")
    assert line.endswith("; RMSE 1 to 3 over the folds, standard deviation 1.4")
    assert words == "over all"


def test_an_ensemble_whose_data_is_gone_says_so_and_keeps_its_skill(
    by_group: tuple[Path, list[dict[str, Any]], str], tmp_path: Path
) -> None:  # fmt: skip
    folder = by_group[0]
    kept = (folder / "three" / "skill.csv").read_bytes()
    (folder / "t.csv").rename(tmp_path / "t.csv")
    again = ["-m", "mpitrain", "ensemble", "--resume", f"output.model_dir={folder / 'three'}"]
    done = launch(again, 2)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the skill on held-out samples is left out: ") == 1
    assert (folder / "three" / "skill.csv").read_bytes() == kept
    (tmp_path / "t.csv").rename(folder / "t.csv")
    (folder / "three" / "skill.csv").write_text("kind,name\nall,\n")
    with pytest.raises(OutputError, match="was not written by an ensemble"):
        mpitrain.open(folder / "three").skill  # noqa: B018
    assert launch(again, 1).returncode == 0
    assert (folder / "three" / "skill.csv").read_bytes() == kept
