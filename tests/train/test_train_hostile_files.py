"""Hostile archives given to the public commands, as data, weights, model, in a run folder and as a checkpoint.

Nothing runs, nothing is written, one line says what is wrong, exit code 2.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import launch, train
from hostile_archives import HOSTILE, POISONED, Place, as_data
from many_runs import Outcome, run_many

Outcomes = dict[tuple[str, str], Outcome]
USES = ("data", "weights", "model", "folder", "checkpoint", "resume")
# These numbers are sound, and are taken without a look at the code beside them.
SOUND_WEIGHTS = {
    *("forward writes", "a part's __setstate__ writes", "escape sequences in names"),
    # What a file says about its network is nothing to a network that takes the numbers alone.
    *(name for name in HOSTILE if name.startswith("a record ") and "larger" not in name),
}
OWN_CODE = """
from pathlib import Path
from torch import nn
Path("TRACE").touch()
class Net(nn.Linear): pass
"""


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, small_history: Path) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    assert train(None, folder, f"data.data_path={small_history}", "training.epochs=1").returncode == 0
    return folder


def command(use: str, path: Path, run: Path, history: Path) -> list[str]:
    """The arguments that give a file to the package, in a folder of its own."""
    folder = path.parent
    training = ["train", f"output.model_dir={folder / 'run'}", "training.epochs=1"]
    if use == "data":
        as_data(path)
        return [*training, f"data.data_path={path}"]
    if use == "weights":
        return [*training, f"data.data_path={history}", f"model.initial_weights={path}"]
    if use == "model":
        return ["predict", str(path), "--data", str(history), "--output", str(folder / "p.nc")]
    planted = shutil.copytree(run, folder / "planted")
    if use == "folder":
        shutil.copy(path, planted / "model.pt")
        (planted / "model.safetensors").unlink()  # as in the folder of a run before there was one
        return ["predict", str(planted), "--output", str(folder / "p.nc")]
    for file in (planted / "checkpoints").rglob("*.safetensors"):
        shutil.copy(path, file)
    if use == "checkpoint":
        return ["export", str(planted), "--output", str(folder / "m.pt")]
    return ["train", "--resume", f"output.model_dir={planted}", "training.epochs=2"]


@pytest.fixture(scope="module")
def outcomes(run: Path, small_history: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    folder, jobs, before = tmp_path_factory.mktemp("hostile"), {}, {}
    for number, (name, write) in enumerate({**HOSTILE, **POISONED}.items()):
        for use in USES:
            own = folder / f"{number}-{use}"
            own.mkdir()
            place = Place(own / "x.pt", folder / f"trace of {name} as {use}".replace("/", "_").replace(" ", "_"))
            write(place)
            jobs[name, use] = command(use, place.path, run, small_history)
            before[own] = files_in(own)
    found = dict(zip(jobs, run_many(folder / "logs", None, list(jobs.values())), strict=True))
    assert list(folder.glob("trace*")) == []
    left = {path.name: files_in(path) - files for path, files in before.items()}
    for (name, use), path in zip(jobs, before, strict=True):
        if found[name, use].codes == [2]:
            assert not {file for file in left[path.name] if not file.startswith(("run", "planted/logs"))}, (name, use)
            assert not any(file.endswith((".pt", ".nc", ".py")) for file in left[path.name]), (name, use)
    return found


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", [*HOSTILE, *POISONED])
def test_nothing_runs_and_one_line_says_why(outcomes: Outcomes, name: str, use: str) -> None:
    found = outcomes[name, use]
    is_sound = name in POISONED and use in ("weights", "model", "folder")
    assert "\x1b" not in found.stdout + found.stderr
    if is_sound or (use == "weights" and name in SOUND_WEIGHTS) or (use == "folder" and "in names" in name):
        assert found.codes == [0], found.stderr
        return
    assert found.codes == [2], found.stderr
    assert len(found.our_lines) == 1
    assert found.stderr.rstrip("\n").isprintable(), "one line, without escape sequences"
    assert found.our_lines[0].startswith("mpitrain: error: ")


def test_a_model_of_another_program_runs_on_trust_only(tmp_path: Path, small_history: Path) -> None:
    place = Place(tmp_path / "x.pt", tmp_path / "trace")
    HOSTILE["forward writes"](place)
    given = ["-m", "mpitrain", *command("model", place.path, tmp_path, small_history)]
    done = launch(given, cwd=tmp_path)
    assert done.returncode == 2
    assert done.our_lines == [
        f"mpitrain: error: {place.path}: holds a network as code of its own, which would be run; give --trust-code if "
        "you trust its source"
    ]
    assert not place.trace.exists()
    done = launch([*given, "--trust-code"], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert place.trace.exists(), "else the archive is not hostile, and the tests above say nothing"


@pytest.mark.parametrize("words", [["predict", "--output", "p.nc"], ["export", "--output", "m.pt"], ["report"]])
def test_a_planted_config_that_names_code_runs_on_trust_only(run: Path, tmp_path: Path, words: list[str]) -> None:
    planted = shutil.copytree(run, tmp_path / "planted")
    settings = planted / "config.yaml"
    text = settings.read_text().replace("model:\n  name: null\n", "model:\n  name: innocent:Net\n")
    settings.write_text(text)
    assert "innocent" in text
    (tmp_path / "innocent.py").write_text(OWN_CODE.replace("TRACE", str(tmp_path / "trace")))
    given = ["-m", "mpitrain", words[0], str(planted), *words[1:]]
    done = launch(given, cwd=tmp_path)
    assert done.returncode == 2
    assert done.our_lines == [
        f"mpitrain: error: {settings}: model.name=innocent:Net names code, which would be run; give --trust-code if "
        "you trust its source"
    ]
    assert not (tmp_path / "trace").exists()
    assert not (tmp_path / words[-1]).exists()
    launch([*given, "--trust-code"], cwd=tmp_path)
    # predict reads model.pt, a network of ours, and needs no module; the others build the network that is named.
    assert (tmp_path / "trace").exists() == (words[0] != "predict")
