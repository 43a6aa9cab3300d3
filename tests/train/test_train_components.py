"""Optimisers, losses and schedules of torch, of libraries and of users, by name: trained, resumed, named, refused."""

from __future__ import annotations

import importlib
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from conftest import train
from many_runs import run_many
from played_runs import MLP, fitted_hashes, run_alone

from mpitrain.cli.main import main
from mpitrain.config import RunConfig, load_run_config
from mpitrain.errors import ConfigError, StoppedError, TrainingError
from mpitrain.train.torchs_own import is_torch_class

OF_USERS = Path(__file__).parents[1] / "components"
SIGN = "training.optimizer={type: my_optimizer:SignDescent, learning_rate: 0.002, options: {decay: 0.8}}"
RMSPROP = "training.optimizer={type: torch.optim:RMSprop, options: {alpha: 0.9, momentum: 0.5}}"
NADAM = "training.optimizer.type=torch.optim:NAdam"
SMOOTH_L1 = "training.loss_function={type: torch.nn:SmoothL1Loss, options: {beta: 0.3}}"
LOG_COSH = "training.loss_function={type: my_loss:log_cosh, options: {scale: 0.5}}"
NETWORK = "model={name: my_network:Shortcut, options: {width: 5}}"
READER = "data.reader={type: my_reader:read_fields, options: {missing: -1.0}}"
TRACKER = "tracking.tracker={type: my_tracker:Lines, options: {name: told.txt}}"
RESTARTS = "training.scheduler={type: torch.optim.lr_scheduler:CosineAnnealingWarmRestarts, options: {T_0: 2}}"
ROOT = "training.scheduler={type: my_schedule:inverse_root, warmup_epochs: 1, options: {after: 1}}"
BY_NAME = {
    "user's optimiser": (SIGN,),
    "user's loss": (LOG_COSH,),
    "user's schedule": (ROOT,),
    "RMSprop": (RMSPROP,),
    "typed": (
        "training.optimizer={type: my_typed:Damped, options: {damping: 0.2}}",
        "training.loss_function=my_typed:Quartic",
    ),
    "user's network": (
        "model.name=my_network:Shortcut",
        "model.hidden_layers=1",
        "model.hidden_size=16",
        "model.hidden_activation=null",
        "model.options={width: 5}",
    ),
    "typed network": (
        "model.name=my_typed:Chain",
        "model.hidden_layers=1",
        "model.hidden_activation=null",
        "model.options={width: 6}",
    ),
    "NAdam, SmoothL1Loss, warm restarts": (NADAM, SMOOTH_L1, RESTARTS),
}


