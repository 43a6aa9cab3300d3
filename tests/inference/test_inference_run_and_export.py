"""A run's own prediction, and its export: one training run of two ranks, and what is made of its folder."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import launch, train
from cpp_program import cpp_program, run_cpp
from predicting import DERIVATIVES, HISTORY, config_of, golden_icenet, left_behind, mlp, predict_played, read, save

from mpitrain.errors import CheckpointError, MpitrainError, OutputError
from mpitrain.export import network as export_module
from mpitrain.export.network import export
from mpitrain.export.request import ExportRequest
from mpitrain.inference.report import report
from mpitrain.models.files import torchscript
from mpitrain.models.files.torchscript import load_and_run_code
from mpitrain.models.jacobian import input_jacobian
from mpitrain.runs.final_prediction import check_final_prediction
from mpitrain.train.run_folder import RunFolder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ends after its best epoch: the learning rate, right at first, grows a hundredfold in each."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    schedule = ("training.scheduler.type=step", "training.scheduler.step_size=1", "training.scheduler.gamma=100")
    settings = ("training.epochs=4", *schedule, f"prediction.cice_history={HISTORY}")
    done = train(2, folder, f"data.data_path={HISTORY}", *settings)
    assert done.returncode == 0, done.stderr
    assert f"prediction: {folder / 'prediction.nc'}, 1513 samples" in done.stdout
    return folder


def exported(run: Path, output: Path, **options: object) -> list[str]:
    lines: list[str] = []
    before = torch.get_num_threads()
    try:
        export(ExportRequest(run, output, **options), lines.append)  # type: ignore[arg-type]
    finally:
        torch.set_num_threads(before)
    return lines


def weights_of(path: Path) -> bytes:
    return b"".join(value.detach().numpy().tobytes() for value in load_and_run_code(path).parameters())


def test_the_run_s_prediction_is_that_of_its_model(run: Path, tmp_path: Path) -> None:
    predict_played(run / "model.pt", config_of(HISTORY), tmp_path / "p.nc")
    later, at_the_end = read(tmp_path / "p.nc"), read(run / "prediction.nc")
    assert list(later) == list(at_the_end)
    for name in later:
        np.testing.assert_allclose(at_the_end[name], later[name], rtol=1e-5, atol=1e-7)


def test_a_run_folder_is_a_model_with_its_data(run: Path, tmp_path: Path) -> None:
    done = launch(["-m", "mpitrain", "predict", str(run), "domain.pole=north", "--output", "p.nc"], None, tmp_path)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "p.nc")["aice"].tobytes() == read(run / "prediction.nc")["aice"].tobytes()


def test_the_public_command_exports_what_it_checked(run: Path, tmp_path: Path) -> None:
    cpp_program()
    done = launch(["-m", "mpitrain", "export", str(run), "--output", "m.pt"], None, tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert re.match(r"m\.pt: best weights of .*step-\d+ \(step \d+\)", lines[0])
    assert lines[1:4] == [
        "checked: forward gives the same bits for 1513 samples of the run's data",
        "checked: jac gives the same bits for 1513 samples of the run's data",
        "checked: normalization.m.pt holds the model's mean and standard deviation",
    ]
    assert re.match(r"checked: C\+\+ predicts 1513 points and their 7 derivatives, the same", lines[4])
    assert weights_of(tmp_path / "m.pt") == weights_of(run / "model.pt")
    assert list(load_and_run_code(tmp_path / "m.pt").input_names)[:2] == ["Tair_h", "Tsfc_h"]
    assert left_behind(tmp_path) == ["m.pt", "normalization.m.pt"]


@pytest.mark.lab
def test_best_final_and_checkpoints_are_told_apart(run: Path, tmp_path: Path) -> None:
    cases = {
        "best": {"weights": "best"},
        "final": {"weights": "final"},
        "latest": {"checkpoint": "latest"},
        "best checkpoint": {"checkpoint": "best"},
        "named": {"checkpoint": str(next((run / "checkpoints").glob("best-*")))},
    }
    found = {}
    for name, options in cases.items():
        exported(run, tmp_path / "m.pt", **options)
        found[name] = weights_of(tmp_path / "m.pt")
    assert found["best"] == found["best checkpoint"] == found["named"] == weights_of(run / "model.pt")
    assert found["final"] == found["latest"] != found["best"]


@pytest.mark.lab
def test_an_exported_model_predicts_the_golden_case_in_python_and_cpp(tmp_path: Path) -> None:
    model = save(golden_icenet(), tmp_path / "model.pt")
    flags = ["--predict-only", "--history", str(HISTORY), "--model", str(model), "--prediction", str(tmp_path / "c.nc")]
    assert run_cpp(1, *flags).returncode == 0
    predict_played(model, config_of(HISTORY), tmp_path / "p.nc")
    ours, theirs = read(tmp_path / "p.nc"), read(tmp_path / "c.nc")
    for name in ("aice_ffnn", *DERIVATIVES):
        assert np.abs(ours[name] - theirs[name]).max() <= 1e-6, name


@pytest.mark.lab
def test_without_its_data_a_run_is_checked_on_drawn_samples(run: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(run, tmp_path / "moved")
    text = (moved / "config.yaml").read_text().replace(str(HISTORY), "/gone/away.nc")
    (moved / "config.yaml").write_text(text)
    lines = exported(moved, tmp_path / "m.pt")
    assert lines[1] == "checked: forward gives the same bits for 64 drawn samples (the run's data cannot be read)"


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        (
            {"checkpoint": "none"},
            CheckpointError,
            r"--checkpoint none: no such folder; give latest, best or a folder of",
        ),
        ({"output": Path("no/where.pt")}, OutputError, r"no/where\.pt: cannot be written"),
        ({"run": Path("no-run")}, MpitrainError, r"no-run: holds no run"),
    ],
)
def test_wrong_words_leave_no_file(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict, kind: type, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(kind, match=message) as caught:
        export(ExportRequest(**{"run": run, **options}), lambda line: None)
    assert "\n" not in str(caught.value)
    assert left_behind(tmp_path) == []


@pytest.mark.lab
@pytest.mark.parametrize("part", ["forward", "jac", "side file"])
def test_a_file_that_answers_otherwise_is_not_believed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    archive_of = torchscript._archive_of

    def spoil(scripted: torch.jit.ScriptModule, *record: object) -> bytes:
        if part == "forward" and hasattr(scripted, "fc2"):
            with torch.no_grad():
                scripted.fc2.bias += 1e-3  # in every answer, however flat the sigmoid is there
        if part == "side file" and "0" in scripted.state_dict():
            scripted.state_dict()["0"].add_(1e-3)
        return archive_of(scripted, *record)

    monkeypatch.setattr(torchscript, "_archive_of", spoil)
    if part == "jac":
        wrong = lambda model, inputs: (None, 2 * input_jacobian(model, inputs)[1])  # noqa: E731
        monkeypatch.setattr(export_module, "input_jacobian", wrong)
    with pytest.raises(OutputError, match=r"from those of the model|that of the model|other statistics"):
        exported(run, tmp_path / "m.pt")


@pytest.mark.lab
def test_cpp_that_answers_otherwise_is_an_error(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mpitrain.export import cpp_check

    cpp_program()
    predict = cpp_check._predict
    spoilt = lambda *words: {k: v + np.float32(1e-5) for k, v in predict(*words).items()}  # noqa: E731
    monkeypatch.setattr(cpp_check, "_predict", spoilt)
    with pytest.raises(OutputError, match=r"C\+\+ and Python predict values that differ by up to 1\.?\d*e-05"):
        exported(run, tmp_path / "m.pt")


def test_other_networks_say_why_cpp_did_not_check(tmp_path: Path) -> None:
    from mpitrain.export.cpp_check import check_from_cpp

    line = check_from_cpp(tmp_path / "m.pt", mlp(7), config_of(HISTORY), None, torch.zeros(1, 7), False)
    assert line.startswith("C++: not checked: the C++ program supports only IceNet with 7 inputs")


@pytest.mark.lab
def test_an_impossible_prediction_is_refused_before_the_training(tmp_path: Path) -> None:
    done = train(None, tmp_path / "run", f"data.data_path={HISTORY}", "prediction.cice_history=/no/such.nc")
    assert done.returncode == 2
    assert len(done.our_lines) == 1
    assert "/no/such.nc: no such file" in done.our_lines[0]
    assert not (tmp_path / "run" / "config.yaml").exists()
    config = config_of(HISTORY, "prediction.output_filename=/no/where/p.nc")
    with pytest.raises(
        OutputError, match=r"prediction\.output_filename=/no/where/p\.nc: the folder /no/where does not exist"
    ):
        check_final_prediction(config, RunFolder(tmp_path / "run"), [], overwrite=False)


@pytest.mark.lab
def test_a_report_is_made_anew_from_what_is_there(run: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(run, tmp_path / "moved")
    (moved / "report.html").unlink()
    (moved / "model.pt").unlink()  # as of a run that goes on
    done = launch(["-m", "mpitrain", "report", str(moved)])
    assert (done.returncode, done.stdout) == (0, f"report: {moved / 'report.html'}\n"), done.stderr
    page, first = ((folder / "report.html").read_text() for folder in (moved, run))
    for heading in ("Loss", "Learning rate", "Prediction against truth", "Summary", "Resolved settings"):
        assert f"<h2>{heading}</h2>" in page
    digits = re.findall(r"[0-9a-f]{64}", first)
    assert digits[0] in page
    shutil.rmtree(moved / "checkpoints")
    (moved / "metrics.jsonl").write_text("")
    with pytest.raises(OutputError, match="holds no finished epoch yet"):
        report(moved)
