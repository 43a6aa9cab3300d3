"""`mpitrain verify` on a user's own configuration and file: the same claims, a real failure, and every refusal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
import yaml
from conftest import REFERENCE_CASE, TESTS, launch
from cpp_program import cpp_program, read_arrays
from networks import build_icenet

from mpitrain.cli.main import main
from mpitrain.models.files.torchscript import save_model

HISTORY = REFERENCE_CASE / "cice_history.nc"


def reference_yaml(folder: Path, **training: object) -> Path:
    settings = {
        "semantics": "reference",
        "model": {"hidden_size": 16, "initial_weights": str(REFERENCE_CASE / "initial_weights.nc")},
        "data": {"data_path": str(HISTORY)},
        "training": {"epochs": 200, **training},
    }
    path = folder / "my.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def cases_of(folder: Path) -> list[dict]:
    return json.loads((folder / "verify.json").read_text())["cases"]


def test_own_reference_run(tmp_path: Path) -> None:
    cpp_program()
    flags = ["--config", str(reference_yaml(tmp_path)), "--ranks", "1,2", "--output", str(tmp_path / "out")]
    done = launch(["-m", "mpitrain", "verify", *flags])
    assert done.returncode == 0, done.stderr
    cases = cases_of(tmp_path / "out")
    assert [(case["case"], case["ranks"], case["claim"]) for case in cases] == [
        ("your run/torch", 1, "exact"), ("your run/plain", 1, "close float32"),
        ("your run/torch", 2, "exact"), ("your run/plain", 2, "close float32"),
    ]  # fmt: skip
    assert all(case["passed"] for case in cases)
    assert all(v["different"] == 0 for case in cases if case["claim"] == "exact" for v in case["variables"].values())
    # 200 epochs, not the default: step 100 is traced, step 1000 is not.
    assert "weights_step100.fc1.weight" in cases[0]["variables"]
    assert "weights_step1000.fc1.weight" not in cases[0]["variables"]


@pytest.mark.lab
def test_own_standard_run_with_many_settings(tmp_path: Path, small_history: Path) -> None:
    """Mini-batches per rank, held-out samples, another seed, Adam and network; the numbers of the C++ side are its."""
    cpp_program()
    settings = [
        f"data.data_path={small_history}", "data.validation_split=0.2", "seed=11", "training.epochs=3",
        "training.batch_size=24", "training.virtual_ranks=4", "training.optimizer.learning_rate=0.004",
        "training.optimizer.beta1=0.8", "training.optimizer.epsilon=1e-6", "model.hidden_size=9",
        "model.hidden_activation=relu", "domain.pole=south",
    ]  # fmt: skip
    done = launch(["-m", "mpitrain", "verify", *settings, "--ranks", "3", "--output", str(tmp_path / "out")])
    assert done.returncode == 0, done.stderr + done.stdout
    exact, close = cases_of(tmp_path / "out")
    assert (exact["case"], exact["passed"], close["case"], close["passed"]) == (
        "your run/torch", True, "your run/plain", True,
    )  # fmt: skip
    assert all(v["different"] == 0 for v in exact["variables"].values())
    assert "weights_step10.fc1.weight" in exact["variables"]  # more than one step an epoch


@pytest.mark.lab
def test_own_run_from_the_weights_of_a_model_file(tmp_path: Path) -> None:
    cpp_program()
    name = "weights_of_a_run"  # told by its content, as in `train`; the next test has a model.pt
    model = build_icenet(7, 16, "none", seed=77)
    save_model(model, tmp_path / "model.pt")
    (tmp_path / "model.pt").rename(tmp_path / name)
    settings = [f"model.initial_weights={tmp_path / name}", "training.epochs=20"]
    flags = [f"data.data_path={HISTORY}", *settings, "--ranks", "2", "--output", str(tmp_path / "out")]
    done = launch(["-m", "mpitrain", "verify", *flags])
    assert done.returncode == 0, done.stderr
    assert all(case["passed"] for case in cases_of(tmp_path / "out"))
    for side in ("python", "torch", "plain"):
        trace = read_arrays(tmp_path / "out" / "traces" / f"your_run_np2.{side}.nc")
        assert trace["initial.fc1.weight"].tobytes() == model.fc1.weight.detach().numpy().tobytes(), side


@pytest.mark.lab
def test_a_model_file_keeps_all_its_digits(tmp_path: Path) -> None:
    """Weights of float64 reach a C++ program that trains in float64 as they are."""
    cpp_program()
    model = build_icenet(7, 16, "none", seed=78, dtype=torch.float64)
    with torch.no_grad():
        model.fc2.bias.fill_(1 / 3)
    save_model(model, tmp_path / "model.pt")
    settings = [f"model.initial_weights={tmp_path / 'model.pt'}", "training.dtype=float64", "training.epochs=2"]
    flags = [f"data.data_path={HISTORY}", *settings, "--ranks", "1", "--output", str(tmp_path / "out")]
    launch(["-m", "mpitrain", "verify", *flags])
    assert {case["case"]: case["passed"] for case in cases_of(tmp_path / "out")}["your run/plain"]
    for side in ("python", "torch", "plain"):
        assert read_arrays(tmp_path / "out" / "traces" / f"your_run_np1.{side}.nc")["initial.fc2.bias"] == 1 / 3, side


# The public command, with one of the faults planted in what Python's side computes.
WITH_FAULT = (
    f"PROGRAM = {str(TESTS / 'planted_faults' / 'python_side.py')!r}"
    + """