@pytest.fixture(autouse=True)
def _modules_of_users(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(OF_USERS)
    yield
    for name in (
        "my_optimizer",
        "my_loss",
        "my_schedule",
        "my_failures",
        "my_typed",
        "my_network",
        "my_reader",
        "my_tracker",
    ):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("settings", BY_NAME.values(), ids=BY_NAME)
def test_any_component_gives_one_hash_on_any_number_of_ranks(settings: tuple[str, ...]) -> None:
    whole = (*MLP, "training.epochs=4")
    alone = fitted_hashes(1, *whole, *settings)
    assert fitted_hashes(3, *whole, *settings) == alone * 3
    assert fitted_hashes(1, *whole) != alone, "the settings change nothing"


@pytest.mark.parametrize("settings", BY_NAME.values(), ids=BY_NAME)
def test_any_component_is_resumed_to_the_same_bits(settings: tuple[str, ...]) -> None:
    whole = run_alone(*MLP, *settings, "training.epochs=4").fit()
    first = run_alone(*MLP, *settings, "training.epochs=4", "training.save_interval=1")
    with pytest.raises(StoppedError, match="stopped by training"):
        run_alone_until(first, 6).fit()
    resumed = run_alone(*MLP, *settings, "training.epochs=4")
    resumed.trainer.resume(first.checkpoint)
    resumed.fit()
    assert resumed.rates == whole.rates[-len(resumed.rates) :]
    assert resumed.sha256() == whole.sha256()


def run_alone_until(run, max_steps: int):
    training = run.config.training.model_copy(update={"max_steps": max_steps})
    run.trainer._training = training
    return run


def test_an_optimiser_of_torch_is_torchs_own() -> None:
    config = load_run_config(None, [RMSPROP, "training.optimizer.learning_rate=0.01"]).config
    ours, theirs = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    found = config.training.optimizer.build([ours])
    expected = torch.optim.RMSprop([theirs], 0.01, 0.9, momentum=0.5)
    assert type(found) is torch.optim.RMSprop
    for step in range(5):
        for optimizer, parameter in ((found, ours), (expected, theirs)):
            parameter.grad = torch.tensor([1.0, -2.0, 0.5]) / (step + 1)
            optimizer.step()
    assert torch.equal(ours, theirs)


def test_a_schedule_of_torch_gives_its_rates() -> None:
    run = run_alone(*MLP, RESTARTS, "training.epochs=5", "training.optimizer.learning_rate=0.1").fit()
    optimizer = torch.optim.SGD([torch.zeros(1)], 0.1)
    theirs = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)
    expected = []
    for _ in range(5):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        theirs.step()
    assert run.rates == expected


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        (
            "model={name: my_network:Shortcut, options: {widht: 5}}",
            "model.name=my_network:Shortcut: has no option 'widht'; did you mean 'width'?",
        ),
        ("model={name: my_typed:Chain, options: {zeta: 5}}", "has no option 'zeta'; its options are"),
        ("model={name: my_typed:Chain, options: {width: 0}}", "width=0: input should be greater than or equal to 1"),
        ("optimizer={type: torch.optim:LBFGS}", "training.optimizer.type=torch.optim:LBFGS: its step needs a closure"),
        (
            "optimizer={type: torch.optim:RMSprop, options: {alhpa: 1}}",
            "has no option 'alhpa'; did you mean 'alpha'? its options are alpha, eps",
        ),
        (
            "optimizer={type: my_optimizer:SignDescent, options: {zeta: 1}}",
            "has no option 'zeta'; its options are decay",
        ),
        (
            "optimizer={type: torch.optim:RMSprop, options: {lr: 1}}",
            "'lr' is passed by mpitrain itself; remove it from",
        ),
        ("optimizer={type: torch.optim:RMSprop, options: {foreach: true}}", "'foreach' is passed by mpitrain itself"),
        ("loss_function={type: my_loss:log_cosh, options: {zeta: 1}}", "has no option 'zeta'; its options are scale"),
        ("loss_function={type: my_loss:log_cosh, options: {targets: 1}}", "'targets' is passed by mpitrain itself"),
        (
            "scheduler={type: my_schedule:inverse_root, options: {zeta: 1}}",
            "has no option 'zeta'; its options are after",
        ),
        ("optimizer={type: torch.nn:Linear}", "is not a subclass of torch.optim.Optimizer"),
        ("optimizer={type: torch.optim:Lion}", "training.optimizer.type=torch.optim:Lion: torch.optim has no 'Lion'"),
        ("optimizer={type: no_such:Thing}", "no_such cannot be imported (ModuleNotFoundError"),
        (
            "loss_function=my_failures:mean_of_all",
            "returns () for outputs of shape (3, 2); return the loss of each element",
        ),
        ("loss_function=my_failures:centred", "returns a loss of a sample that depends on the other samples"),
        ("loss_function={type: my_loss:log_cosh, options: {scal: 1}}", "has no option 'scal'; did you mean 'scale'?"),
        (
            "scheduler=torch.optim.lr_scheduler:CosineAnnealingWarmRestarts",
            "CosineAnnealingWarmRestarts: has no default for T_0; give options: {T_0: VALUE}; its options are T_0, T_",
        ),
        ("optimizer=my_failures:NeedsDecay", "has no default for decay; give options: {decay: VALUE}"),
        ("loss_function=my_typed:Needy", "has no default for power; give options: {power: VALUE}"),
        ("scheduler=torch.optim.lr_scheduler:ReduceLROnPlateau", "use training.scheduler.type=plateau"),
        (
            "scheduler={type: torch.optim.lr_scheduler:OneCycleLR, options: {max_lr: 1, total_steps: 9}}",
            "changes the momentum, which must stay constant",
        ),
        ("scheduler={type: my_schedule:inverse_root, options: {befor: 1}}", "has no option 'befor'"),
    ],
)
def test_what_cannot_serve_says_why(setting: str, line: str) -> None:
    config = load_run_config(None, [setting if "model=" in setting else f"training.{setting}"]).config
    with pytest.raises(ConfigError) as refused:
        config.check_code()
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("setting", "line"),
    [
        ("optimizer.moment=1", "unknown key; adam has learning_rate, weight_decay, beta1, beta2, epsilon"),
        ("optimizer={type: sgd, momentun: 0.5}", "unknown key; did you mean 'training.optimizer.momentum'?"),
        (
            "optimizer={type: lion}",
            "type=lion: not allowed; give one of adam, adamw, sgd, or a library's or your own",
        ),
        (
            "optimizer={type: torch.optim:RMSprop, alpha: 0.5}",
            "unknown key; torch.optim:RMSprop has learning_rate, options",
        ),
        ("optimizer={type: sgd, beta1: 2}", "beta1=2: not allowed; give a number, at least 0 and below 1"),
        ("loss_function={type: mse, delta: 1}", "unknown key; mse has no options"),
        (
            "engine=compiled training.optimizer.type=torch.optim:NAdam",
            "training.optimizer.type=torch.optim:NAdam has no",
        ),
    ],
)
def test_a_wrong_option_is_one_line_with_the_component_s_own(setting: str, line: str) -> None:
    words = f"training.{setting}"
    settings = [words] if "{" in words else words.split()
    with pytest.raises(ConfigError) as refused:
        run_alone(*MLP, *settings)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_config_explain_shows_the_options_of_named_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(
        "model: {name: my_network:Shortcut, options: {width: 5}}\n"
        "data: {reader: my_reader:read_fields}\ntracking: {tracker: my_tracker:Lines}\n"
        "training: {optimizer: {type: my_optimizer:SignDescent}, loss_function: my_loss:log_cosh,\n"
        "  scheduler: {type: my_schedule:inverse_root}}\n"
    )
    assert main(["config", "explain", str(path), "training.optimizer={type: my_typed:Damped}", "seed"]) == 0
    paragraphs = capsys.readouterr().out.split("\n\n")
    for found in (
        "model.name=my_network:Shortcut\n  outputs = direct(inputs) + second(tanh(first(inputs))).",
        "model.options.width\n  Default: 8. Here: 5.",
        "data.reader.options.missing\n  Default: -999.0.",
        "training.optimizer.options.damping\n  Fraction of the weights that a step takes off.\n"
        "  Allowed: a number, above 0. Default: 0.1.",
        "training.loss_function.options.scale\n  Default: 1.0.",
        "training.scheduler.options.after\n  Default: 2.",
        "tracking.tracker.options.name\n  Default: 'lines.txt'.",
    ):
        assert found in paragraphs
    assert len(paragraphs) == 13
    assert paragraphs[-1].startswith("seed\n")
    assert main(["config", "explain", str(path)]) == 0
    text = capsys.readouterr().out
    assert "training.scheduler.type\n  Which schedule" in text, "what the file gives is explained too"
    assert "training.epochs" not in text
    assert main(["config", "explain", "my_optimizer:SignDescent"]) == 2
    assert "as training.optimizer.type=my_optimizer:SignDescent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("setting", "paragraph"),
    [
        (RESTARTS.replace("T_0: 2", ""), "training.scheduler.options.T_0\n  Required."),
        (
            "training.loss_function=my_typed:Needy",
            "  Exponent of the error.\n  Allowed: a number, above 0. Required.",
        ),
        (
            SMOOTH_L1,
            "=torch.nn:SmoothL1Loss\n  Creates a criterion that uses a squared term if the absolute element-wise",
        ),
    ],
)
def test_config_explain_shows_options_that_must_be_given(
    setting: str, paragraph: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "explain", setting]) == 0
    assert paragraph in capsys.readouterr().out


