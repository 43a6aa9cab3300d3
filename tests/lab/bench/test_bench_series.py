"""Series of the real world, parted by the calendar before a run sees them: what it prints comes true, and is good.

`PYTHONPATH=tests python tests/lab/bench/test_bench_series.py [week|quarter] [SETTING ...]` prints the table alone.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
import pytest
from conftest import launch
from skill_series import SERIES, TARGET, parted

import mpitrain

MOST_OF_BEST, SHARE_OF_THEM = 1.05, 0.75
# What ten folds print comes true but for two series, whose last quarter is like nothing before it.
MOST_OF_PRINTED, FEWEST_THAT_HOLD = 1.3, 20

Judged = TypeVar("Judged")


@dataclass(frozen=True)
class Result:
    """RMSE that a run printed, that it has on the second part, and those of the others there."""

    name: str
    num_rows: int
    printed: float
    true: float
    others: dict[str, float]

    @property
    def ratio(self) -> float:
        """Ours over the best of the others."""
        return self.true / min(self.others.values())

    def __str__(self) -> str:
        others = " ".join(f"{one:9.4g}" for one in self.others.values())
        return (
            f"{self.name:14}{self.num_rows:7}{self.printed:10.4g}{self.true:10.4g}{self.true / self.printed:7.2f}  "
            f"{others}{self.ratio:8.3f}"
        )


HEAD = f"{'series':14}{'rows':>7}{'printed':>10}{'true':>10}{'ratio':>7}  " + (
    f"{'trees':>9} {'network':>9} {'ridge':>9}{'ratio':>8}"
)


def compare(name: str, how: str, folder: Path, settings: tuple[str, ...] = ()) -> Result:
    """Train all on the first part, and judge them on the second. Raises FileNotFoundError."""
    first, second = parted(SERIES[name](), how)
    printed, true = skill_of(first, second, folder, "train", settings)
    return Result(name, len(first), printed, true, others_of(first, second, inputs_of(first)))


def inputs_of(rows: pd.DataFrame) -> list[str]:
    """Return the names of the columns that are learnt from."""
    return [column for column in rows.columns if column not in ("time", TARGET)]


def skill_of(
    first: pd.DataFrame, second: pd.DataFrame, folder: Path, command: str, settings: tuple[str, ...]
) -> tuple[float, float]:
    """Return the RMSE that a command prints, trained on the first part, and that of its predictions of the second."""
    for path, rows in (("first.csv", first), ("second.csv", second)):
        rows.to_csv(folder / path, index=False, date_format="%Y-%m-%dT%H:%M:%S")
    names = [f"variables.input_variables=[{', '.join(inputs_of(first))}]", f"variables.output_variables=[{TARGET}]"]
    given = ["--data", str(folder / "first.csv"), "--output", str(folder / "run"), *names, *settings]
    done = launch(["-m", "mpitrain", command, *given])
    assert done.returncode == 0, done.stderr
    run = mpitrain.open(folder / "run")
    told = launch(["-m", "mpitrain", "predict", str(folder / "run"), "--data", str(folder / "second.csv"),
                   f"--output={folder / 'second.nc'}"])  # fmt: skip
    assert told.returncode == 0, told.stderr
    true = float(re.search(rf"{TARGET}: RMSE (\S+?)[, ]", told.stdout).group(1))  # type: ignore[union-attr]
    return (getattr(run, "test_skill", None) or run.skill)[TARGET]["rmse"], true


def others_of(first: pd.DataFrame, second: pd.DataFrame, inputs: list[str]) -> dict[str, float]:
    """RMSE on the second part of scikit-learn's trees, network and ridge, trained on the first."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import RidgeCV
    from sklearn.neural_network import MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    mean, std = first[TARGET].mean(), first[TARGET].std()
    estimators = {
        "trees": HistGradientBoostingRegressor(random_state=0),
        "network": make_pipeline(StandardScaler(), MLPRegressor(early_stopping=True, random_state=0, max_iter=500)),
        "ridge": make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 3, 13))),
    }
    found = {}
    for name, one in estimators.items():
        answers = one.fit(first[inputs], (first[TARGET] - mean) / std).predict(second[inputs]) * std + mean
        found[name] = float(np.sqrt(((answers - second[TARGET]) ** 2).mean()))
    return found


def of_all_series(folder: Path, judge: Callable[[str, str, Path], Judged]) -> list[Judged]:
    """Return what `judge` finds of each series, parted in both ways, in a folder of its own; skip without the files."""
    results = []
    for how in ("week", "quarter"):
        for name in SERIES:
            own = folder / how / name.replace(" ", "")
            own.mkdir(parents=True)
            try:
                results.append(judge(name, how, own))
            except FileNotFoundError as error:
                pytest.skip(str(error))
            print(how, results[-1], flush=True)
    return results


def test_what_ten_folds_print_comes_true(tmp_path: Path) -> None:
    def judge(name: str, how: str, folder: Path) -> tuple[str, float, float, float]:
        printed, true = skill_of(*parted(SERIES[name](), how), folder, "ensemble", ("ensemble.folds=10",))
        return name, printed, true, true / printed

    results = of_all_series(tmp_path, judge)
    assert sum(ratio <= MOST_OF_PRINTED for *_, ratio in results) >= FEWEST_THAT_HOLD, results


def test_defaults_are_within_a_twentieth_of_the_best_on_most_series(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    results = of_all_series(tmp_path, compare)
    lines = "\n".join([HEAD, *map(str, results)])
    assert sum(one.ratio <= MOST_OF_BEST for one in results) >= SHARE_OF_THEM * len(results), lines


if __name__ == "__main__":
    how, settings = (sys.argv[1:2] or ["week"])[0], tuple(sys.argv[2:])
    print(HEAD)
    for name in SERIES:
        with tempfile.TemporaryDirectory() as folder:
            print(compare(name, how, Path(folder), settings), flush=True)
