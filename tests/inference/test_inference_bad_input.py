"""Models and data that do not fit, and files that are no models: one line each, exit code 2, and no file."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import launch
from predicting import HISTORY, config_of, golden_icenet, left_behind, mlp, predict_played, save

from mpitrain.errors import ConfigError, DataError, MpitrainError, UserError
from mpitrain.inference.ensemble import load_ensemble, member_folders
from mpitrain.inference.predict import PredictRequest, _load_settings, _selection
from mpitrain.models.files.stored_network import accepts_fields, load_network


def test_the_public_command_says_one_line_on_two_ranks(tmp_path: Path) -> None:
    model = save(mlp(2), tmp_path / "model.pt", ("Tair_h", "no_such"), ("aice_h",))
    done = launch(["-m", "mpitrain", "predict", str(model), "--data", str(HISTORY), "--output", "p.nc"], 2, tmp_path)
    assert done.returncode == 2
    assert len(done.our_lines) == 1
    assert "cice_history.nc: no variable 'no_such'; this one has" in done.our_lines[0]
    assert "p.nc" not in str(left_behind(tmp_path))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("variables.input_variables=[Tair_h, sst_h]",), r"gives 2 inputs \(Tair_h, sst_h\), the model has 7; set"),
        (("variables.output_variables=[aice_h, hi_h]",), r"gives 2 targets .* the model has 1"),
        (("data.samples=fields",), r"the model cannot take these fields, .*; set data.samples=points"),
        (("domain.mask=sst_h > 999",), r"no usable sample is selected"),
    ],
)
def test_settings_that_do_not_fit_the_model(tmp_path: Path, settings: tuple[str, ...], message: str) -> None:
    model = save(golden_icenet(), tmp_path / "model.pt")
    with pytest.raises(MpitrainError, match=message) as caught:
        predict_played(model, config_of(HISTORY, *settings), tmp_path / "p.nc", with_jacobian=False)
    assert "\n" not in str(caught.value)
    assert left_behind(tmp_path) == ["model.pt", "normalization.model.pt"]


def test_a_model_of_fields_on_points(tmp_path: Path) -> None:
    fields = save(mlp(7, name="unet", hidden_layers=1), tmp_path / "model.pt")
    with pytest.raises(DataError, match=r"the model cannot take these points.*; set data.samples=fields") as caught:
        predict_played(fields, config_of(HISTORY), tmp_path / "p.nc")
    assert "\n" not in str(caught.value)
    assert "p.nc" not in left_behind(tmp_path)


def test_a_bare_model_knows_its_names_and_kind(tmp_path: Path) -> None:
    fields = load_network(save(mlp(2, name="unet", hidden_layers=1), tmp_path / "f.pt", ("x", "z"), ("y",)))
    points = load_network(save(mlp(2), tmp_path / "p.pt", ("x", "z"), ("y",)))
    assert (accepts_fields(fields), accepts_fields(points)) == (True, False)
    for network, kind in ((fields, "fields"), (points, "points")):
        asked = _selection(PredictRequest(Path("f.pt"), data=("a.nc",)), config_of(HISTORY), network)
        assert (asked.kind, asked.files) == (kind, ("a.nc",))
        assert (asked.input_names, asked.target_names) == (("x", "z"), ("y",))


@pytest.mark.parametrize("name", ["../../elsewhere", "0000/../../..", "/tmp", "..", ".", "", "a\\b", 7, None])
def test_members_of_an_ensemble_lie_in_its_folder(tmp_path: Path, name: object) -> None:
    """`ensemble.json` may come from anywhere: a path in it would have any network of the user read as a member."""
    folder = tmp_path / "ens"
    (folder / "members" / "0000").mkdir(parents=True)
    save(mlp(2), folder / "members" / "0000" / "model.pt")
    (tmp_path / "elsewhere").mkdir()
    save(mlp(2), tmp_path / "elsewhere" / "model.pt")
    (folder / "ensemble.json").write_text(json.dumps({"members": ["0000", name]}))
    for read in (member_folders, lambda folder: load_ensemble(folder, "model.pt", "none", False)):
        with pytest.raises(ConfigError, match=r"ensemble\.json: .* is not a plain name; the file is damaged") as caught:
            read(folder)
        assert "\n" not in str(caught.value)
    (folder / "ensemble.json").write_text(json.dumps({"members": ["0000", "0003"]}))
    assert member_folders(folder) == [folder / "members" / "0000", folder / "members" / "0003"]


def test_settings_that_thin_are_refused() -> None:
    with pytest.raises(UserError, match=r"data\.max_patterns=9: every selected point is predicted"):
        _load_settings(PredictRequest(Path("m.pt"), ("data.max_patterns=9",)))


class _Pickled:
    """What must never be built."""

    def __reduce__(self) -> tuple:
        return (open, ("pickle-was-run", "w"))


def write_pickle(path: Path, good: Path) -> None:
    torch.save({"weights": _Pickled()}, path)


def write_state(path: Path, good: Path) -> None:
    torch.save(golden_icenet().state_dict(), path)


def write_half(path: Path, good: Path) -> None:
    path.write_bytes(good.read_bytes()[: good.stat().st_size // 2])


def write_text(path: Path, good: Path) -> None:
    path.write_text("no model\n")


def write_other_module(path: Path, good: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 1)), str(path))


def write_flipped(path: Path, good: Path) -> None:
    content = bytearray(good.read_bytes())
    middle = content.find(np.float32(golden_icenet().fc1.weight[0, 0].item()).tobytes())
    content[middle + 1] ^= 0x10
    path.write_bytes(bytes(content))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    "write", [write_pickle, write_state, write_half, write_text, write_other_module, write_flipped]
)
def test_files_that_are_no_whole_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write) -> None:
    monkeypatch.chdir(tmp_path)
    good = save(golden_icenet(), tmp_path / "good.pt")
    assert load_network(good).num_inputs == 7
    write(tmp_path / "bad.pt", good)
    with pytest.raises(
        DataError, match=r"bad\.pt: (is not a TorchScript file, or a damaged one|holds no network)"
    ) as caught:
        load_network(tmp_path / "bad.pt")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "pickle-was-run").exists()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_the_original_programs_archive_without_its_side_file(tmp_path: Path) -> None:
    class Archive(torch.nn.Module):
        """Numbers without code, as libtorch writes a module."""

        def __init__(self) -> None:
            super().__init__()
            self.fc1, self.fc2 = torch.nn.Linear(7, 4), torch.nn.Linear(4, 1)
            self.register_buffer("input_mean", torch.zeros(7))
            self.register_buffer("input_std", torch.ones(7))

    torch.jit.save(torch.jit.script(Archive()), str(tmp_path / "c.pt"))
    with pytest.raises(DataError, match=r"c\.pt: holds no statistics of its inputs; put normalization\.c\.pt into"):
        load_network(tmp_path / "c.pt")
    (tmp_path / "normalization.c.pt").write_bytes((tmp_path / "c.pt").read_bytes()[:-99])
    with pytest.raises(DataError, match=r"normalization\.c\.pt: is not a TorchScript file, or a damaged one; copy it"):
        load_network(tmp_path / "c.pt")
