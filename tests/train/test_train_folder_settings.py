"""The settings of a run folder are resolved first and judged after; what the user says himself is his own."""

from __future__ import annotations

from pathlib import Path

import pytest

from mpitrain.config import load_run_config, overridden_keys, render_yaml
from mpitrain.errors import ConfigError, UserError
from mpitrain.train.folder.settings import (
    is_plain_name,
    load_folder_settings,
    load_passed_settings,
    load_settings_to_resume,
    settings_of_record,
)
from mpitrain.train.run_folder import RunFolder

CODE = "model.name=package.module:Net"


def folder_of(path: Path, *settings: str) -> RunFolder:
    path.mkdir()
    (path / "config.yaml").write_text(render_yaml(load_run_config(None, settings).config))
    return RunFolder(path)


def test_code_of_a_folder_needs_trust_unless_the_user_names_it(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", CODE)
    for load in (load_folder_settings, load_settings_to_resume):
        with pytest.raises(UserError, match=r"config\.yaml: model\.name=package\.module:Net names code"):
            load(folder, trust_code=False)
        assert load(folder, trust_code=True).config.model.name == "package.module:Net"
        assert load(folder, trust_code=False, overrides=[CODE]).config.model.name == "package.module:Net"
        with pytest.raises(UserError, match="names code"):
            load(folder, trust_code=False, overrides=["seed=1"])


BESIDE = ("run_record.json", "checkpoints", "members", "model.safetensors")


@pytest.mark.parametrize("beside", [*BESIDE, ""])
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_run_folders_own_file_is_judged_as_the_folder_is(tmp_path: Path, beside: str, is_linked: bool) -> None:
    own = f"output.model_dir={tmp_path / ('elsewhere' if beside else 'run')}"
    folder = folder_of(tmp_path / "run", CODE, own)
    (folder.path / (beside or "notes")).mkdir()
    file = folder.config
    if is_linked:
        file = tmp_path / "settings.yaml"
        file.symlink_to(folder.config)
    given = [f"output.model_dir={tmp_path / 'again'}"]
    with pytest.raises(UserError, match=r"\.yaml: model\.name=package\.module:Net names code.*--trust-code"):
        load_passed_settings(file, trust_code=False, overrides=given)
    assert load_passed_settings(file, trust_code=True, overrides=given).config.model.name == "package.module:Net"
    assert load_passed_settings(file, trust_code=False, overrides=[*given, CODE])
    with pytest.raises(UserError, match="would be written outside the run folder"):
        load_passed_settings(write(file, "output.model_file=/home/user/.bashrc", own), trust_code=True)
    if beside:
        with pytest.raises(UserError, match=r"is not the folder of this file.*give --output FOLDER"):
            load_passed_settings(write(file, f"output.model_dir={tmp_path / 'elsewhere'}"), trust_code=False)


def write(file: Path, *settings: str) -> Path:
    file.write_text(render_yaml(load_run_config(None, settings).config))
    return file


@pytest.mark.parametrize("name", ["config.yaml", "run.yaml"])
def test_a_file_of_the_user_is_his_word(tmp_path: Path, name: str) -> None:
    output = f"output.model_dir={tmp_path / 'run'}"
    file = write(tmp_path / name, CODE, output, "output.model_file=/home/user/model.pt")
    assert load_passed_settings(file, trust_code=False).config.model.name == "package.module:Net"
    assert load_passed_settings(None, trust_code=False, overrides=[CODE])


@pytest.mark.parametrize("grid", ["{model.name: [a.b:c]}", "{training.optimizer: [{type: 'x.y:Z'}]}"])
def test_code_among_varied_settings_needs_trust(tmp_path: Path, grid: str) -> None:
    folder = folder_of(tmp_path / "run", f"ensemble.grid={grid}")
    with pytest.raises(UserError, match=r"ensemble\.grid\..* names code"):
        load_folder_settings(folder, trust_code=False)


@pytest.mark.parametrize(
    "setting",
    ["output.model_file=/home/user/.bashrc", "output.model_file=../other/model.pt", "output.model_file=..",
     "prediction.output_filename=Makefile", "tracking.mlflow_uri=/home/user"],
)  # fmt: skip
def test_a_folder_names_no_output_elsewhere(tmp_path: Path, setting: str) -> None:
    folder = folder_of(tmp_path / "run", setting)
    key, _, value = setting.partition("=")
    with pytest.raises(UserError, match="would be written outside the run folder") as found:
        load_settings_to_resume(folder, trust_code=True)
    assert f"{key}={value}" in str(found.value)
    assert load_settings_to_resume(folder, trust_code=False, overrides=[setting])
    assert load_folder_settings(folder, trust_code=False), "reading is no writing"


def test_the_run_goes_on_in_its_folder_wherever_that_is_now(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "moved", "output.model_dir=/somewhere/else")
    assert load_settings_to_resume(folder, False).config.output.model_dir == str(folder.path)
    named = load_settings_to_resume(folder, False, ["output.model_dir=mine"])
    assert named.config.output.model_dir == "mine"


@pytest.mark.parametrize(
    "tree",
    [{"model.name": "a:b"}, {"model": {"name": "mlp"}, "model.name": "a:b"}, {"output.model_file=/x #": 1},
     {"": 1}, {"model": {"a": {"b": {"c": 1}}}}, {"seed": [1]}, {"model": 3}],
)  # fmt: skip
def test_a_record_holds_keys_of_one_name_only(tmp_path: Path, tree: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        settings_of_record(tmp_path, tree, trust_code=False)


def test_a_record_of_code_needs_trust_and_any_other_is_what_it_says(tmp_path: Path) -> None:
    config = load_run_config(None, ["output.model_dir='a \U0001f9ca'", "training.epochs=7"]).config
    assert settings_of_record(tmp_path, config.model_dump(mode="json"), False) == config.as_recorded()
    tree = {"model": {"name": "a:b"}}
    with pytest.raises(UserError, match=r"model\.name=a:b names code"):
        settings_of_record(tmp_path, tree, False)
    assert settings_of_record(tmp_path, tree, True).model.name == "a:b"


def test_overridden_keys_are_those_of_today() -> None:
    words = ["training={epochs: 3}", "optimizer=adam", "training.model output=x.pt", "ensemble.grid.model.name=[a]"]
    assert overridden_keys(words) == {
        "training.optimizer.type", "output.model_file", "training.epochs", "ensemble.grid.model.name",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\\b", "a\0"])
def test_a_path_is_no_plain_name(name: str) -> None:
    assert not is_plain_name(name)
    assert is_plain_name("model.pt")
