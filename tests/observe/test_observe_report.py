from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from mpitrain.errors import OutputError
from mpitrain.observe import plots
from mpitrain.observe.metrics_file import MetricsFile
from mpitrain.observe.page.findings import Findings
from mpitrain.observe.page.pairs import Pairs
from mpitrain.observe.page.skill import ErrorSums, Skill
from mpitrain.observe.plots import plot_loss, series
from mpitrain.observe.report import _slowest, write_report
from mpitrain.observe.summary import RunSummary

SUMMARY = RunSummary(
    train_loss=0.5,
    validation_loss=0.25,
    mean_predictor_mse=1.0,
    noise_mse=0.1,
    weights_sha256="ab" * 32,
    epochs=3,
    wall_time_s=75.0,
    is_synthetic_data=False,
)


def pairs_of(truth: np.ndarray, prediction: np.ndarray) -> Findings:
    pairs = Pairs(truth[:, None], prediction[:, None], np.arange(len(truth)))
    return Findings([Skill("y", "", ErrorSums())], pairs=pairs)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "run <1>"
    folder.mkdir()
    with MetricsFile(folder / "metrics.jsonl") as metrics:
        for epoch in (1, 2, 3):
            metrics.append(
                {
                    "step": epoch,
                    "epoch": epoch,
                    "train_loss": 1 / epoch,
                    "validation_loss": 2 / epoch,
                    "learning_rate": 1e-3,
                }
            )
    (folder / "config.yaml").write_text("model:\n  name: <script>alert(1)</script>\n")
    return folder


def test_report_holds_plots_table_and_settings(run_folder: Path) -> None:
    truth = np.random.default_rng(0).random(1000)
    path = write_report(run_folder, SUMMARY, pairs_of(truth, truth + 0.01))
    page = path.read_text()
    assert path == run_folder / "report.html"
    assert re.findall("<h2>(.*?)</h2>", page) == [
        "Loss",
        "Learning rate",
        "Prediction against truth",
        "Summary",
        "Resolved settings",
    ]
    for text in ("mean predictor", "noise floor", "validation loss", "ab" * 32, "25 %", "1:15"):
        assert text in page
    assert sorted(file.name for file in run_folder.iterdir()) == ["config.yaml", "metrics.jsonl", "report.html"]


def test_text_is_escaped(run_folder: Path) -> None:
    page = write_report(run_folder, {"note": "<img src=x onerror=alert(1)>"}).read_text()
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    assert "<h1>run &lt;1&gt;</h1>" in page


def test_report_loads_nothing_from_elsewhere(run_folder: Path) -> None:
    page = write_report(run_folder, SUMMARY).read_text()
    # names of XML vocabularies look like addresses, but nothing is fetched from them
    addresses = set(re.findall(r"""(?:src|href)=["']([^"']*)|url\(([^)]*)\)|@import""", page))
    assert {address for pair in addresses for address in pair if address and not address.startswith("#")} == set()


def test_svg_is_well_formed_with_unique_names(run_folder: Path) -> None:
    page = write_report(run_folder, SUMMARY).read_text()
    figures = re.findall("<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(figures) == 2
    names = [element.get("id") for figure in figures for element in ElementTree.fromstring(figure).iter()]
    known = [name for name in names if name]
    assert len(known) == len(set(known)) > 0
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', page)) <= set(known)


def test_same_run_gives_the_same_bytes(run_folder: Path) -> None:
    first = write_report(run_folder, SUMMARY).read_bytes()
    assert write_report(run_folder, SUMMARY).read_bytes() == first


def test_report_of_an_empty_folder(tmp_path: Path) -> None:
    page = write_report(tmp_path, {}).read_text()
    assert re.findall("<h2>(.*?)</h2>", page) == ["Summary"]


def test_prediction_of_one_value_everywhere(tmp_path: Path) -> None:
    same = np.full(10, 0.5)
    assert "Prediction against truth" in write_report(tmp_path, {}, pairs_of(same, same)).read_text()


def test_unwritable_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "report.html").mkdir()
    with pytest.raises(OutputError, match=r"report\.html: cannot be written"):
        write_report(tmp_path, {})


def test_series_takes_the_last_value_of_each_epoch() -> None:
    records = [
        {"epoch": 2, "train_loss": 3.0},
        {"epoch": 1, "train_loss": 5.0},
        {"epoch": 2, "train_loss": 2.0},
        {"epoch": 3, "train_loss": None},
        {"train_loss": 1.0},
    ]
    assert series(records, "train_loss") == ([1, 2], [5.0, 2.0])


def test_loss_of_zero_is_no_error() -> None:
    assert plot_loss([{"epoch": 1, "train_loss": 0.0}], {"noise floor": None}).startswith("<svg")


@pytest.mark.parametrize("scale", [1e-30, 3.3e-7, 0.02, 1.0, 77.0, 123456.0, 1e20])
@pytest.mark.parametrize("decades", [0.0, 0.3, 1.5, 12.0])
def test_labels_of_any_size_fit_into_the_picture(scale: float, decades: float, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(plots, "_render_svg", lambda figure, prefix: figures.append(figure) or "")
    values = [scale * 10 ** (-decades * part) for part in (0, 0.4, 1)]
    records = [
        {"epoch": epoch, "train_loss": value, "validation_loss": 1.5 * value, "learning_rate": value,
         "jacobian_change": value}
        for epoch, value in zip((1, 50_000, 100_000), values, strict=True)
    ]  # fmt: skip
    plots.plot_loss(records, {"mean predictor": scale, "noise floor": scale / 3})
    plots.plot_learning_rate(records)
    plots.plot_jacobian_change(records)
    for figure in figures:
        left, bottom, right, top = figure.get_tightbbox().extents
        width, height = figure.get_size_inches()
        assert min(left, bottom, width - right, height - top) >= 0, figure.axes[0].get_ylabel()


def test_without_matplotlib_the_page_has_no_pictures_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    same = np.linspace(0, 1, 5)
    page = write_report(tmp_path, SUMMARY, pairs_of(same, same)).read_text()
    assert "python -m pip install matplotlib" in page
    assert "<svg" not in page
    assert "Summary" in page


def test_a_rank_is_named_that_holds_up_the_others_for_a_tenth_of_the_step() -> None:
    slowest = {"rank": 3, "host": "n7", "cause": "reading", "behind_s": 0.25}
    named = "Rank 3 on n7 is slow in reading: the others wait 250 ms a step for it (10 %). Node 2 is the slowest."
    assert _slowest({"slowest": {**slowest, "share": 0.1}, "slowest_node": 2}) == named
    none = "No rank delays the others by a tenth of the step or more."
    assert _slowest({"slowest": {**slowest, "share": 0.0999}}) == none
    assert _slowest({}) == ""