def test_an_optimiser_may_name_its_parameters_as_it_likes() -> None:
    setting = "training.optimizer={type: my_failures:NeedsDecay, options: {decay: 0.1}}"
    optimizer = load_run_config(None, [setting]).config.training.optimizer
    optimizer.check()
    assert type(optimizer.build([torch.ones(2, requires_grad=True)])).__name__ == "NeedsDecay"


def test_the_code_of_a_run_is_named_by_its_settings() -> None:
    config = load_run_config(None, [SIGN, LOG_COSH, ROOT, "model.name=networks_of_users:Residual"]).config
    assert config.code_names == {
        "training.optimizer.type": "my_optimizer:SignDescent",
        "training.loss_function": "my_loss:log_cosh",
        "training.scheduler.type": "my_schedule:inverse_root",
        "model.name": "networks_of_users:Residual",
    }
    assert "my_optimizer" not in sys.modules, "reading settings must not run code"
    assert RunConfig().code_names == {}


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        ("torch.optim:RMSprop", True),
        ("torch.optim.lr_scheduler:StepLR", True),
        ("torch.nn:SmoothL1Loss", True),
        ("torch.nn:Linear", False),
        ("torch.hub:load", False),
        ("torch_like:Mine", False),
        ("my_optimizer:SignDescent", False),
        ("my_failures:FailsLater", False),
    ],
)
def test_torchs_own_classes_are_told_by_where_they_are_defined(name: str, is_own: bool) -> None:
    importlib.import_module("my_failures")  # its class is in a module that is loaded
    assert is_torch_class(name) is is_own


def test_a_class_that_hides_in_torchs_modules_is_not_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hidden(torch.optim.SGD):
        pass

    monkeypatch.setattr(torch.optim, "Hidden", Hidden, raising=False)
    assert not is_torch_class("torch.optim:Hidden")


