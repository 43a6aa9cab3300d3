"""Whole commands in this process: one rank of the real MPI library, from the settings to the files of a run."""

from __future__ import annotations

import csv
import hashlib
import itertools
import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import torch
from history_samples import read_samples
from one_rank import one_rank_in_this_process
from safetensors.numpy import load_file

from mpitrain.cli.main import main
from mpitrain.ensemble.training.member_files import MemberWatcher
from mpitrain.models.files.stored_network import read_description
from mpitrain.synthetic.history import write_synthetic_history
from mpitrain.train.checkpoint.format import weights_sha256

pytestmark = [pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")]

# A dense network that the C++ program does not know: checking with that would start it.
SMALL = ("model.name=mlp", "model.hidden_layers=1", "model.hidden_size=3", "training.virtual_ranks=2")


@pytest.fixture(scope="module", autouse=True)
def _one_rank_in_this_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_rank_in_this_process(tmp_path_factory.mktemp("commands")):
        yield


@pytest.fixture(scope="module")
def settings(small_history: Path) -> list[str]:
    return [f"data.data_path={small_history}", *SMALL]


@pytest.fixture(scope="module")
def run(settings: list[str]) -> Path:
    assert main(["train", *settings, "training.epochs=2", "output.model_dir=deep/run"]) == 0
    return Path("deep/run")


@pytest.fixture(scope="module")
def ensemble(settings: list[str]) -> Path:
    """Two settings with two seeds each."""
    assert main(["ensemble", *settings, *SEARCH]) == 0
    return Path("ens")


SEARCH = ("ensemble={grid: {model.hidden_size: [2, 3]}, members: 2}", "training.epochs=4", "output.model_dir=ens")


def test_what_predict_writes_is_what_the_exported_model_answers(
    run: Path, small_history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(run), "--layout", "rows", "--output", "p.nc"]) == 0
    assert main(["export", str(run), "--output", "exported.pt"]) == 0
    assert "checked: jac gives the same bits for" in capsys.readouterr().out
    samples = read_samples(small_history, pole="north", is_clean=True)
    with netCDF4.Dataset("p.nc") as file:
        predicted = np.asarray(file["aice_h_predicted"][:])
        assert "share_of_inputs_outside_of_trained_range" in file.ncattrs()
    assert predicted.std() > 0
    np.testing.assert_allclose(answers_of(Path("exported.pt"), samples.inputs)[:, 0], predicted, rtol=1e-5, atol=1e-6)


