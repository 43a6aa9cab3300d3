"""Skill by default settings beside scikit-learn's MLPRegressor and HistGradientBoostingRegressor by theirs.

`PYTHONPATH=tests python tests/lab/bench/test_bench_skill.py [NAME ...]` prints the table alone.
"""

from __future__ import annotations

import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from conftest import launch
from skill_tables import TABLES, TARGET, write_table

from mpitrain.observe.metrics_file import read_metrics

# RMSE over the better of scikit-learn's two: what one of ten may exceed, and what most must stay below.
MOST_OF_BETTER, FEWEST_NOT_WORSE, FEWEST_BETTER = 1.05, 9, 6


@dataclass(frozen=True)
class Result:
    """RMSE on the same held-out rows, and seconds of training, of mpitrain, of trees and of scikit-learn's network."""

    name: str
    num_rows: int
    rmse: tuple[float, float, float]
    seconds: tuple[float, float, float]

    @property
    def ratio(self) -> float:
        """Ours over the better of the two."""
        return self.rmse[0] / min(self.rmse[1:])

    def __str__(self) -> str:
        skill = " ".join(f"{one:10.4g}" for one in self.rmse)
        return f"{self.name:17}{self.num_rows:7} {skill} {self.ratio:7.3f} " + " ".join(
            f"{one:7.1f}" for one in self.seconds
        )


HEAD = f"{'table':17}{'rows':>7}{'mpitrain':>11}{'trees':>11}{'network':>11}{'ratio':>8}{'s':>8}{'s':>8}{'s':>8}"


def compare(name: str, folder: Path) -> Result:
    """Train all three on the same rows, and judge them on the others. Raises FileNotFoundError."""
    train, test = write_table(name, folder)
    known, unseen = dict(np.load(train)), dict(np.load(test))
    ours, seconds = ours_of(name, train, test, [one for one in known if one != TARGET])
    others = [fit(estimator, known, unseen) for estimator in estimators()]
    rmse, times = zip((ours, seconds), *others, strict=True)
    return Result(name, len(known[TARGET]), rmse, times)


def ours_of(name: str, train: Path, test: Path, inputs: list[str]) -> tuple[float, float]:
    folder = train.parent / name
    words = ["--data", str(train), "--output", str(folder), f"data.test_path={test}", "data.split=random"]
    names = [f"variables.input_variables=[{', '.join(inputs)}]", f"variables.output_variables=[{TARGET}]"]
    done = launch(["-m", "mpitrain", "train", *words, *names], timeout_s=1800)
    assert done.returncode == 0, done.stderr
    records = read_metrics(folder / "metrics.jsonl")
    seconds = sum(one["wall_time_s"] for one in records if "wall_time_s" in one)
    return records[-1]["test_targets"][TARGET]["rmse"], seconds


def estimators() -> list[object]:
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.neural_network import MLPRegressor

    return [HistGradientBoostingRegressor(random_state=0), MLPRegressor(random_state=0)]


def fit(estimator, known, unseen) -> tuple[float, float]:
    """RMSE and seconds of a scikit-learn estimator."""
    inputs = [one for one in known if one != TARGET]
    started_s = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its epochs end before it has converged
        estimator.fit(np.stack([known[one] for one in inputs], axis=1), known[TARGET])
    seconds = time.monotonic() - started_s
    answers = estimator.predict(np.stack([unseen[one] for one in inputs], axis=1))
    return float(np.sqrt(np.mean((answers - unseen[TARGET]) ** 2))), seconds


def test_defaults_are_not_worse_than_those_of_scikit_learn(tmp_path: Path) -> None:
    results = []
    for name in TABLES:
        try:
            results.append(compare(name, tmp_path))
        except (FileNotFoundError, ImportError) as error:
            pytest.skip(f"{error}: apt-get install ferret-datasets libncarg-data; pip install iris-sample-data")
        print(results[-1])
    lines = "\n".join([HEAD, *map(str, results)])
    assert sum(one.ratio <= MOST_OF_BETTER for one in results) >= FEWEST_NOT_WORSE, lines
    assert sum(one.ratio < 1 for one in results) >= FEWEST_BETTER, lines


def test_5000_rows_are_trained_within_ten_seconds_on_one_core(tmp_path: Path) -> None:
    train, test = write_table("sine_and_product", tmp_path)
    assert ours_of("sine_and_product", train, test, ["a", "b", "c"])[1] < 10


def test_4_million_rows_are_trained_within_five_minutes_on_two_ranks(tmp_path: Path) -> None:
    random, names = np.random.default_rng(0), [f"x{i}" for i in range(10)]
    table = {name: random.normal(size=4_000_000).astype("f4") for name in names}
    noise = random.normal(scale=0.1, size=4_000_000)
    np.savez(tmp_path / "table.npz", **table, y=np.sin(table["x0"]) + table["x1"] * table["x2"] + noise)
    words = [f"variables.input_variables=[{', '.join(names)}]", "variables.output_variables=[y]"]
    words += ["--data", str(tmp_path / "table.npz"), "--output", str(tmp_path / "run")]
    done = launch(["-m", "mpitrain", "train", *words], 2, timeout_s=1800)
    (tmp_path / "table.npz").unlink()
    assert done.returncode == 0, done.stderr
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    seconds = sum(one["wall_time_s"] for one in records if "wall_time_s" in one)
    print(f"{seconds:.1f} s")


if __name__ == "__main__":
    print(HEAD)
    with tempfile.TemporaryDirectory() as place:
        for table in sys.argv[1:] or TABLES:
            print(compare(table, Path(place)), flush=True)
