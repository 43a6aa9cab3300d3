"""Data as users bring it: each kind is trained by defaults to its noise, on any number of ranks, and streamed."""

import dataclasses
import json
import re

import netCDF4
import numpy as np
import pytest
from conftest import TESTS, launch
from user_files import CASES

from mpitrain.inference.cf_variables import variable_name

EPOCHS = "training.epochs=30"
FEW_KINDS = 3  # trained from files as well, and on other numbers of ranks; all with --full
MOST_ABOVE_NOISE = 1.05


def run_all(folder, cases, num_ranks, streamed, predicted):
    """Train all cases in one launch, those in `streamed` from their files as well; return the folder of its runs."""
    runs = folder / f"on_{num_ranks}"
    orders = [
        {
            "files": [str(path) for path in case.files],
            "later": str(case.later) if predicted else "",
            "settings": [*case.settings, EPOCHS],
            "folder": str(runs / name),
            "streamed": name in streamed,
        }
        for name, case in cases.items()
    ]
    (folder / f"on_{num_ranks}.json").write_text(json.dumps(orders))
    done = launch([str(TESTS / "data" / "user_runs.py"), str(folder / f"on_{num_ranks}.json")], num_ranks, folder, 400)
    assert done.returncode == 0, done.stderr
    return runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("users")
    cases = {name: make(folder / name) for name, make in CASES.items()}
    streamed = list(cases)[: None if request.config.getoption("--full") else FEW_KINDS]
    return folder, cases, run_all(folder, cases, 2, streamed, predicted=True)


@pytest.mark.parametrize("kind", CASES)
def test_later_times_are_predicted_to_the_noise(trained, kind):
    _, cases, runs = trained
    with netCDF4.Dataset(runs / kind / "later.nc") as file:
        errors = [file[name] for name in file.variables if name.endswith("_error")]
        assert errors[0].name.startswith(variable_name(cases[kind].target).split("_level")[0])
        # The last of a column's levels has no level below it, and only noise: all are held against it together.
        mse = np.mean([np.mean(np.square(error[:].astype(np.float64))) for error in errors])
    assert 0.9 < mse / cases[kind].noise_mse < MOST_ABOVE_NOISE


def test_bits_are_those_of_any_number_of_ranks(trained, request):
    folder, cases, runs = trained
    is_full = request.config.getoption("--full")
    chosen = dict(list(cases.items())[: None if is_full else FEW_KINDS])
    for num_ranks in (1, 3) if is_full else (3,):
        others = run_all(
            folder, {name: dataclasses.replace(case) for name, case in chosen.items()}, num_ranks, chosen, False
        )
        for kind in chosen:
            for how in ("held", "streamed"):
                assert sha256(runs / kind / how) == sha256(others / kind / how), (kind, how, num_ranks)
                assert told(runs / kind / how) == told(others / kind / how), (kind, how, num_ranks)


@pytest.mark.parametrize("kind", CASES)
def test_the_page_says_how_good_and_where(trained, kind):
    _, cases, runs = trained
    page = (runs / kind / "held" / "report.html").read_text()
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert {"What was trained", "Skill", "Derivatives of the network"} < set(headings)
    has_grid = kind not in ("columns", "hdf5_table", "csv", "parquet")
    assert ("Where the errors are" in headings) == has_grid
    assert "noise floor" not in page  # which only data that was made up has
    rows = [re.findall("<td>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", page)]
    target = cases[kind].target.strip("'").split("[")[0]
    mse = np.mean([float(row[3]) ** 2 for row in rows if len(row) == 6 and row[0].startswith(target)])
    assert 0.8 < mse / cases[kind].noise_mse < 1.25


def told(run):
    """What a run's page says of the network, from its points to its derivatives."""
    return re.search("<h2>Prediction against truth.*?<h2>Where the time goes", (run / "report.html").read_text(), re.S)[
        0
    ]


def sha256(run):
    """The hash of a run's weights, from its report."""
    (found,) = set(re.findall(r"\b[0-9a-f]{64}\b", (run / "report.html").read_text()))
    return found
