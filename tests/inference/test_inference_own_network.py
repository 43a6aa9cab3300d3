"""What trains can be used: a network of the user's own predicts where that user has trained it, elsewhere on trust."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import netCDF4
import numpy as np
import pytest
from conftest import launch

import mpitrain
from mpitrain.errors import UserError
from mpitrain.models.files import own_file
from mpitrain.train import trusts_code_of
from mpitrain.train.folder.known_code import distrust_reason, remember_code

NET = """import torch

class Net(torch.nn.Module):
    def __init__(self, inputs, outputs, width=8):
        super().__init__()
        self.cell = torch.nn.GRUCell(inputs, width)
        self.last = torch.nn.Linear(width, outputs)

    def forward(self, x):
        return self.last(self.cell(x))
"""
A, Z = np.random.default_rng(13).normal(size=(2, 200))
NAMES = (
    "variables.input_variables=[a, z]",
    "variables.output_variables=[b]",
    "model.name=mine:Net",
    "training.epochs=2",
)
REFUSED = "model.name=mine:Net names code, which would be run; give --trust-code"


def say(here: Path, *words: str, code: int = 0, ranks: int | None = None) -> str:
    done = launch(["-P", "-m", "mpitrain", *words], ranks, here)  # as the command mpitrain: without the directory
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr.strip().splitlines()[-1]


def predict(here: Path, what: str | Path, *words: str, code: int = 0) -> str:
    return say(here, "predict", str(what), "--data", "rows.csv", "--output", "p.nc", "--overwrite", *words, code=code)


def predicted(here: Path) -> np.ndarray:
    with netCDF4.Dataset(here / "p.nc") as file:
        return np.asarray(file["b_predicted"][:])


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with rows, a network, and a run and an ensemble of it."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(NET)
    np.savetxt(folder / "rows.csv", np.stack([A, Z, 2 * A - Z], axis=1), delimiter=",", header="a,z,b", comments="")
    said = say(folder, "--data", "rows.csv", "--output", "run", *NAMES)
    assert "trust" not in said
    said = say(folder, "ensemble", "--data", "rows.csv", "--output", "folds", *NAMES, "ensemble.folds=2", ranks=2)
    assert "over samples that 2 folds of 2 held out" in said
    return folder


def test_where_it_was_trained_it_is_used_without_a_flag(here: Path) -> None:
    assert "held out for validation" in predict(here, "run")
    without = predicted(here)
    predict(here, "run", "--trust-code")
    np.testing.assert_array_equal(predicted(here), without)
    for words in (["run/model.safetensors"], ["run/model.pt", "--trust-code"]):
        predict(here, *words)
        np.testing.assert_allclose(predicted(here), without, rtol=1e-6)
    predict(here, "folds")
    say(here, "report", "run")
    say(here, "report", "folds/members/0001")
    say(here, "export", "run", "--output", "net.pt", "--overwrite")
    say(here, "train", "--resume", "run", "--epochs", "3")
    predict(here, "run")
    say(here, "ensemble", "--resume", "--output", "folds")
    assert mpitrain.open(here / "folds").skill["b"]["rmse"] > 0


def test_a_copy_needs_a_flag_whose_words_go(here: Path, tmp_path: Path) -> None:
    shutil.copytree(here / "run", tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    assert REFUSED in predict(here, tmp_path / "copy", code=2)
    predict(here, tmp_path / "copy", "--trust-code")
    line = predict(here, tmp_path / "copy" / "model.safetensors", code=2)
    assert "holds the weights of mine:Net, which is code that would be run; give --trust-code" in line
    assert "give --trust-code" in say(here, "report", str(tmp_path / "copy"), code=2)
    say(here, "report", str(tmp_path / "copy"), "--trust-code")
    assert REFUSED in predict(here, tmp_path / "copy", code=2), "consent to one command is not kept"


def test_training_on_trust_is_not_kept(here: Path, tmp_path: Path) -> None:
    shutil.copytree(here / "run", tmp_path / "copy")
    assert REFUSED in say(here, "train", "--resume", str(tmp_path / "copy"), "--epochs", "9", code=2)
    said = say(here, "train", "--resume", str(tmp_path / "copy"), "--epochs", "9", "--trust-code")
    assert "--resume --trust-code" in said
    assert REFUSED in predict(here, tmp_path / "copy", code=2)


def test_whatever_has_changed_is_a_strangers(here: Path) -> None:
    module, config, shadow = here / "mine.py", here / "run" / "config.yaml", here / "mine"
    other = config.read_text().replace("seed: 0", "seed: 1", 1)
    for path, text, name in ((module, NET + "# changed", "mine"), (config, other, "config.yaml")):
        kept = path.read_text()
        path.write_text(text)
        assert f" (you have trained it, and {name} has changed since)" in predict(here, "run", code=2)
        path.write_text(kept)
    shadow.mkdir()
    (shadow / "__init__.py").write_text(NET)  # is found before mine.py
    assert REFUSED in predict(here, "run", code=2)
    shutil.rmtree(shadow)
    predict(here, "run")


def test_a_run_that_goes_on_with_changed_code_says_so(here: Path, tmp_path: Path) -> None:
    for name in ("rows.csv", "mine.py"):
        shutil.copy(here / name, tmp_path)
    say(tmp_path, "--data", "rows.csv", "--output", "run", *NAMES)
    (tmp_path / "run.yaml").write_text((tmp_path / "run" / "config.yaml").read_text())
    words = ["-P", "-m", "mpitrain", "train", "run.yaml", "--resume", "--epochs"]
    said = "note: run/config.yaml: you have trained it, and mine has changed since; the run continues with the present "
    assert said not in launch([*words, "3"], None, tmp_path).stderr
    (tmp_path / "mine.py").write_text(NET.replace("self.last(", "-self.last("))
    done = launch([*words, "4"], 2, tmp_path)
    assert done.stderr.count(said) == 1, done.stderr
    assert done.returncode == 0


def plant(here: Path, source: Path, file: Path) -> None:
    """Write the numbers of a run as those of other code, which says that it has run."""
    (here / "evil.py").write_text(NET + "\nraise SystemExit('ran')\n")
    texts, tensors = own_file._read(source)
    texts["network"] = texts["network"].replace("mine:Net", "evil:Net")
    texts["sha256"] = own_file._digest_of(tensors, {key: text for key, text in texts.items() if key != "sha256"})
    file.write_bytes(own_file.to_safetensors(tensors, texts))


def test_a_model_that_is_planted_into_an_ensemble_is_not_run(here: Path) -> None:
    file = here / "folds" / "members" / "0001" / "model.safetensors"
    plant(here, here / "run" / "model.safetensors", file)
    try:
        assert REFUSED in predict(here, "folds", code=2)
        for left in ("ensemble.json", "model.pt"):  # as of an ensemble that was not finished
            (here / "folds" / left).unlink()
        said = launch(["-P", "-m", "mpitrain", "ensemble", "--resume", "--output", "folds"], 2, here)
        assert "Skill" not in said.stdout
        assert said.stderr.count("skill and model left out: ") == 1
        assert "give --resume --trust-code if you trust them" in said.stderr
        assert REFUSED in predict(here, "folds", code=2)
    finally:
        file.unlink()
    assert "Skill" in say(here, "ensemble", "--resume", "--output", "folds")


def test_members_of_a_launch_that_was_killed_are_known(here: Path, tmp_path: Path) -> None:
    dies = "        if os.environ.get('DIES') and os.path.exists('folds/members/0000/member.json'):\n"
    dies += "            os.kill(os.getpid(), 9)\n"
    (tmp_path / "mine.py").write_text("import os\n" + NET.replace("        self.cell", f"{dies}        self.cell", 1))
    shutil.copy(here / "rows.csv", tmp_path)
    words = ["-P", "-m", "mpitrain", "ensemble", "--data", "rows.csv", "--output", "folds", "--folds", "2", *NAMES]
    assert launch(words, None, tmp_path, environ={"DIES": "1"}).returncode != 0
    assert sorted(tmp_path.glob("folds/members/*/member.json")) == [tmp_path / "folds/members/0000/member.json"]
    assert "Skill" in say(tmp_path, "ensemble", "--resume", "--output", "folds")
    predict(tmp_path, "folds")


def test_what_is_reproduced_on_trust_is_not_known(here: Path, tmp_path: Path) -> None:
    say(here, "--data", "rows.csv", "--output", str(tmp_path / "run"), *NAMES)
    say(here, "reproduce", str(tmp_path / "run"), "--output", str(tmp_path / "again"), "--trust-code")
    assert REFUSED in predict(here, tmp_path / "again", code=2)


def test_the_root_decides_for_all_ranks(here: Path, tmp_path: Path) -> None:
    script = tmp_path / "own_home.py"
    script.write_text(
        "import os, sys\nif int(os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK', 0))):\n"
        "    os.environ['XDG_CONFIG_HOME'] = '/nowhere'\n"
        "from mpitrain.cli.main import main\nsys.exit(main(sys.argv[1:]))\n"
    )
    words = ["predict", "run", "--data", "rows.csv", "--output", "p.nc", "--overwrite"]
    assert launch([str(script), *words], 2, here).returncode == 0


def test_from_another_directory_it_is_a_strangers(here: Path, tmp_path: Path) -> None:
    """Whose modules of the same name would be imported from there."""
    (tmp_path / "mine.py").write_text(NET)
    shutil.copy(here / "rows.csv", tmp_path)
    line = predict(tmp_path, here / "run", code=2)
    assert REFUSED in line
    assert line.endswith(f" (you have trained it in {here})")


def test_a_model_that_names_other_code_is_not_run(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, kept = here / "run" / "model.safetensors", tmp_path / "kept"
    shutil.copy(model, kept)
    try:
        plant(here, kept, model)
        assert REFUSED in predict(here, "run", code=2)
        assert "holds the weights of evil:Net" in predict(here, "run/model.safetensors", code=2)
        (here / "run" / "ensemble.json").write_text("{}")  # as if it were no run's
        monkeypatch.chdir(here)
        assert not trusts_code_of(here / "run", False)
    finally:
        shutil.copy(kept, model)
        (here / "run" / "ensemble.json").unlink(missing_ok=True)


def test_from_python(here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    rows = {"a": A, "z": Z}
    how = {"inputs": ["a", "z"], "targets": ["b"], "epochs": 1, "quiet": True, "model.name": "mine:Net"}
    assert np.shape(mpitrain.train("rows.csv", output="run2", **how).predict(rows)["b"]) == (200,)
    shutil.copytree(here / "run", tmp_path / "copy")
    with pytest.raises(UserError, match=r"; give trust_code=True if you trust"):
        mpitrain.open(tmp_path / "copy").predict(rows)
    with pytest.raises(UserError, match=r"; give trust_code=True if you trust"):
        mpitrain.train(output=tmp_path / "copy", resume=True, epochs=20, quiet=True)
    assert np.shape(mpitrain.predict(tmp_path / "copy", rows, trust_code=True)["b"]) == (200,)
    assert np.shape(mpitrain.open(tmp_path / "copy", trust_code=True).predict(rows)["b"]) == (200,)
    again = mpitrain.train(output=tmp_path / "copy", resume=True, epochs=20, quiet=True, trust_code=True)
    assert np.shape(again.predict(rows)["b"]) == (200,)
    with pytest.raises(UserError, match=r"; give trust_code=True if you trust"):
        mpitrain.open(tmp_path / "copy").export("net.pt", overwrite=True)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current directory with modules of several kinds and a file; nothing is known yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for module in ("pack_a/__init__.py", "pack_a/net.py", "nowhere/net.py", "nested/pack/__init__.py", "alone_a.py"):
        (tmp_path / module).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / module).write_text("raise SystemExit('ran')\n")
    (tmp_path / "file").write_text("1")
    return tmp_path


def test_the_packages_of_a_module_are_known_too(own: Path) -> None:
    remember_code([own / "file"], ["pack_a.net:Net", "alone_a:loss"])
    assert distrust_reason(own / "file") is None
    assert distrust_reason(own / "alone_a.py") == ""
    (own / "pack_a" / "__init__.py").write_text("raise SystemExit('other')\n")
    assert distrust_reason(own / "file") is not None


@pytest.mark.parametrize("name", ["nowhere.net:Net", "nested.pack:Net", "gone:Net", "alone_a.net:Net", "pack_a..net:N"])
def test_what_is_in_no_file_cannot_be_known(own: Path, name: str) -> None:
    remember_code([own / "file"], ["alone_a:Net", name])
    assert distrust_reason(own / "file") is not None
    assert not (own / "home").exists()


def test_the_known_are_the_users_own(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember_code([own / "file"], ["alone_a:Net"])
    (path,) = (own / "home" / "mpitrain").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    with path.open("a") as file:
        file.write('{"file": 1}\n[3]\n\n{"modules": [')
    assert distrust_reason(own / "file") is None
    remember_code([own / "file"], ["alone_a:Net"])
    assert path.read_text().count('"sha256"') == 1
    (own / "file").write_text("2")
    remember_code([own / "file"], ["alone_a:Net"])
    (own / "file").write_text("1")
    assert distrust_reason(own / "file") == "you have trained it, and file has changed since"
    remember_code([own / "file"], ["alone_a:Net"])
    path.chmod(0o602)
    assert distrust_reason(own / "file") is not None
    path.chmod(0o600)
    own.chmod(0o777)
    assert distrust_reason(own / "file") == "its files or their folders belong to others, or others can write to them"
    own.chmod(0o755)
    (_, line, *_) = path.read_text().splitlines()
    path.write_text(json.dumps(json.loads(line) | {"directory": "/"}) + "\n")
    assert distrust_reason(own / "file") is not None
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(own / "other"))
    remember_code([own / "file"], ["alone_a:Net"])
    assert [one.name for one in (own / "other" / ".config" / "mpitrain").iterdir()] == ["known_code.jsonl"]


def test_without_a_place_for_it_nothing_is_known(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "home").write_text("a file")
    remember_code([own / "file"], ["alone_a:Net"])
    assert distrust_reason(own / "file") is not None
    monkeypatch.setenv("HOME", ".")
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    remember_code([own / "file"], ["alone_a:Net"])
    assert not (own / ".config").exists()
    monkeypatch.setenv("HOME", os.devnull)
    remember_code([own / "file"], ["alone_a:Net"])
    assert distrust_reason(own / "file") is not None
    assert not (own / "relative").exists()
