"""Names of files that hold newlines and control characters: each message is one line, with escapes for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from conftest import launch
from many_runs import Outcome, run_many

from mpitrain.config import load_run_config
from mpitrain.config.yaml import quoted
from mpitrain.errors import ConfigError, LaunchError

ODD = "odd\nBROKEN\x1b[31m\r\x07\u202e"
ESCAPED = r"odd\nBROKEN\x1b[31m\r\x07\u202e"
SMALL = ("training.epochs=1", "model.name=mlp", "model.hidden_size=4", "training.engine=eager")


def of(key: str, value: object) -> str:
    """Return a setting: YAML takes control characters as escapes only."""
    return f"{key}={json.dumps(str(value))}"


def commands(folder: Path, history: Path) -> dict[str, list[str]]:
    """Return command lines in which every file and folder has an odd name; later ones read what earlier ones left."""
    data, run, members, out = (folder / f"{what} {ODD}" for what in ("data", "run", "members", "out"))
    config, broken, damaged, none = (
        folder / f"{ODD}{end}" for end in (".yaml", "-broken.yaml", "-damaged.nc", "-none")
    )
    data = data.with_name(f"{data.name}.nc")
    shutil.copy(history, data)
    config.write_text("seed: 1\n")
    broken.write_text("training: [\n")
    damaged.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    out.mkdir()
    train = ["train", str(config), of("data.data_path", data), *SMALL]
    in_run, in_members, in_out = (of("output.model_dir", one) for one in (run, members, out / "run"))
    predict, onto = ["--data", str(data), "--output"], f"{out}/{ODD}"
    return {
        "train": [*train, in_run, of("output.model_file", f"{ODD}.pt")],
        "train again": [*train, in_run],
        "train on nothing": ["train", of("data.data_path", none), *SMALL, in_out],
        "train on damage": ["train", of("data.data_path", damaged), *SMALL, in_out],
        "train by nothing": ["train", f"{none}.yaml", in_out],
        "train by a broken file": ["train", str(broken), in_out],
        "train in a file": [*train, of("output.model_dir", data)],
        "train an odd network": [*train, in_out, of("model.name", f"{none}:x")],
        "train on an odd variable": [*train, in_out, f"variables.input_variables=[{json.dumps(ODD)}]"],
        "resume": ["train", "--resume", str(run), "--epochs", "2"],
        "resume nothing": ["train", "--resume", str(none), "--epochs", "2"],
        "predict": ["predict", str(run), *predict, f"{onto}.nc"],
        "predict by a file": ["predict", str(run / f"{ODD}.pt"), *predict, f"{onto} 2.nc"],
        "predict on damage": ["predict", str(run), "--data", str(damaged), "--output", f"{onto} 3.nc"],
        "predict by nothing": ["predict", str(none), *predict, f"{onto} 4.nc"],
        "predict into a file": ["predict", str(run), *predict, str(data / "x.nc")],
        "export": ["export", str(run), "--output", f"{onto}.pt"],
        "export c": ["export", str(run), "--format", "c", "--output", f"{out}/emulator.c"],
        "export an odd module": ["export", str(run), "--format", "c", "--output", f"{onto}.c"],
        "export nothing": ["export", str(none), "--output", f"{onto} 5.pt"],
        "report": ["report", str(run)],
        "report nothing": ["report", str(none)],
        "crate": ["report", str(run), "--ro-crate"],
        "reproduce": ["reproduce", str(run), "--output", f"{onto} again"],
        "reproduce nothing": ["reproduce", str(none)],
        "ensemble": ["ensemble", *train[1:], "--members", "2", in_members],
        "ensemble again": ["ensemble", *train[1:], "--members", "2", in_members],
        "ensemble on": ["ensemble", "--resume", in_members, "--members", "3"],
        "predict by members": ["predict", str(members), *predict, f"{onto} 6.nc"],
        "inspect": ["data", "inspect", str(data)],
        "inspect damage": ["data", "inspect", str(damaged)],
        "stats": ["data", "stats", str(data)],
        "convert": ["data", "convert", str(data), "--output", f"{onto}.npz"],
        "generate": ["data", "generate", f"{onto} made.nc"],
        "collection": ["data", "collection", f"{onto} collection"],
        "config check": ["config", "check", str(config)],
        "config check of a broken file": ["config", "check", str(broken)],
        "launch": ["launch", "--scheduler", "local", "-n", "2", str(config), f"data.data_path={history}"],
        "launch into an odd file": ["launch", "--scheduler", "slurm", "-n", "2", "--output", str(data / "job.sh")],
        "doctor": ["doctor", "--static", str(config), of("data.data_path", data), in_run],
        "doctor of nothing": ["doctor", "--static", of("data.data_path", none), of("output.model_dir", data)],
        "help": ["help", ODD],
    }  # fmt: skip


ENDS_WELL = {"train", "resume", "predict", "predict by a file", "export", "export c", "report", "crate", "reproduce",
             "ensemble", "ensemble on", "predict by members", "inspect", "stats", "convert", "generate", "collection",
             "config check", "doctor"}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, small_history: Path) -> dict[str, Outcome]:
    folder = tmp_path_factory.mktemp("odd")
    jobs = commands(folder, small_history)
    return dict(zip(jobs, run_many(folder / "logs", None, list(jobs.values())), strict=True))


def assert_whole_lines(text: str) -> None:
    assert all(line.isprintable() for line in text.split("\n")), text
    assert not any(line.strip().startswith("BROKEN") for line in text.split("\n")), text


def test_every_command_escapes_the_names_that_it_prints(outcomes: dict[str, Outcome]) -> None:
    for name, outcome in outcomes.items():
        assert outcome.codes == [0 if name in ENDS_WELL else 2], (name, outcome.stderr)
        assert_whole_lines(outcome.stdout)
        assert_whole_lines(outcome.stderr)
        assert len(outcome.our_lines) == int(name not in ENDS_WELL and "doctor" not in name), (name, outcome.stderr)
    assert f"run {ESCAPED}" in outcomes["train"].stdout, "else no name was printed"


@pytest.mark.parametrize("words", [["train", f"--{ODD}"], ["train", ODD], [ODD]])
def test_odd_words_of_the_command_line_are_one_line(words: list[str]) -> None:
    done = launch(["-m", "mpitrain", *words])
    assert done.returncode == 2
    assert_whole_lines(done.stderr)
    assert len(done.stderr.splitlines()) == 1


def test_an_error_is_one_line_and_a_table_only_where_it_is_given_as_one() -> None:
    assert str(ConfigError(f"{ODD}: no")) == f"{ESCAPED}: no"
    assert str(LaunchError("which?", f"{ODD}  1", "To fix it: x")) == f"which?\n{ESCAPED}  1\nTo fix it: x"


@pytest.mark.parametrize("text", ["a", "it's", 'a "b" \\n', ODD, f"{ODD} \\ \" '", "\x85\u2028", "\U0001f9ca\n"])
def test_a_quoted_text_is_read_back_whatever_it_holds(text: str) -> None:
    assert load_run_config(None, [f"output.model_dir={quoted(text)}"]).config.output.model_dir == text