def test_settings_with_components_read_back_equal() -> None:
    config = load_run_config(None, [SIGN, SMOOTH_L1, ROOT]).config
    assert RunConfig.model_validate(json.loads(json.dumps(config.model_dump(mode="json")))) == config


def test_the_engine_says_why_it_is_not_the_compiled_one() -> None:
    choice = run_alone(*MLP, NADAM).parts.choice
    assert choice.name == "eager"
    assert choice.description == "eager (training.optimizer.type=torch.optim:NAdam has no compiled kernel)"
    choice = run_alone(*MLP, SMOOTH_L1).parts.choice
    assert choice.description == "traced (training.loss_function=torch.nn:SmoothL1Loss has no compiled kernel)"


def test_an_optimiser_that_fails_in_a_step_is_a_training_error() -> None:
    run = run_alone(*MLP, "training.optimizer.type=my_failures:FailsLater", "training.epochs=99")
    with pytest.raises(TrainingError) as failed:
        run.fit()
    assert str(failed.value) == (
        "training.optimizer.type=my_failures:FailsLater: failed in a step (RuntimeError: the 50th step) at "
        "my_failures.py:24; correct it, then continue with --resume"
    )


def write_fields(path: Path) -> Path:
    """Write a file of the format that my_reader reads: 3 times, 8 rows, 9 columns; some values are missing."""
    draw = random.Random(1)
    fields = {name: [draw.gauss(5, 2) for _ in range(216)] for name in ("sst", "wind", "flux")}
    fields["wind"][7::20] = [-1.0] * 11
    path.write_text("".join(f"{name} K 3 8 9\n{' '.join(map(str, one))}\n" for name, one in fields.items()))
    return path


def test_components_of_users_in_whole_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(OF_USERS)  # where a user's own modules are
    names = ("variables.input_variables=[sst, wind]", "variables.output_variables=[flux]")
    data = (f"data.data_path={write_fields(tmp_path / 'a.fields')}", READER, *names, "training.global_batch_size=32")
    whole = ("train", *data, NETWORK, SIGN, LOG_COSH, ROOT, TRACKER, "training.epochs=4", "training.save_interval=1")
    failing = ("train", *data, "training.epochs=30", "training.save_interval=1")
    hashes = []
    for ranks in (None, 3):
        folder = tmp_path / f"ranks{ranks}"
        run = f"output.model_dir={folder / 'whole'}"
        stopped = f"output.model_dir={folder / 'stopped'}"
        done = run_many(
            folder / "launch",
            ranks,
            [
                [*whole, run],
                [*whole, stopped, "training.max_steps=9"],
                ["train", "--resume", str(folder / "stopped"), "training.max_steps=null"],
                [*failing, f"output.model_dir={folder / 'none'}", "training.optimizer.type=my_failures:FailsInBuild"],
            ],
        )
        codes = [set(outcome.codes) for outcome in done]
        assert codes == [{0}, {5}, {0}, {2}], [outcome.stderr for outcome in done]
        (line,) = done[3].our_lines
        assert "failed (RuntimeError: no such memory) at my_failures.py:10; " in line
        failed = train(ranks, folder / "failed", *failing[1:], "training.optimizer.type=my_failures:FailsLater")
        (line,) = failed.our_lines
        assert failed.returncode == 4, failed.stderr
        assert "failed in a step (RuntimeError: the 50th step)" in line
        assert not (folder / "none" / "checkpoints").exists()
        assert list((folder / "failed" / "checkpoints").glob("step-*"))
        records = [json.loads((folder / name / "run_record.json").read_text()) for name in ("whole", "stopped")]
        hashes += [record["result"]["weights_sha256"] for record in records]
        assert records[0]["code"] == {
            "training.optimizer.type": "my_optimizer:SignDescent",
            "training.loss_function": "my_loss:log_cosh",
            "training.scheduler.type": "my_schedule:inverse_root",
            "model.name": "my_network:Shortcut",
            "data.reader": "my_reader:read_fields",
            "tracking.tracker": "my_tracker:Lines",
        }
        told = (folder / "whole" / "tracking" / "told.txt").read_text().splitlines()
        assert told[0] == "my_optimizer:SignDescent 0"
        assert told[-2].endswith(records[0]["result"]["weights_sha256"])
        assert (len(told), told[-1]) == (7, "finished")
        page = (folder / "whole" / "report.html").read_text()
        assert "my_optimizer:SignDescent minimised my_loss:log_cosh" in page
        assert "on the schedule my_schedule:inverse_root" in page
        assert "The network is your own, my_network:Shortcut" in page
    assert len(set(hashes)) == 1, hashes
