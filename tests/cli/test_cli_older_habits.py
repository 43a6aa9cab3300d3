"""The tables of `guides` and `older_habits`: each key and flag is given as a user gives it, and its outcome is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from conftest import launch, train
from guides import GUIDES, Names, Outcome, Says, Sets, cases_of
from older_habits import IN_FILES, OF_LAUNCH, OF_OTHER_COMMANDS, OF_RUNS, OF_TRAIN

from mpitrain.cli.main import main
from mpitrain.comm import start
from mpitrain.errors import ConfigError, MpitrainError
from mpitrain.runs import beginning, train_run
from mpitrain.runs.resumed import find_resumed_run

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


@pytest.mark.parametrize(("text", "outcome"), [*cases_of("files"), *IN_FILES], ids=lambda value: str(value)[:60])
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
    monkeypatch.setattr(start, "run_on_all_ranks", lambda body, watch: body(SimpleNamespace(notices=[])))
    monkeypatch.setattr(train_run, "train", lambda ranks, request: requests.append(request) or 0)

    def begin(*words: str) -> tuple[Any, tuple[str, ...], Any]:
        assert main([*words]) == 0
        loaded = beginning.load_requested_settings(replace(requests[-1], resume=False))
        return loaded.config.model_dump(mode="json"), loaded.notices, requests[-1]

    return begin


@pytest.mark.parametrize(("words", "outcome"), [*cases_of("train"), *OF_TRAIN], ids=lambda value: str(value)[:60])
def test_a_flag_of_train(
    words: str, outcome: Outcome, training: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    if isinstance(outcome, Names):
        check_refused(lambda: training(*words.split()), outcome, capsys)
        return
    settings, notices, asked = training(*words.split())
    if isinstance(outcome, Says):
        assert [notice.startswith(outcome.words) for notice in notices] == [True]
    elif outcome.key.startswith("option "):
        assert str(getattr(asked, outcome.key.removeprefix("option "))) == outcome.value
    else:
        assert value_at(settings, outcome.key) == outcome.value


def test_a_time_limit_of_nccl_in_the_environment_is_answered(
    training: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks = SimpleNamespace(notices=[])
    monkeypatch.setattr(start, "run_on_all_ranks", lambda body, watch: body(ranks))
    monkeypatch.setenv("NCCL_TIMEOUT", "1800")
    training("train", "distributed.timeout_s=60")
    assert ranks.notices == []
    training("train")
    assert ranks.notices == ["NCCL_TIMEOUT=1800: not read by a run; set distributed.timeout_s=1800"]


def test_a_debug_run_leaves_the_folder_of_the_run_free(small_history: Path) -> None:
    Path("run.yaml").write_text(f"data: {{data_path: '{small_history}'}}\noutput: {{model_dir: run}}\n")
    for _ in range(2):
        done = launch(["-m", "mpitrain", "train", "run.yaml", "--debug"])
        assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in Path().glob("run*")) == ["run-debug", "run-debug-2", "run.yaml"]


@pytest.mark.parametrize(("words", "outcome"), [*cases_of("launch"), *OF_LAUNCH], ids=lambda value: str(value)[:60])
def test_a_flag_of_launch(words: str, outcome: Outcome, capsys: pytest.CaptureFixture[str]) -> None:
    if isinstance(outcome, Names):
        check_refused(lambda: main(["launch", *words.split()]), outcome, capsys)
        return
    assert isinstance(outcome, Sets)
    assert main(["launch", "--scheduler", "slurm", *words.split()]) == 0
    script = capsys.readouterr().out
    assert outcome.key in (*script.splitlines(), *script.split())


@pytest.mark.parametrize(
    ("words", "outcome"), [*cases_of("commands"), *OF_OTHER_COMMANDS], ids=lambda value: str(value)[:60]
)
def test_a_flag_of_another_command(words: str, outcome: Names, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(words.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert ending.value.code == outcome.code
    assert line.startswith("mpitrain: error: unrecognized arguments: ")
    assert line.partition("; ")[2].startswith(outcome.words)


def check_refused(begin: Callable[[], object], outcome: Names, capsys: pytest.CaptureFixture[str]) -> None:
    """Check that the command line is refused, or the settings that it asks for, in one line."""
    line = ""
    try:
        code = begin()
    except MpitrainError as error:
        code, line = error.exit_code, str(error)
    except SystemExit as ending:
        code = ending.code
    output = capsys.readouterr()
    lines = [line] if line else output.err.splitlines()
    assert (code, output.out, len(lines)) == (outcome.code, "", 1), lines
    assert outcome.words in lines[0]


def test_every_row_of_the_guides_has_cases_and_the_tests_that_it_names_are_there() -> None:
    tests = Path(__file__).parents[1]
    assert len(GUIDES) == 18
    for row in GUIDES:
        assert any(value for name, value in vars(row).items() if name != "users_have"), row
        for file, _, function in (test.partition("::") for test in row.tests):
            assert f"\ndef {function}(" in (tests / file).read_text(), function


def test_a_checkpoint_of_another_trainer_is_no_run() -> None:
    with pytest.raises(
        ConfigError, match=r"is a file; checkpoints of mpitrain .*; give --resume FOLDER of a run, or start"
    ):
        find_resumed_run(Path("model_latest.pt"), ())


def test_own_settings_of_a_debug_job_win(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--scheduler", "slurm", "training.epochs=3", "--debug"]) == 0
    words = [word for word in capsys.readouterr().out.split() if word.startswith("training.epochs=")]
    assert words == ["training.epochs=1", "training.epochs=3"]
    assert main(["launch", "--scheduler", "slurm", "--debug", "--run", "doctor"]) == 0
    assert "training.epochs" not in capsys.readouterr().out


def test_a_refused_flag_ends_the_process_with_one_line() -> None:
    done = launch(["-m", "mpitrain", "train", "--world-size", "4"])
    assert (done.returncode, done.stdout, len(done.our_lines)) == (3, "", 1), done.stderr
    assert done.our_lines[0].startswith("mpitrain: error: --world-size 4: it is 1")


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
    assert [line for line in lines if line.startswith("note: training.batch size=64: ignored, as in the C++ program")]


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
    settings = [word for cases in (*(row.runs for row in GUIDES), OF_RUNS) for word, _ in cases]
    done = train(
        None, folder / "run", f"data.data_path={small_history}", "training.epochs=1",
        "training.global_batch_size=full", *settings,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


@pytest.mark.parametrize(("words", "outcome"), [*cases_of("runs"), *OF_RUNS], ids=lambda value: str(value)[:60])
def test_what_only_a_run_can_tell(words: str, outcome: Says, notices_of_a_run: list[str]) -> None:
    assert len([line for line in notices_of_a_run if line.startswith(f"note: {outcome.words}")]) == 1


def test_scaling_takes_a_data_file_as_training_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scaling", "--data", "none.nc", "--ranks", "1"]) == 2
    assert capsys.readouterr().err.startswith("mpitrain: error: none.nc: no such file; set data.data_path")
