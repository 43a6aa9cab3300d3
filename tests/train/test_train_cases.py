"""Runs of real life, from `tests/data/cases/`: odd names to the end, and a run that had ended is started again."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import netCDF4
import pytest
from conftest import TESTS
from many_runs import run_many


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write the input of a case into the folder of the test, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return lambda name: runpy.run_path(str(TESTS / "data" / "cases" / f"{name}.py"))


def test_odd_names_stay_apart_in_predictions_and_sources(make, tmp_path: Path) -> None:
    make("odd_names_fortran")
    jobs = [["train", "run.yaml", "--output", "run"], ["predict", "run", "--data", "odd.nc", "--output", "out.nc"],
            ["export", "run", "--format", "fortran", "--output", "emulator.f90"]]  # fmt: skip
    outcomes = run_many(tmp_path / "logs", None, jobs)
    assert [one.codes for one in outcomes] == [[0]] * 3, [one.stderr for one in outcomes]
    with netCDF4.Dataset("out.nc") as file:
        by = [file[name].long_name.partition(", by ")[2] for name in file.variables if name.startswith("dSalinity")]
    long = "tendency_of_atmosphere_mass_content_of_secondary_particulate_organic_matter_dry_aerosol_particles_due_to_"
    names = [
        "Temperature (°C)",
        "Temperature_C",
        long + "net_chemical_production",
        long + "dry_deposition",
        "wind speed",
    ]
    assert by == names
    source = " ".join(Path("emulator.f90").read_text().split())
    declared = source[source.index(":: input_names(5)") :].partition("]")[0]
    shown = [word for word in declared.split("'")[1::2]]
    assert len(set(shown)) == 5
    assert [name.endswith(shown_name[-20:]) for name, shown_name in zip(names, shown, strict=True)] == [True] * 5


def test_a_run_that_has_ended_is_not_trained_on_unless_it_is_asked_to_and_says_what_that_changes(
    make, tmp_path: Path
) -> None:
    make("finished_run_again")

    def metrics() -> list[tuple[int, float]]:
        found = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
        return [(one["epoch"], round(one["learning_rate"], 6)) for one in found if "learning_rate" in one]

    def hash_of_weights() -> str:
        return json.loads(Path("run/run_record.json").read_text())["result"]["weights_sha256"]

    run_many(tmp_path / "first", None, [["train", "run.yaml", "--output", "run"]])
    before = metrics(), hash_of_weights()
    (again,) = run_many(tmp_path / "again", None, [["train", "--output", "run", "--resume"]])
    assert again.codes == [0]
    assert "no new steps" in again.stdout
    assert (metrics(), hash_of_weights()) == before
    (longer,) = run_many(tmp_path / "longer", None, [["train", "--output", "run", "--resume", "--epochs", "8"]])
    assert longer.codes == [0]
    assert (
        "training.epochs changed from 6 to 8: the result will be neither that of the old settings nor that of the "
        "new ones" in longer.stderr
    )
    assert metrics()[6:] == [(7, 0.001464), (8, 0.000381)]
