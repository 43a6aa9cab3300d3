"""The moving average of the weights: by its formula, in each engine, on ranks, after a resume, and exported."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import played_runs
import pytest
import torch
from conftest import train
from played_runs import RATE, fields, fitted_hashes, one_step, run_alone
from safetensors.numpy import load_file

import mpitrain
from mpitrain.cli.main import main
from mpitrain.comm import host_array
from mpitrain.config import load_run_config
from mpitrain.python.run import Run
from mpitrain.runs import prepare
from mpitrain.train.checkpoint.store import AVERAGE_KEY, load_checkpoint
from mpitrain.train.engines.weight_average import STEPS

DECAY = 0.9
AVERAGE = f"training.average={{decay: {DECAY}}}"
ENGINES = ("eager", "compiled", "traced")


def flat_average(run: played_runs.Run) -> np.ndarray:
    average = run.engine.average
    names = [name for name, _ in run.model.named_parameters()]
    return np.concatenate([host_array(average.values[name]).astype(np.float64).reshape(-1) for name in names])


def expected_after(weights: list[np.ndarray]) -> np.ndarray:
    """By the formula from the first weights and those after each step."""
    average = weights[0]
    for t, after in enumerate(weights[1:], 1):
        average = average + (1 - min(DECAY, (1 + t) / (10 + t))) * (after - average)
    return average


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("engine", ENGINES)
def test_the_average_is_that_of_the_formula(engine: str, optimizer: str) -> None:
    how = (
        f"training.engine={engine}",
        f"training.optimizer.type={optimizer}",
        "model.name=mlp",
        "training.dtype=float64",
    )
    run, plain = (
        run_alone(*how, AVERAGE, "training.global_batch_size=4"),
        run_alone(*how, "training.global_batch_size=4"),
    )
    weights = [run.parameters().double().numpy()]
    for each in (run, plain):
        each.engine.start_epoch(0)
    for step in range(20):  # past the 8th, from which the decay counts
        one_step(run.engine, step, RATE)
        one_step(plain.engine, step, RATE)
        weights.append(run.parameters().double().numpy())
    np.testing.assert_allclose(flat_average(run), expected_after(weights), rtol=1e-12)
    assert float(run.engine.average.values[STEPS][0]) == 20
    torch.testing.assert_close(run.parameters(), plain.parameters(), rtol=0, atol=0)  # training is as without it


def test_many_steps_in_one_call_are_as_one_by_one() -> None:
    how = ("training.engine=compiled", AVERAGE, "training.global_batch_size=4")
    at_once, one_step_per_call = run_alone(*how), run_alone(*how)
    for each in (at_once, one_step_per_call):
        each.engine.start_epoch(0)
    assert len(at_once.engine.take_steps(0, 12, RATE, False).losses) == 12
    for step in range(12):
        one_step(one_step_per_call.engine, step, RATE)
    np.testing.assert_array_equal(flat_average(at_once), flat_average(one_step_per_call))


@pytest.mark.parametrize("engine", ENGINES)
def test_one_hash_on_any_number_of_ranks(engine: str) -> None:
    how = (f"training.engine={engine}", AVERAGE, "model.name=mlp", "training.global_batch_size=8")
    alone = fitted_hashes(1, *how)[0]
    assert all(set(fitted_hashes(number, *how)) == {alone} for number in (2, 3, 4))


@pytest.mark.parametrize("samples", [None, fields()], ids=["points", "fields"])
def test_validation_is_of_the_average_and_so_are_the_best_weights(samples: object) -> None:
    network = ("model.name=mlp",) if samples is None else ("model.name=cnn", "data.samples=fields")
    how = (AVERAGE, "training.epochs=3", "data.validation_split=0.3", "training.global_batch_size=8", *network)
    run = run_alone(*how, samples=samples)  # type: ignore[arg-type]
    run.fit()
    raw, found = run.parameters().numpy(), flat_average(run)
    assert not np.allclose(raw, found)
    last = run.trainer.state.validation_loss
    with run.engine.average.in_place():
        assert run.engine.validation_loss() == last
    assert run.engine.validation_loss() != last
    np.testing.assert_array_equal(run.parameters().numpy(), raw)
    run.trainer.export_weights("final")
    np.testing.assert_array_equal(run.parameters().numpy(), found.astype(raw.dtype))
    run.trainer.export_weights("best")
    assert run.engine.validation_loss() == run.trainer.state.best_loss


@pytest.mark.parametrize("engine", ["eager", "compiled"])
def test_a_resumed_run_has_the_average_of_an_uninterrupted_one(tmp_path: Path, engine: str) -> None:
    """By command, stopped in the middle of an epoch; what is exported and predicted is the average."""
    how = (f"training.engine={engine}", "model.name=mlp", "training.epochs=3", "output.weights=final")
    for folder, more in (("plain", ()), ("whole", (AVERAGE,)), ("parted", (AVERAGE, "training.max_steps=50"))):
        done = train(1, tmp_path / folder, *how, *more)
        assert done.returncode in (0, 5), done.stderr
    done = train(2, tmp_path / "parted", *how, "training.max_steps=null", "--resume")  # the average is its checkpoint's
    assert done.returncode == 0, done.stderr
    run = {folder: mpitrain.open(tmp_path / folder) for folder in ("plain", "whole", "parted")}
    assert run["parted"].weights_sha256 == run["whole"].weights_sha256 != run["plain"].weights_sha256
    assert run["parted"].config.training.average.decay == DECAY
    newest = load_checkpoint((tmp_path / "whole" / "checkpoints" / "latest").resolve()).tensors
    averages = [name for name in newest if name.startswith("average.") and not name.endswith(STEPS)]
    exported = load_file(tmp_path / "whole" / "model.safetensors")
    assert len(averages) >= 4
    assert all(np.array_equal(host_array(newest[name]), exported[name.removeprefix("average.")]) for name in averages)
    done = train(1, tmp_path / "plain", *how, "training.epochs=4", AVERAGE, "--resume")
    assert done.returncode == 2
    assert "training.average" in done.stderr


@pytest.mark.parametrize(
    ("older", "more", "decay"), [
        ("{use_ema: true, ema_decay: 0.99}", (), 0.99), ("{use_ema: true}", (), 0.999),
        ("{use_ema: false, ema_decay: 0.99}", (), None), ("{use_ema: true}", ("training.average=null",), None),
        ("{use_ema: true, ema_decay: 0.9}", ("training.average.decay=0.5",), 0.5),
        ("{average: {decay: 0.9}}", ("training.use_ema=true",), 0.9),
    ],
)  # fmt: skip
def test_the_keys_of_emulators_trainers_ask_for_it(
    tmp_path: Path, older: str, more: tuple[str, ...], decay: float | None
) -> None:  # fmt: skip
    (tmp_path / "older.yaml").write_text(f"training: {older}\n")
    training = load_run_config(tmp_path / "older.yaml", more).config.training
    assert (training.average and training.average.decay) == decay
    assert "average" in training.model_fields_set


def test_members_that_follow_one_another_average_as_if_alone(tmp_path: Path) -> None:
    """The engine of a member takes the next one too; both have the weights of a run of their own."""
    words = [f"data.data_path={write_rows(tmp_path / 'rows.csv')}", *TABLE, "ensemble.members=2"]
    assert main(["ensemble", f"output.model_dir={tmp_path / 'e'}", *words]) == 0
    member = Run(tmp_path / "e" / "members" / "0001")
    assert member.config.training.average.decay == 0.999
    assert main(["reproduce", str(member.path), "--output", str(tmp_path / "again")]) == 0
    with (tmp_path / "e" / "ensemble.csv").open() as file:
        assert member.weights_sha256 in file.read()


def test_a_step_that_float16_leaves_out_is_not_averaged() -> None:
    run = run_alone(AVERAGE, "training.engine=eager", "model.name=mlp", "training.global_batch_size=4")
    run.engine.start_epoch(0)
    scales = iter((4.0, 2.0, 2.0, 2.0))  # the first step overflows
    run.engine._precision.scaler = SimpleNamespace(
        get_scale=lambda: next(scales), step=lambda optimizer: None, update=lambda: None,
        unscale_=lambda optimizer: None, scale=lambda loss: loss, is_enabled=lambda: False,
    )  # fmt: skip
    for step in range(2):
        one_step(run.engine, step, RATE)
    assert float(run.engine.average.values[STEPS][0]) == 1


def test_what_is_told_of_an_epoch_is_of_the_average() -> None:
    """Callbacks at the end of an epoch, such as that of the Jacobian, find it in the model."""
    run = run_alone(AVERAGE, "training.epochs=2", "model.name=mlp", "training.global_batch_size=8")
    seen: list[np.ndarray] = []
    on_epoch = run.on_epoch
    run.on_epoch = lambda *arguments: (seen.append(run.parameters().numpy()), on_epoch(*arguments))  # type: ignore[method-assign,assignment,func-returns-value]
    run.fit()
    np.testing.assert_array_equal(seen[-1], flat_average(run).astype(seen[-1].dtype))


TABLE = [
    "variables.input_variables=[a, b]",
    "variables.output_variables=[y]",
    "training.epochs=4",
    "model.hidden_size=8",
]


def write_rows(path: Path) -> Path:
    a, b = np.random.default_rng(5).normal(size=(2, 300))
    np.savetxt(path, np.stack([a, b, np.sin(a) * b], axis=1), delimiter=",", header="a,b,y", comments="")
    return path


def test_a_table_has_it_by_default_and_a_run_of_before_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """Of before: neither config.yaml nor checkpoint tell of it; resumed by its folder, and by a user's own file."""
    words = [f"data.data_path={write_rows(tmp_path / 'rows.csv')}", *TABLE]
    new, whole = Run(tmp_path / "new"), Run(tmp_path / "whole")
    assert main(["train", f"output.model_dir={new.path}", *words]) == 0
    assert new.config.training.average.decay == 0.999
    assert "training.average={decay: 0.999}" in capsys.readouterr().err
    assert main(["train", f"output.model_dir={whole.path}", *words, "training.average=null"]) == 0
    assert whole.weights_sha256 != new.weights_sha256
    (tmp_path / "run.yaml").write_text(
        f"data: {{data_path: {tmp_path / 'rows.csv'}}}\nmodel: {{hidden_size: 8}}\ntraining: {{epochs: 4}}\n"
        "variables: {input_variables: [a, b], output_variables: [y]}\n"
    )
    settings_of = prepare.checkpoint_settings
    for asked in ([], [str(tmp_path / "run.yaml")]):
        older = Run(tmp_path / f"older{len(asked)}")
        here = f"output.model_dir={older.path}"
        with monkeypatch.context() as before:
            before.setattr(
                prepare, "checkpoint_settings",
                lambda *some, **named: {
                    key: value for key, value in settings_of(*some, **named).items() if key != AVERAGE_KEY
                },
            )  # fmt: skip
            assert main(["train", here, *words, "training.average=null", "training.max_steps=9"]) == 5
        path = older.path / "config.yaml"
        path.write_text(path.read_text().replace("  average: null\n", ""))
        assert "average" not in path.read_text()
        assert main(["train", *asked, here, "training.max_steps=null", "--resume"]) == 0
        assert older.config.training.average is None
        assert older.weights_sha256 == whole.weights_sha256