import sys
from mpitrain.cli.main import main
from mpitrain.verify import verify

job, run = verify._Workbench._job, verify.run_under_mpi

def run_with_fault(launcher, num_ranks, command):
    if "mpitrain.verify.python_side" in command:
        command = [command[0], PROGRAM, command[-1]]
    return run(launcher, num_ranks, command)

verify._Workbench._job = lambda *arguments: {**job(*arguments), "fault": "torch's Adam arithmetic"}
verify.run_under_mpi = run_with_fault
sys.exit(main(sys.argv[1:]))
"""
)


def test_a_difference_is_exit_code_1(tmp_path: Path) -> None:
    cpp_program()
    flags = ["--config", str(reference_yaml(tmp_path)), "--ranks", "2", "--output", str(tmp_path / "out")]
    done = launch(["-c", WITH_FAULT, "verify", *flags])
    assert done.returncode == 1, done.stderr
    exact, close = cases_of(tmp_path / "out")
    assert exact["passed"] is False
    assert exact["first_difference"].startswith("gradient at step 10: ")
    assert close["passed"] is True  # another order of rounding, which that claim allows
    assert re.search(r"^your run/torch .* DIFFERS: gradient at step 10: ", done.stdout, re.MULTILINE)
    assert re.search(r"^FAILED in \d+ s$", done.stdout, re.MULTILINE)
    report = json.loads((tmp_path / "out" / "verify.json").read_text())
    assert report["passed"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["training.scheduler.type=cosine"], "the C++ program has no training.scheduler;"),
        (["training.optimizer.weight_decay=0.1"], "the C++ program has no training.optimizer.weight_decay;"),
        (["training.optimizer.type=adamw"], "no training.optimizer.type;"),
        (["training.loss_function=mae"], "no training.loss_function;"),
        (["training.early_stopping_patience=3"], "no training.early_stopping_patience;"),
        (["training.max_steps=3"], "no training.max_steps;"),
        (["training.reduction=any"], "no training.reduction=any;"),
        (["training.scheduler.type=step", "training.optimizer.weight_decay=1"], "scheduler, training.optimizer.weight"),
        (["data.data_path=null", "seed=1"], "set data.data_path"),
        (["data.data_path=nowhere.nc"], "nowhere.nc: no such file; set data.data_path"),
        (["data.data_path={history}.npz"], "reads NetCDF history files only"),
        (["training.epochs=-1"], "command line: training.epochs=-1"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--ranks", "0,x"], "--ranks 0,x: give numbers of ranks such as 1,2,4"),
        (["--ranks", "0"], "--ranks 0: give numbers"),
        (["--ranks", ""], "--ranks : give numbers"),
        (["--ranks", "1,,2"], "--ranks 1,,2: give numbers"),
    ],
)
def test_what_cannot_be_verified_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    (tmp_path / "history.npz").write_bytes(b"")
    given = [argument.format(history=tmp_path / "history") for argument in arguments]
    own = [] if any("data_path" in argument for argument in given) else [f"data.data_path={HISTORY}"]
    assert main(["verify", *own, *given, "--output", str(tmp_path / "out")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("mpitrain: error: ")
    assert message in captured.err
    assert not (tmp_path / "out").exists()  # told before anything is built or written


def test_an_error_of_the_ranks_is_passed_on(tmp_path: Path) -> None:
    """What only reading the file can tell comes back as the programs' own message and exit code."""
    cpp_program()
    broken = tmp_path / "history.nc"
    broken.write_bytes(HISTORY.read_bytes()[:2000])
    flags = [f"data.data_path={broken}", "--ranks", "2", "--output", str(tmp_path / "out")]
    done = launch(["-m", "mpitrain", "verify", *flags])
    assert done.returncode == 2
    assert len(done.our_lines) == 1
    assert done.our_lines[0].startswith(f"mpitrain: error: {broken}: ")
    assert not (tmp_path / "out" / "verify.json").exists()


@pytest.mark.lab
def test_an_output_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cpp_program()
    (tmp_path / "file").write_text("")
    assert main(["verify", "--ranks", "1", "--output", str(tmp_path / "file" / "out")]) == 2
    assert "cannot be written" in capsys.readouterr().err