def test_where_nothing_is_held_out_the_final_weights_are_exported_and_reported(
    settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """As few fields hold none out: the settings ask for the best weights, and there are none."""
    words = ["training.epochs=1", "data.validation_split=0.000001", "output.model_dir=few"]
    assert main(["train", *settings, *words]) == 0
    assert main(["export", "few", "--output", "final.pt"]) == 0
    assert "final weights of few/checkpoints/" in capsys.readouterr().out
    assert main(["report", "few"]) == 0
    assert "Prediction against truth" in Path("few/report.html").read_text()
    assert main(["export", "few", "--weights", "best", "--output", "best.pt"]) == 2
    assert "holds no best weights (the run has no validation); give --weights final" in capsys.readouterr().err


def answers_of(path: Path, inputs: Any) -> Any:
    with torch.no_grad():
        return torch.jit.load(str(path))(torch.from_numpy(inputs.astype(np.float32))).numpy()


def test_members_are_runs(ensemble: Path) -> None:
    table = (ensemble / "ensemble.csv").read_text().splitlines()
    epochs = [line.split(",")[table[0].split(",").index("epochs")] for line in table[1:]]
    assert epochs == ["4"] * 4
    for number in range(4):
        member = ensemble / "members" / f"{number:04d}"
        ended = json.loads((member / "run_record.json").read_text())
        assert (ended["result"]["epochs"], ended["result"]["steps"]) == (4, 28)
        assert json.loads((member / "statistics.json").read_text())["variables"]
        assert (member / "logs" / "rank-0000.log").is_file()


def test_the_loss_that_is_told_beside_the_best_epoch_is_that_of_its_weights(
    settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = "training.scheduler={type: step, step_size: 1, gamma: 100}"
    assert main(["train", *settings, schedule, "training.epochs=4", "output.model_dir=best_before_last"]) == 0
    lines = Path("best_before_last/metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["validation_loss"] for line in lines]
    result = json.loads(Path("best_before_last/run_record.json").read_text())["result"]
    assert min(losses) < losses[-1]
    assert (result["validation_loss"], result["best_epoch"]) == (min(losses), 1 + int(np.argmin(losses)))
    assert f"validation {min(losses):.4e} (best: epoch {result['best_epoch']})" in capsys.readouterr().out


def test_a_member_s_model_has_its_best_weights_and_not_its_last(settings: list[str]) -> None:
    """The learning rate, right at first, grows a hundredfold in each epoch: the last one is not the best."""
    schedule = "training.scheduler={type: step, step_size: 1, gamma: 100}"
    words = [schedule, "training.epochs=4", "ensemble={members: 2}", "output.model_dir=past_best"]
    assert main(["ensemble", *settings, *words]) == 0
    with Path("past_best/ensemble.csv").open() as table:
        rows = list(csv.DictReader(table))
    assert len(rows) == 2
    for row in rows:
        member = Path("past_best/members") / row["member"]
        losses = [json.loads(line)["validation_loss"] for line in (member / "metrics.jsonl").read_text().splitlines()]
        assert min(losses) < losses[-1]
        assert (float(row["validation_loss"]), int(row["best_epoch"])) == (min(losses), 1 + int(np.argmin(losses)))
        held = load_file(member / "checkpoints" / "latest" / "tensors.safetensors")
        best, last = ({name.removeprefix(kind): one for name, one in held.items() if name.startswith(kind)}
                      for kind in ("best.", "model."))  # fmt: skip
        written = torch.jit.load(str(member / "model.pt")).state_dict()
        assert best
        for name, values in best.items():
            np.testing.assert_array_equal(written[name].numpy(), values)
        assert any(not np.array_equal(values, last[name]) for name, values in best.items())
        assert row["weights_sha256"] == weights_sha256({name: best[name] for name in written if name in best})


def test_a_search_that_is_stopped_goes_on_to_the_same_table(
    settings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that a signal stops is trained to its end by --resume, and is no shorter for it."""
    grid = "ensemble={grid: {model.hidden_size: [2, 3]}, members: 2}"
    words = ["ensemble", *settings, grid, "training.epochs=4"]
    assert main([*words, "output.model_dir=whole"]) == 0
    note_epoch = MemberWatcher.on_epoch

    def note_and_signal(self: MemberWatcher, state: Any, *of_epoch: float) -> None:
        note_epoch(self, state, *of_epoch)
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(MemberWatcher, "on_epoch", note_and_signal)
        assert main([*words, "output.model_dir=halves"]) == 5
    assert main(["ensemble", "--resume", "output.model_dir=halves"]) == 0
    assert Path("halves/ensemble.csv").read_text() == Path("whole/ensemble.csv").read_text()


def test_a_dry_run_says_what_the_members_then_are(
    ensemble: Path, settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ensemble", *settings, *SEARCH, "--dry-run"]) == 0
    rows = [line.replace(",", "").split() for line in capsys.readouterr().out.splitlines() if re.match(r"\d{4} ", line)]
    assert [row[0] for row in rows] == sorted(path.name for path in (ensemble / "members").iterdir())
    for row in rows:
        member = ensemble / "members" / row[0]
        kept = json.loads((member / "run_record.json").read_text())["settings"]
        assert [int(row[1]), int(row[2])] == [kept["seed"], kept["model"]["hidden_size"]]
        held = load_file(member / "checkpoints" / "latest" / "tensors.safetensors")
        assert int(row[-1]) == sum(array.size for name, array in held.items() if name.startswith("model.network."))
        num_samples = json.loads((member / "statistics.json").read_text())["samples"]["valid"]
        assert int(row[-2]) >= num_samples


@pytest.mark.parametrize("varied", ["seed", "data"])
def test_the_files_of_a_member_say_whose_they_are(varied: str, settings: list[str], small_history: Path) -> None:
    """A member begins in what the one before it has left: its seed, data and statistics are its own."""
    files, folder = [small_history], Path(f"of_{varied}")
    if varied == "data":
        files.append(Path("other.nc").absolute())
        write_synthetic_history(files[1], seed=4, num_latitudes=48, num_longitudes=72)
    section = "members: 2" if varied == "seed" else f"grid: {{data.data_path: [{files[0]}, {files[1]}]}}"
    words = [f"ensemble={{{section}}}", "training.epochs=1", "output.hash_data=true", f"output.model_dir={folder}"]
    assert main(["ensemble", *settings, *words]) == 0
    for number in range(2):
        member, file = folder / "members" / f"{number:04d}", files[-1 if number else 0]
        kept = json.loads((member / "run_record.json").read_text())
        seed = number if varied == "seed" else 0
        assert (kept["settings"]["seed"], kept["decided"]["seed"]) == (seed, seed)
        assert kept["settings"]["output"]["model_dir"] == str(member)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        assert kept["data"] == [{"path": str(file), "bytes": file.stat().st_size, "sha256": digest}]
        of_model: dict[str, Any] = {"mpitrain.json": ""}
        model = torch.jit.load(str(member / "model.pt"), _extra_files=of_model)
        assert json.loads(of_model["mpitrain.json"])["run"] == kept["run"]
        seen = json.loads((member / "statistics.json").read_text())["variables"]
        limits = {one["name"]: (one["minimum"], one["maximum"]) for one in seen if one["role"] == "input"}
        assert read_description(member / "model.pt").ranges == limits
        beside = dict(torch.jit.load(str(member / "normalization.model.pt")).named_buffers())
        assert torch.equal(beside["0"], model.input_mean)
        assert torch.equal(beside["1"], model.input_std)


def test_an_ensemble_is_exported_as_mean_and_spread(
    ensemble: Path, small_history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(ensemble), "--output", "mean.pt"]) == 0
    assert "mean and spread" in capsys.readouterr().out
    inputs = read_samples(small_history, pole="north", is_clean=True).inputs
    names = json.loads((ensemble / "ensemble.json").read_text())["members"]  # of the best setting
    of_members = [answers_of(ensemble / "members" / name / "model.pt", inputs) for name in names]
    assert len(of_members) == 2
    np.testing.assert_allclose(answers_of(Path("mean.pt"), inputs), np.mean(of_members, axis=0), rtol=1e-5, atol=1e-6)


def test_what_has_no_value_of_the_transform_is_counted_in_the_file_that_has_it(
    small_history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"data.data_path={small_history}", *SMALL, "variables.input_variables=[sst_h, sss_h]"]
    words += [
        "variables.output_variables=[Tair_h]",
        "model.output_transforms={Tair_h: log}",
        "output.model_dir=refused",
    ]
    assert main(["train", *words]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("mpitrain: error: ")]
    outside, selected = re.search(r"target 'Tair_h' must be .*; (\d+) values of (\d+) selected samples", line).groups()
    assert 0 < int(outside) <= int(selected)


def test_a_network_for_saber_answers_with_the_names_given(
    run: Path, small_history: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), "--format", "saber", "--output", "saber.pt"]) == 2
    assert "'Tair_h' has no standard_name in the run's data" in capsys.readouterr().err
    samples = read_samples(small_history, pole="north", is_clean=True)
    names = [word for name in (*samples.input_names, "aice_h") for word in ("--name", f"{name}=model_{name}")]
    assert main(["export", str(run), "--format", "saber", "--output", "saber.pt", *names]) == 0
    emulator = torch.jit.load("saber.pt")
    assert emulator.input_names == [f"model_{name}" for name in samples.input_names]
    expected = answers_of(run / "model.pt", samples.inputs)
    np.testing.assert_allclose(answers_of(Path("saber.pt"), samples.inputs), expected, rtol=1e-5, atol=1e-6)


DATA_WORDS = {
    "store.zarr/": "store.zarr/: no such file",
    "table.PQ": "table.PQ: no such file",
    "numbers.pth": "numbers.pth: no such file",
    "*_2001.nc": "*_2001.nc: no file matches this pattern",
    "[ab]_2001.nc": "[ab]_2001.nc: no file matches this pattern",
    "😀.nc": "😀.nc: no such file",
    "a.nc training.epochs=1 seed=2": "a.nc: no such file",
}
_SETTINGS = {
    "data.data_path=?_2001.nc": "?_2001.nc: no file matches this pattern",
    "data.data_path=[a.nc,b.nc]": "a.nc: no such file",
    "data.data_path=[ab]*.nc": "[ab]*.nc: no file matches this pattern",
}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        *itertools.product(["train", "train --data", "ensemble", "ensemble --data", "data inspect"], DATA_WORDS),
        *itertools.product(["predict deep/run --data"], [word for word in DATA_WORDS if "=" not in word]),
        *itertools.product(["train", "ensemble", "data inspect"], _SETTINGS),
    ],
)
def test_a_word_is_data_by_the_end_of_its_name_or_as_a_pattern(
    command: str, words: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree("mpitrain_ensemble", ignore_errors=True)
    assert main([*command.split(), *words.split()]) != 0
    assert {**DATA_WORDS, **_SETTINGS}[words] in capsys.readouterr().err
