"""Predicted values beside the true ones on the page: each target, and over time where the data is a series."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import launch

from mpitrain.config import load_run_config
from mpitrain.data import SampleSource
from mpitrain.data.selection.opening import open_source
from mpitrain.data.selection.settings import selection_of
from mpitrain.inference.page.findings import course_of
from mpitrain.observe import Pairs
from mpitrain.observe.page.pairs import draw_pairs, rows_to_show

NAMES = ("variables.input_variables=[x]", "variables.output_variables=[y, z]")


def write_series(path: Path, first_day: str, num_days: int) -> Path:
    days = np.datetime64(first_day) + np.arange(num_days)
    x = np.arange(num_days) / num_days
    lines = [f"{day},{one},{2 * one},{one**2}" for day, one in zip(days, x, strict=True)]
    path.write_text("\n".join(["time,x,y,z", *lines]) + "\n")
    return path


def test_pairs_are_of_each_target_as_far_as_it_counts() -> None:
    truth = np.arange(24.0).reshape(2, 2, 2, 3)
    truth[0, :, 0, 0] = np.nan
    truth[1, 1, 1, 2] = np.nan
    rows = rows_to_show(truth, 99)
    pairs = Pairs.of(truth, truth + 1, np.array([5, 7]), rows)
    assert pairs.index.tolist() == 5 * [5] + 6 * [7]
    assert pairs.truth[0].tolist() == [1, 7]
    assert pairs.truth[-1, 0] == 17
    assert np.isnan(pairs.truth[-1, 1])
    assert len(Pairs.first_of(truth, truth, np.array([5, 7])).truth) == 0, "fields have no course"
    assert len(Pairs.of(truth, truth, np.empty(0, np.int64), rows).index) == 0


def test_a_target_that_seldom_counts_keeps_its_values() -> None:
    truth = np.zeros((1000, 2))
    truth[np.arange(1000) % 100 != 7, 0] = np.nan
    assert np.isfinite(truth[rows_to_show(truth, 10)]).sum(axis=0).tolist() == [10, 20]
    assert len(rows_to_show(truth, 0)) == 0


def source_of(path: Path, days: Sequence[int]) -> SampleSource:
    rows = ["time,x,y,z", *(f"2001-01-{day:02d},1,2,3" for day in days)]
    path.write_text("\n".join(rows) + "\n")
    return open_source(selection_of(load_run_config(None, (*NAMES, f"data.data_path={path}")).config))


def test_the_course_is_of_the_first_samples_in_the_order_of_time(tmp_path: Path) -> None:
    source = source_of(tmp_path / "f.csv", (1, 2, 5, 9, 12))
    truth = np.array([[9.0, 9], [1, 1], [5, np.nan], [2, 2]])
    course = course_of(Pairs(truth, 2 * truth, np.array([4, 0, 2, 1])), source)
    assert course is not None
    assert list(course.dates) == ["2001-01-01", "2001-01-02", "2001-01-05", "2001-01-12"]
    assert course.pairs.truth[:, 0].tolist() == [1, 2, 5, 9]
    assert course.pairs.prediction[:, 0].tolist() == [2, 4, 10, 18]
    assert course.description == (
        "4 times of these samples, in order: 2001-01-01 to 2001-01-12; some times between are left out, marked by "
        "dotted lines."
    )
    assert [piece.tolist() for piece in course.pieces()] == [[0, 1, 2], [3]]
    many = replace(course, ranks=np.arange(0, 200, 2), dates=[*"abcdefghij"] * 50)
    assert len(many.pieces()) == 1
    assert (
        many.description == "The first 500 times of these samples, in order: a to j; some times between are left out."
    )


@pytest.mark.parametrize("days", [(1, 1, 2, 3, 4), (3, 2, 1, 4, 5)])
def test_data_that_is_no_series_has_no_course(tmp_path: Path, days: Sequence[int]) -> None:
    truth = np.arange(10.0).reshape(5, 2)
    assert course_of(Pairs(truth, truth, np.arange(5)), source_of(tmp_path / "f.csv", days)) is None


def test_a_target_without_values_has_no_picture_and_many_have_those_of_the_first() -> None:
    truth = np.tile(np.arange(5.0)[:, None], 9)
    truth[:, 0] = np.nan
    (heading,), (text,) = zip(
        *draw_pairs(Pairs(truth, truth, np.arange(5)), None, ["a", "b$^$", *"cdefghi"]).items(), strict=True
    )
    assert heading == "Prediction against truth"
    assert text.startswith("<p>The first 6 of 9 targets.</p>")
    assert re.findall(r">truth of (\S+)<", text) == ["b$^$", *"cdef"]
    assert draw_pairs(Pairs(truth[:, :1], truth[:, :1], np.arange(5)), None, ["a"]) == {}


def sections(page: Path) -> dict[str, str]:
    return dict(re.findall(r"<section><h2>(.*?)</h2>(.*?)</section>", page.read_text(), re.DOTALL))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("course")
    write_series(folder / "train.csv", "2001-01-01", 400)
    write_series(folder / "later.csv", "2004-03-01", 30)
    return folder


def train(here: Path, name: str, *words: str, ranks: int = 1) -> dict[str, str]:
    done = launch(
        ["-m", "mpitrain", "--data", "train.csv", "--output", name, "--epochs", "2", *NAMES, *words], ranks, here
    )
    assert done.returncode == 0, done.stderr
    return sections(here / name / "report.html")


def test_the_page_of_a_series_shows_each_target_over_time_on_any_number_of_ranks(here: Path) -> None:
    one, three = (train(here, f"n{ranks}", ranks=ranks) for ranks in (1, 3))
    for heading in ("Prediction against truth", "Prediction over time"):
        assert one[heading] == three[heading]
        assert one[heading].count("<svg") == 2
    words = "<p>40 times of these samples, in order: 2001-06-30 to 2001-12-26; some times between are left out, marked"
    assert one["Prediction over time"].startswith(words)
    done = launch(["-m", "mpitrain", "report", "n1"], None, here)
    assert done.returncode == 0, done.stderr
    assert (
        "<p>400 times of these samples, in order: 2001-01-01 to 2002-02-04.</p>"
        in sections(here / "n1" / "report.html")["Prediction over time"]
    )


def test_the_times_of_a_validation_file_are_its_own(here: Path) -> None:
    found = train(here, "other", "data.validation_path=later.csv")["Prediction over time"]
    assert "<p>30 times of these samples, in order: 2004-03-01 to 2004-03-30.</p>" in found


def test_an_ensemble_shows_the_course_of_what_its_folds_held_out(here: Path) -> None:
    words = ["--data", "train.csv", "--output", "folds", "ensemble.folds=4", "training.epochs=1", *NAMES]
    done = launch(["-m", "mpitrain", "ensemble", *words], None, here)
    assert done.returncode == 0, done.stderr
    found = sections(here / "folds" / "report.html")
    assert "<p>400 times of these samples, in order: 2001-01-01 to 2002-02-04.</p>" in found["Prediction over time"]
    assert found["Prediction against truth"].count("<svg") == 2
