"""`mpitrain verify --invariance`: done again in other ways, a run leaves the same bits, or the first other is named."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Finished, launch

from mpitrain.cli.main import main
from mpitrain.config import load_run_config
from mpitrain.verify.invariance.checks import CHECKS, ERP, ERS, PEM, PET, REP, known_reasons
from mpitrain.verify.invariance.invariance import MOST_PROBES, Difference, compare_results, first_difference
from mpitrain.verify.invariance.runs import Result


def invariance(folder: Path, *words: str) -> tuple[Finished, dict[str, Any]]:
    flags = ["verify", "--invariance", "--output", str(folder), *words]
    done = launch(["-m", "mpitrain", *flags])
    assert (folder / "invariance.json").exists(), done.stderr
    return done, json.loads((folder / "invariance.json").read_text())


@pytest.mark.lab
def test_the_same_bits_in_every_way(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The default case, whole with --full; else the two ways that contain most of the others."""
    is_whole = request.config.getoption("--full")
    some = () if is_whole else ("--case", "REP", "--case", "ERP", "--ranks", "2,1", "training.epochs=2")
    done, report = invariance(tmp_path / "out", *some)
    assert done.returncode == 0, done.stdout
    assert report["passed"] is True
    names = ["REP", "PEM", "PEM", "ERS", "ERP", "PET"] if is_whole else ["REP", "ERP"]
    assert [(check["check"], check["verdict"]) for check in report["checks"]] == [(name, "same") for name in names]
    assert report["steps"] > 10
    assert re.search(r"^PASSED in \d+ s$", done.stdout, re.MULTILINE)


@pytest.mark.lab
def test_a_result_that_depends_on_the_ranks_is_red_and_explained(tmp_path: Path) -> None:
    words = ("--case", "PEM", "--ranks", "2,1", "training.reduction=any", "training.epochs=1")
    done, report = invariance(tmp_path / "out", *words)
    assert done.returncode == 1, done.stderr
    (check,) = report["checks"]
    assert (check["check"], check["verdict"], check["how"]) == ("PEM", "DIFFERS", "1 rank")
    difference = check["first_difference"]
    assert difference["step"] <= 3
    assert difference["name"].startswith(("model.fc", "optimizer.fc"))
    assert 0 < abs(difference["expected"] - difference["found"]) < 1e-3
    assert len(check["reasons"]) == 1
    assert "training.reduction=fixed gives the same bits on any number of ranks" in check["reasons"][0]
    assert re.search(r"^PEM .* DIFFERS: after step \d: (model|optimizer)\.fc\S*\[.*\]: ", done.stdout, re.MULTILINE)
    assert re.search(r"^     why: training.reduction=any adds in an order ", done.stdout, re.MULTILINE)


def result(step: int = 4, metrics: tuple[dict[str, Any], ...] = (), **tensors: Any) -> Result:
    arrays = {name.replace("__", "."): np.array(values, np.float32) for name, values in tensors.items()}
    return Result(arrays, {"global_step": step}, metrics)


def test_the_first_difference_is_in_a_parameter() -> None:
    one = result(best__a=[1.0], model__b=[1.0, 2.0], optimizer__b=[3.0])
    assert compare_results(one, result(best__a=[1.0], model__b=[1.0, 2.0], optimizer__b=[3.0])) is None
    found = compare_results(one, result(best__a=[0.5], model__b=[1.0, np.nextafter(np.float32(2), np.float32(3))],
                                        optimizer__b=[3.0]))  # fmt: skip
    assert found is not None
    assert (found.name, found.index, found.ulps, found.num_tensors, found.step) == ("model.b", (1,), 1, 2, 4)
    assert str(found).startswith("after step 4: model.b[1]: 2.0, here 2.0000002384185")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (result(model__a=[[1.0]]), "float32 of shape (1, 1)"),
        (result(), "'missing'"),
        (result(model__a=[-1.0]), "-1.0"),
        (result(step=5, model__a=[1.0]), "'global_step': 5"),
        (result(model__a=[1.0], metrics=({"train_loss": 0.5},)), "train_loss"),
    ],
)
def test_whatever_differs_is_found(other: Result, words: str) -> None:
    difference = compare_results(result(model__a=[1.0]), other)
    assert difference is not None
    assert words in str(difference)
    assert compare_results(other, result(model__a=[1.0])) is not None


def test_other_bits_of_equal_numbers_differ() -> None:
    assert compare_results(result(model__a=[0.0]), result(model__a=[-0.0])) is not None
    assert compare_results(result(model__a=[np.nan]), result(model__a=[np.nan])) is None


@pytest.mark.parametrize("begins_at", [1, 2, 3, 7, 20, 63, 64])
@pytest.mark.parametrize("same_at", [0, 1])
def test_the_first_step_is_found(begins_at: int, same_at: int) -> None:
    asked: list[int] = []

    def result_at(step: int) -> tuple[Result, Result]:
        assert step > same_at
        asked.append(step)
        return result(step, model__a=[1.0]), result(step, model__a=[1.0 + (step >= begins_at)])

    known = Difference("metrics", (), "", "", None, 1, 64)
    found = first_difference(result_at, known, same_at)
    assert found.step == max(begins_at, same_at + 1)
    assert len(asked) <= MOST_PROBES
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize(
    ("check", "settings", "words"),
    [
        (PEM, ["training.batch_size=16"], "with training.global_batch_size it does not"),
        (ERP, ["training.engine=ddp"], "training.reduction=fixed gives the same bits"),
        (PEM, ["training.virtual_ranks=2"], "training.virtual_ranks=2 is raised for 3 ranks"),
        (PEM, ["semantics=reference"], "semantics=reference depends on the number of ranks"),
        (PET, ["semantics=reference"], "semantics=reference needs MPI"),
        (PET, ["training.reduction=any"], "training.reduction=fixed gives the same bits"),
        (ERS, ["model.name=own.module:build"], "model.name=own.module:build is your own code"),
    ],
)
def test_settings_that_explain_a_difference(check: Any, settings: list[str], words: str) -> None:
    (reason,) = known_reasons(check, load_run_config(None, settings).config, (2, 3))
    assert words in reason


def test_the_defaults_explain_none() -> None:
    config = load_run_config(None, []).config
    assert [known_reasons(check, config, (2, 1, 3)) for check in CHECKS] == [[]] * len(CHECKS)
    assert known_reasons(REP, load_run_config(None, ["training.reduction=any"]).config, (2, 1)) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--case", "PFS"], "--case 'PFS': no such check of --invariance; there are REP, PEM, ERS, ERP, PET"),
        (["--ranks", "2,x"], "--ranks 2,x: give numbers"),
        (["training.epochs=-1"], "training.epochs=-1"),
        (["nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_wrong_words_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["verify", *words, "--invariance", "--output", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("mpitrain: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "out").exists()
