"""What an export says of the C++ program is what was tried: no activation of its own, no other order of inputs."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import train
from cpp_program import cpp_program, need_cpp_toolchain, run_cpp
from history_samples import read_samples
from networks import build_icenet
from predicting import HISTORY, config_of, golden_icenet, read, save

from mpitrain.data.describe.names import CICE_INPUTS
from mpitrain.data.samples import Samples
from mpitrain.errors import OutputError
from mpitrain.export import cpp_check
from mpitrain.export.cpp_check import TOLERANCE, check_from_cpp
from mpitrain.export.network import export
from mpitrain.export.request import ExportRequest
from mpitrain.models.icenet import IceNet

REORDERED = ("sice_h", "hi_h", "Tair_h", "hs_h", "sss_h", "sst_h", "Tsfc_h")


def steep_icenet(hidden_activation: str) -> IceNet:
    """A network far from linear: with another activation, or with its inputs mixed up, it answers otherwise."""
    model = build_icenet(7, 16, hidden_activation, seed=4)
    golden = golden_icenet()
    model.set_normalization(golden.input_mean, golden.input_std)
    return model.eval()


def predicted_as_by_the_original(model: Path, output: Path) -> np.ndarray:
    """What a program without an activation between the layers, which knows one order of inputs, makes of a file."""
    flags = ["--predict-only", "--history", str(HISTORY), "--model", str(model), "--prediction", str(output)]
    done = run_cpp(1, *flags)
    assert done.returncode == 0, done.stderr
    return read(output)["aice_ffnn"]


def history_inputs() -> torch.Tensor:
    return torch.from_numpy(read_samples(HISTORY, "north", True).inputs)


@pytest.mark.lab
def test_an_activation_between_the_layers_is_not_the_originals(tmp_path: Path) -> None:
    cpp_program()
    model = steep_icenet("gelu")
    path = save(model, tmp_path / "m.pt")
    line = check_from_cpp(path, model, config_of(HISTORY), None, history_inputs(), False)
    said = r"checked: C\+\+ predicts \d+ points and their 7 derivatives with --hidden-activation gelu, the same"
    assert re.match(said, line)
    assert line.endswith(
        "; the original program would predict other values: it has no activation between the layers; load this file "
        "with torch::jit::load"
    )
    found = predicted_as_by_the_original(path, tmp_path / "c.nc")
    with torch.no_grad():
        assert np.abs(found - model(history_inputs())[:, 0].numpy()).max() > 1e-3  # the words are true


def test_without_a_check_the_words_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_cpp_toolchain()
    monkeypatch.setattr(cpp_check, "program_path", lambda toolchain: tmp_path / "not built")
    found = [
        check_from_cpp(tmp_path / "m.pt", steep_icenet(name), config_of(HISTORY), None, history_inputs(), False)
        for name in ("none", "tanh")
    ]
    assert found[0] == "C++: not checked: the C++ program is not built; --build builds it"
    assert found[1].startswith(f"{found[0]}; the original program would predict other values: it has no activation")


@pytest.mark.lab
def test_the_originals_own_network_needs_no_words(tmp_path: Path) -> None:
    cpp_program()
    path = save(golden_icenet(), tmp_path / "m.pt")
    config = config_of(HISTORY, "model.hidden_activation=none")
    line = check_from_cpp(path, golden_icenet(), config, None, history_inputs(), False)
    assert re.fullmatch(r"checked: C\+\+ predicts \d+ points and their 7 derivatives, the same (bits|to \S+)", line)


@pytest.fixture(scope="module")
def reordered_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    variables = f"variables.input_variables=[{', '.join(REORDERED)}]"
    done = train(None, folder, f"data.data_path={HISTORY}", variables, "training.epochs=2")
    assert done.returncode == 0, done.stderr
    return folder


def exported(run: Path, output: Path) -> list[str]:
    lines: list[str] = []
    before = torch.get_num_threads()
    try:
        export(ExportRequest(run, output), lines.append)
    finally:
        torch.set_num_threads(before)
    return lines


@pytest.mark.lab
def test_reordered_inputs_are_checked_in_their_own_order(reordered_run: Path, tmp_path: Path) -> None:
    cpp_program()
    line = exported(reordered_run, tmp_path / "m.pt")[-1]
    assert re.match(r"checked: C\+\+ predicts 1513 points and their 7 derivatives, the same", line)
    assert line.endswith(
        f"; the original program would predict other values: it reads {', '.join(CICE_INPUTS)} in this order, not "
        f"{', '.join(REORDERED)}; load this file with torch::jit::load"
    )
    inputs = history_inputs()[:, [CICE_INPUTS.index(name) for name in REORDERED]]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch announces TorchScript's retirement
        expected = torch.jit.load(str(tmp_path / "m.pt"))(inputs)[:, 0].numpy()
    found = predicted_as_by_the_original(tmp_path / "m.pt", tmp_path / "c.nc")
    assert np.abs(found - expected).max() > 1e-3  # the words are true


@pytest.mark.lab
def test_the_samples_that_cpp_is_given_are_those_of_the_run(
    reordered_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A C++ program that mixed the inputs up is found: the answers are compared for the network's own order."""
    need_cpp_toolchain()
    given: list[np.ndarray] = []
    write = cpp_check.write_history_of

    def noting(inputs: torch.Tensor, pole: str, path: Path) -> Path:
        given.append(inputs.numpy())
        return write(inputs, pole, path)

    monkeypatch.setattr(cpp_check, "write_history_of", noting)
    exported(reordered_run, tmp_path / "m.pt")
    columns = [CICE_INPUTS.index(name) for name in REORDERED]
    np.testing.assert_array_equal(given[0], history_inputs().numpy()[:, columns])
    monkeypatch.setattr(cpp_check, "write_history_of", lambda *_: HISTORY)  # the program's own order
    monkeypatch.setattr(cpp_check, "_read", lambda *_: Samples(given[0], given[0][:, :1], None, REORDERED))
    with pytest.raises(OutputError, match=r"C\+\+ and Python predict values that differ by up to ") as caught:
        exported(reordered_run, tmp_path / "m.pt")
    assert float(str(caught.value).split("up to ")[1].split(";")[0]) > TOLERANCE
