"""The table of `older_habits`: each key and flag is given as a user gives it, and its outcome is seen."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from conftest import launch, train
from older_habits import IN_FILES, OF_LAUNCH, OF_RUNS, OF_TRAIN, Names, Outcome, Says, Sets

from mpitrain.cli.main import main
from mpitrain.comm import start
from mpitrain.config import load_run_config
from mpitrain.runs import train_run

OLDER_CONFIGS = Path(__file__).parents[1] / "data" / "older_configs"
# Of the five files: what is spelled otherwise today.
RENAMED = {"use_cuda": "compute.device", "distributed.backend": "compute.backend",
           "distributed.timeout": "distributed.timeout_s"}  # fmt: skip
VALUES = {"use_cuda": "auto", "distributed.backend": "nccl_if_available"}


@pytest.fixture(autouse=True)
def _in_a_folder_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text("seed: 11\n")


def value_at(settings: Any, key: str) -> object:
    for name in key.split("."):
        settings = settings[name]
    return settings


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any, list[str]]:
    """Return code, settings and our lines on stderr of `config show`."""
    code = main(["config", "show", *words])
    output = capsys.readouterr()
    return code, yaml.safe_load(output.out), output.err.splitlines()


@pytest.mark.parametrize(("text", "outcome"), IN_FILES, ids=lambda value: str(value)[:60])
def test_a_key_in_a_file(text: str, outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    Path("given.yaml").write_text(text)
    code, settings, lines = shown(capsys, "given.yaml")
    if isinstance(outcome, Names):
        assert (code, len(lines), settings) == (2, 1, None)
        assert "unknown key; " in lines[0]
        assert outcome.words in lines[0].partition("unknown key; ")[2]
    elif isinstance(outcome, Says):
        assert (code, [line for line in lines if line.startswith(f"note: {outcome.words}")]) == (0, lines)
        assert len(lines) == 1
    else:
        assert code == 0
        assert value_at(settings, outcome.key) == outcome.value


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, tuple[str, ...], Any]]:
    """What `train` would begin with: its settings, its notices, and what else was asked for."""
    requests: list[Any] = []
    for name, value in (("MPITRAIN_STARTING_AFTER_S", "600"), ("TORCH_CPP_LOG_LEVEL", ""), ("KINETO_LOG_LEVEL", "")):
        monkeypatch.setenv(name, value)  # what `train` sets for its own process stays within this test
    monkeypatch.setattr(start, "run_on_all_ranks", lambda body, watch: body(SimpleNamespace()))
    monkeypatch.setattr(train_run, "train", lambda ranks, request: requests.append(request) or 0)

    def begin(*words: str) -> tuple[Any, tuple[str, ...], Any]:
        assert main([*words]) == 0
        loaded = load_run_config(requests[-1].config_path, requests[-1].overrides)
        return loaded.config.model_dump(mode="json"), loaded.notices, requests[-1]

    return begin


@pytest.mark.parametrize(("words", "outcome"), OF_TRAIN, ids=lambda value: str(value)[:60])
def test_a_flag_of_train(words: str, outcome: Outcome, request: pytest.FixtureRequest) -> None:
    if isinstance(outcome, Names):
        check_refused(launch(["-m", "mpitrain", "train", *words.split()]), outcome)
        return
    settings, notices, asked = request.getfixturevalue("training")(*words.split())
    if isinstance(outcome, Says):
        assert [notice for notice in notices if notice.startswith(outcome.words)] == list(notices)
        assert len(notices) == 1
    elif outcome.key.startswith("option "):
        assert str(getattr(asked, outcome.key.removeprefix("option "))) == outcome.value
    else:
        assert value_at(settings, outcome.key) == outcome.value


@pytest.mark.parametrize(("words", "outcome"), OF_LAUNCH, ids=lambda value: str(value)[:60])
def test_a_flag_of_launch(words: str, outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    if isinstance(outcome, Names):
        check_refused(launch(["-m", "mpitrain", "launch", *words.split()]), outcome)
        return
    assert isinstance(outcome, Sets)
    assert main(["launch", "--scheduler", "slurm", *words.split()]) == 0
    assert outcome.key in capsys.readouterr().out.splitlines()


def check_refused(done: Any, outcome: Names) -> None:
    assert (done.returncode, done.stdout, len(done.our_lines)) == (2, "", 1), done.stderr
    assert outcome.words in done.our_lines[0]


@pytest.mark.parametrize("name", sorted(path.stem for path in OLDER_CONFIGS.iterdir() if path.stem != "ffnn_cpp"))
def test_every_key_of_an_older_trainers_file_is_where_its_name_says(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = OLDER_CONFIGS / f"{name}.yaml"
    code, settings, _ = shown(capsys, str(path))
    assert code == 0
    leaves = dict(leaves_of(yaml.load(path.read_text(), yaml.BaseLoader)))
    assert leaves
    for key, text in leaves.items():
        found = value_at(settings, RENAMED.get(key, key))
        assert found == VALUES.get(key, number_or(text)), key


def test_every_key_of_the_cpp_programs_file(capsys: pytest.CaptureFixture[str]) -> None:
    code, settings, lines = shown(capsys, str(OLDER_CONFIGS / "ffnn_cpp.yaml"))
    expected = {
        "semantics": "reference", "model.input_size": 7, "model.output_size": 1, "model.hidden_size": 16,
        "training.epochs": 200, "data.data_path": "cice_history.nc", "output.model_file": "arctic.pt",
        "domain.pole": "north", "domain.clean_data": True,
    }  # fmt: skip
    assert {key: value_at(settings, key) for key in expected} == expected
    assert code == 0
    assert [line for line in lines if line.startswith("note: training.batch size=64: read, not used")]


def leaves_of(tree: Any, above: str = "") -> Any:
    for key, value in tree.items():
        today = "training" if above + key == "train" else above + key
        yield from leaves_of(value, f"{today}.") if isinstance(value, dict) else [(today, value)]


def number_or(text: Any) -> object:
    """Return the value that other trainers' readers make of a scalar; 1e-5 is a number to them all."""
    words = {"true": True, "false": False, "null": None}
    if isinstance(text, list) or text in words:
        return words.get(text, text) if isinstance(text, str) else text
    try:
        return float(text)
    except ValueError:
        return text


@pytest.fixture(scope="module")
def notices_of_a_run(tmp_path_factory: pytest.TempPathFactory, small_history: Path) -> list[str]:
    folder = tmp_path_factory.mktemp("run")
    settings = [word for word, _ in OF_RUNS]
    done = train(
        None, folder / "run", f"data.data_path={small_history}", "training.epochs=1", "training.engine=eager",
        "training.global_batch_size=full", *settings,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize(("words", "outcome"), OF_RUNS, ids=lambda value: str(value)[:60])
def test_what_only_a_run_can_tell(words: str, outcome: Says, notices_of_a_run: list[str]) -> None:
    assert len([line for line in notices_of_a_run if line.startswith(f"note: {outcome.words}")]) == 1
