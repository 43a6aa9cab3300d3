"""Commands that read a settings file run none of the code that a stranger's run folder names, but on trust."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import launch

from mpitrain.cli.main import main
from mpitrain.config import load_run_config, render_yaml
from mpitrain.train.folder.known_code import remember_code

CODE = """
import numpy as np
import torch
open("trace", "w").close()

def make(*sizes):
    return torch.nn.Linear(*sizes)

def read(path):
    return {"a": np.arange(40.0), "b": 2 * np.arange(40.0)}

def rate(epoch, num_epochs):
    return 1.0
"""
NET, READER, SCHEDULE = "model.name=foreign:make", "data.reader=foreign:read", "training.scheduler.type=foreign:rate"
BENCH = ("bench", "scaling", "--ranks", "1", "--rounds", "1", "--steps", "2", "--warm-up", "2", "--longest", "0.1")
COLLECTION = "{output: c.nc, samples: 500, inputs: [{name: a, units: m}], targets: [{name: b, units: m}]}"
COMMANDS = {
    "config check": (("config", "check"), NET),
    "config explain": (("config", "explain"), NET),
    "bench scaling": (BENCH, READER),
    "data inspect": (("data", "inspect"), READER),
    "data stats": (("data", "stats"), READER),
    "data convert": (("data", "convert", "--output", "out.npz"), READER),
    "doctor": (("doctor", "--static"), READER),
    "verify": (("verify", "--ranks", "1"), NET),
    "verify --invariance": (("verify", "--invariance", "--ranks", "1"), NET),
    "export": (("export", "--format", "trainer", "--collection", "collect.yaml", "--output", "t.cpp"), SCHEDULE),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a module, a data file, and an empty record of what is known."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "foreign", raising=False)
    (tmp_path / "foreign.py").write_text(CODE)
    (tmp_path / "rows.own").write_text("1")
    (tmp_path / "collect.yaml").write_text(COLLECTION)
    return tmp_path


def settings_in(folder: Path, code: str) -> Path:
    names = ("variables.input_variables=[a]", "variables.output_variables=[b]", "data.data_path=rows.own")
    config = load_run_config(None, [code, *names, "output.model_dir=run", "training.epochs=1"]).config
    folder.mkdir()
    (folder / "config.yaml").write_text(render_yaml(config))
    return folder / "config.yaml"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_code_of_a_run_folder_is_not_run(here: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (*words,), code = COMMANDS[name]
    file = settings_in(here / "run", code)
    if name == "doctor":  # whose agent watches the process that it is run in
        done = launch(["-m", "mpitrain", *words, str(file)], None, here)
        returned, out, err = done.returncode, done.stdout, done.stderr
    else:
        returned = main([*words, str(file)])
        out, err = capsys.readouterr()
    assert returned == 2
    assert (out + err).count(f"{code} names code, which would be run") == 1
    assert "give --trust-code if you trust its source" in out + err
    assert not (here / "trace").exists()


@pytest.mark.parametrize("beside", ["model.pt", "metrics.jsonl", "ensemble.json"])
def test_nor_that_of_a_folder_with_a_result_alone(here: Path, capsys: pytest.CaptureFixture[str], beside: str) -> None:
    file = settings_in(here / "slim", NET)
    (here / "slim" / beside).touch()
    assert main(["config", "check", str(file)]) == 2
    assert "give --trust-code if you trust its source" in capsys.readouterr().err
    assert not (here / "trace").exists()


@pytest.mark.parametrize(
    ("name", "because"),
    [
        *(
            (name, "trust")
            for name in ("config check", "config explain", "data inspect", "data stats", "bench scaling")
        ),
        *((name, "trained") for name in ("config check", "data stats")),
        ("data inspect", "a file of the user"),
    ],
)
def test_it_is_where_it_is_known(here: Path, name: str, because: str) -> None:
    (*words,), code = COMMANDS[name]
    file = settings_in(here / ("other" if because == "a file of the user" else "run"), code)
    if because == "trained":
        remember_code([file], ["foreign:make"])
    assert main([*words, str(file), *(["--trust-code"] if because == "trust" else [])]) == 0
    assert (here / "trace").exists()
