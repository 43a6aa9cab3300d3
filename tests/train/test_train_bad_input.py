"""Wrong input ends a run on all ranks with one line that says what to do, and leaves nothing half-written behind.

All cases run in one launch on two ranks (an error on which the ranks did not agree would end that launch at once); a
few run again as launches of their own, for the exit code of the process.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import torch
from conftest import launch, train
from many_runs import Outcome, run_many

from mpitrain.data.describe.names import CICE_INPUTS
from mpitrain.train.checkpoint.format import TENSORS

SMALL = ("training.epochs=1",)


def edit(source: Path, target: Path, change: Callable[[Any], None]) -> None:
    """Copy a history file and change the copy."""
    copy_but(source, target, {})  # a file that was made in memory cannot be opened for changes
    with netCDF4.Dataset(target, "a") as dataset:
        dataset.set_auto_maskandscale(False)
        change(dataset)


def copy_but(source: Path, target: Path, replaced: dict[str, Any], kind: str = "NETCDF4") -> None:
    """Copy a history file with `replaced` in place of its variables: (dimensions, values), None to leave one out."""
    with netCDF4.Dataset(source) as old, netCDF4.Dataset(target, "w", format=kind) as new:
        old.set_auto_maskandscale(False)
        for name, dimension in old.dimensions.items():
            new.createDimension(name, len(dimension))
        new.createDimension("other", 5)
        for name, variable in old.variables.items():
            dimensions, values = replaced.get(name, (variable.dimensions, variable[:])) or (None, None)
            if dimensions is not None:
                datatype = str if values.dtype == object else values.dtype
                new.createVariable(name, datatype, dimensions)[:] = values


def selected_points(dataset: Any) -> np.ndarray:
    """The first time's clean northern points, as (number, 2) indices."""
    ice = dataset["aice_h"][0]
    return np.argwhere((dataset["umask"][:] == 1) & (dataset["ULAT"][:] > 40) & (ice > 0) & (ice <= 1))


def put(name: str, value: float) -> Callable[[Any], None]:
    """Set one variable at the first selected point."""

    def change(dataset: Any) -> None:
        j, i = selected_points(dataset)[0]
        dataset[name][0, j, i] = value

    return change


def keep_one_sample(dataset: Any) -> None:
    ice = dataset["aice_h"][:]
    j, i = selected_points(dataset)[0]
    kept = np.zeros_like(ice)
    kept[0, j, i] = ice[0, j, i]
    dataset["aice_h"][:] = kept


def set_all(name: str, value: float) -> Callable[[Any], None]:
    def change(dataset: Any) -> None:
        dataset[name][:] = value

    return change


def nan_and_fill(dataset: Any) -> None:
    points = selected_points(dataset)
    for (j, i), name, value in zip(points[:3], ("sst_h", "hi_h", "Tair_h"), (np.nan, 1e30, np.inf), strict=True):
        dataset[name][0, j, i] = value


@pytest.fixture(scope="module")
def files(small_history: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that cannot serve, and of those that can only in standard semantics."""
    folder = tmp_path_factory.mktemp("files")
    whole = small_history.read_bytes()
    (folder / "truncated.nc").write_bytes(whole[: len(whole) // 2])
    (folder / "text.nc").write_text("not NetCDF\n")
    (folder / "empty.nc").write_bytes(b"")
    (folder / "folder.nc").mkdir()
    (folder / "bad.npz").write_bytes(b"PK\x03\x04 no archive")
    np.savez(folder / "no_targets.npz", inputs=np.zeros((3, 7)))
    np.savez(folder / "pickled.npz", inputs=np.array([{}], dtype=object), targets=np.zeros(1))
    for name, replaced in {
        "no_sst": {"sst_h": None},
        "no_latitude": {"ULAT": None},
        "other_mask": {"umask": (("nj", "other"), np.ones((48, 5), np.float32))},
        "words": {"sst_h": (("time", "nj", "ni"), np.full((1, 48, 72), "warm", dtype=object))},
    }.items():
        copy_but(small_history, folder / f"{name}.nc", replaced)
    copy_but(small_history, folder / "classic.nc", {}, "NETCDF3_CLASSIC")
    classic = (folder / "classic.nc").read_bytes()
    (folder / "truncated_classic.nc").write_bytes(classic[: len(classic) // 2])
    for name, change in {
        "land": set_all("umask", 0),
        "nan": put("sst_h", np.nan),
        "fill": put("hi_h", 1e30),
        "constant": set_all("sss_h", 31.5),
        "one_sample": keep_one_sample,
        "nan_and_fill": nan_and_fill,
    }.items():
        edit(small_history, folder / f"{name}.nc", change)
    with netCDF4.Dataset(folder / "weights.nc", "w") as weights:
        for name, shape in {"fc1.weight": (16, 6), "fc1.bias": (16,), "fc2.weight": (1, 16), "fc2.bias": (1,)}.items():
            dimensions = [f"{name}.{axis}" for axis in range(len(shape))]
            for dimension, size in zip(dimensions, shape, strict=True):
                weights.createDimension(dimension, size)
            weights.createVariable(name, "f4", dimensions)[:] = 0.0
    (folder / "list.yaml").write_text("- 1\n")
    (folder / "open.yaml").write_text("training: {epochs: 3\n")
    (folder / "binary.yaml").write_bytes(bytes(range(256)))
    return folder


# name: (settings, exit code, what the one line says); DATA is the good history file, FILES the folder of bad ones
NO_RUN: dict[str, tuple[str, int, str]] = {
    "missing file": ("data.data_path=FILES/none.nc", 2, r"none\.nc: no such file; set data\.data_path"),
    "folder as file": ("data.data_path=FILES/folder.nc", 2, r"folder\.nc: a folder; add a pattern"),
    "not NetCDF": ("data.data_path=FILES/text.nc", 2, r"text\.nc: cannot be read as NetCDF"),
    "empty file": ("data.data_path=FILES/empty.nc", 2, r"empty\.nc: cannot be read as NetCDF"),
    "truncated": ("data.data_path=FILES/truncated.nc", 2, r"truncated\.nc: cannot be read .*complete"),
    "truncated classic": ("data.data_path=FILES/truncated_classic.nc", 2, r"truncated_classic\.nc: cannot be read"),
    "missing variable": (
        "data.data_path=FILES/no_sst.nc",
        2,
        r"no variable 'sst_h' .*; this one has time, ULAT, ",
    ),
    "missing grid": (
        "data.data_path=FILES/no_latitude.nc",
        2,
        r"no_latitude\.nc: has no latitude .*: set domain\.mask_mode",
    ),
    "mask of another grid": (
        "data.data_path=FILES/other_mask.nc",
        2,
        r"'umask' \(nj=48, other=5\) has dimension other, which samples of 'aice_h' lack: they lie along time, nj, ni;",
    ),
    "text for numbers": ("data.data_path=FILES/words.nc", 2, r"'sst_h' (holds|is|has)"),
    "all land": ("data.data_path=FILES/land.nc", 2, r"no point is selected; the rule is: domain\.pole=north"),
    "damaged npz": ("data.data_path=FILES/bad.npz", 2, r"bad\.npz: cannot be read"),
    "npz without targets": ("data.data_path=FILES/no_targets.npz", 2, r"no_targets\.npz: has no array 'targets'"),
    "pickle in npz": (
        "data.data_path=FILES/pickled.npz",
        2,
        r"pickled\.npz: variable .inputs. is not read: it holds objects",
    ),
    "unknown key": ("data.data_path=DATA training.epoch=5", 2, r"command line: training\.epoch: unknown key; .*epochs"),
    "wrong type": ("data.data_path=DATA training.epochs=many", 2, r"command line: training\.epochs=many: .*give"),
    "negative epochs": ("data.data_path=DATA --epochs -5", 2, r"training\.epochs=-5: .*give .*1"),
    "not a number": ("data.data_path=DATA --lr nan", 2, r"training\.optimizer\.learning_rate=nan"),
    "missing settings": ("FILES/none.yaml", 2, r"none\.yaml"),
    "settings are a list": ("FILES/list.yaml", 2, r"list\.yaml"),
    "settings not closed": ("FILES/open.yaml", 2, r"open\.yaml:[12]"),
    "settings not text": ("FILES/binary.yaml", 2, r"binary\.yaml"),
    "resume of nothing": ("data.data_path=DATA --resume", 2, r"--resume: .* holds no run; name its folder with"),
    "reference with NaN": (
        "data.data_path=FILES/nan.nc semantics=reference",
        2,
        r"feature 'sst_h' holds a NaN or a fill",
    ),
    "reference with fill": (
        "data.data_path=FILES/fill.nc semantics=reference",
        2,
        r"feature 'hi_h' holds a NaN or a fill",
    ),
    "reference, constant": (
        "data.data_path=FILES/constant.nc semantics=reference",
        2,
        r"feature 'sss_h' has standard dev",
    ),
    "reference, empty rank": (
        "data.data_path=FILES/one_sample.nc semantics=reference",
        2,
        r"one of \d+ ranks has none of the \d+ samples; use fewer",
    ),
    "reference, validation": (
        "semantics=reference data.validation_split=0.1",
        2,
        r"validation_split=0\.1: .*give 0 or",
    ),
    "reference, batches": ("semantics=reference training.batch_size=32", 2, r"batch_size=32: .*give full or"),
    "reference, schedule": ("semantics=reference training.scheduler.type=cosine", 2, r"type=cosine: .*give none or"),
    "reference, shuffle": ("semantics=reference training.shuffle=true", 2, r"shuffle=true: .*give false or"),
    "reference, patience": ("semantics=reference training.early_stopping_patience=3", 2, r"patience=3: .*give null or"),
    "reference over gloo": (
        "data.data_path=DATA semantics=reference compute.backend=gloo",
        3,
        r"backend=gloo: .*needs MPI",
    ),
    "nccl without GPU": (
        "data.data_path=DATA compute.backend=nccl",
        3,
        r"compute\.backend=nccl: no GPU on this rank; use",
    ),
    "cuda without GPU": ("data.data_path=DATA compute.device=cuda", 3, r"compute\.device=cuda: this rank sees no GPU"),
    "weights of other shape": (
        "data.data_path=DATA model.initial_weights=FILES/weights.nc",
        2,
        r"'fc1\.weight' has shape \(16, 6\), .*\(16, 7\)",
    ),
    "no weights": (
        "data.data_path=DATA model.initial_weights=FILES/none.nc",
        2,
        r"none\.nc: no such file; set model\.init",
    ),
    "weights not NetCDF": (
        "data.data_path=DATA model.initial_weights=FILES/text.nc",
        2,
        r"text\.nc: cannot be read as Net",
    ),
    "bad weights, own data": ("model.initial_weights=FILES/none.nc", 2, r"none\.nc: no such file; set model\.initial"),
}

# The run folder is given by the settings, and cannot be made.
UNWRITABLE = {
    "below a file": ("output.model_dir=FILES/text.nc/run", r"text\.nc/run: cannot be written \(Not a directory\)"),
    "in proc": ("output.model_dir=/proc/x", r"/proc/x: cannot be written"),
    "a file itself": ("output.model_dir=FILES/text.nc", r"text\.nc: cannot be written"),
    "name too long": (f"output.model_dir=FILES/{'x' * 300}", r"x: cannot be written \(File name too long\)"),
    "below a file, own data": (
        "output.model_dir=FILES/text.nc/run data.data_path=null",
        r"cannot be written \(Not a dir",
    ),
}

# On a folder that holds a finished run: (what is done to it, settings, what the one line says).
HELD = {
    "taken": ("", "", r"holds a run already; continue it with --resume, replace it with --overwrite"),
    "half a checkpoint": (
        "halve",
        "--resume --epochs 2",
        r"damaged .*no older one can be used: start again with --over",
    ),
    "other architecture": (
        "",
        "--resume --epochs 2 model.hidden_size=8",
        r"with model\.hidden_size=16, this run has 8; resume",
    ),
    "other seed": ("", "--resume --epochs 2 seed=7", r"written with seed=0, this run has 7; resume"),
    "swapped inputs": (
        "",
        "--resume --epochs 2 variables.input_variables=[Tair_h,sst_h,Tsfc_h,sss_h,hs_h,hi_h,sice_h]",
        r"written with variables\.input_variables=\[Tair_h,Tsfc_h,sst_h,.* this run has \[Tair_h,sst",
    ),
    "other data": ("", "--resume --epochs 2 domain.pole=south", r"trained on other data than .*input_mean"),
    "other semantics": (
        "",
        "--resume --epochs 2 semantics=reference",
        r"written with semantics=standard, this run has reference",
    ),
    "data gone": ("", "--resume --epochs 2 data.data_path=FILES/none.nc", r"none\.nc: no such file"),
    "overwrite, bad key": ("", "--overwrite training.epoch=5", r"training\.epoch: unknown key"),
    "overwrite, no weights": ("", "--overwrite model.initial_weights=FILES/none.nc", r"none\.nc: no such file"),
    "overwrite, own data, no weights": (
        "",
        "--overwrite seed=5 data.data_path=null model.initial_weights=FILES/none.nc",
        r"none\.nc: no such file",
    ),
}

# Standard semantics train on these, and say what they met.
TRAINS = {
    "nan_and_fill": r"note: 3 selected samples hold a NaN or a fill value and are left out(?:[:,] 1 of \w+){3}\n",
    "constant": r"note: constant over the training samples, centred and not scaled: sss_h\n",
    "one_sample": r"",
    "classic": r"",
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad_input_runs")


@pytest.fixture(scope="module")
def outcomes(files: Path, small_history: Path, runs: Path) -> dict[str, Outcome]:
    """What became of every case, all in one launch on two ranks."""
    _hold_runs(runs, files, small_history)

    def job(folder: str, settings: str) -> list[str]:
        text = settings.replace("DATA", str(small_history)).replace("FILES", str(files))
        words = text.split()
        first = [word for word in words if word.endswith(".yaml")]
        return ["train", *first, f"output.model_dir={runs / folder}", *SMALL, *(w for w in words if w not in first)]

    jobs = {name: job(name, settings) for name, (settings, _, _) in NO_RUN.items()}
    jobs |= {name: job(name, f"data.data_path=DATA {settings}") for name, (settings, _) in UNWRITABLE.items()}
    jobs |= {name: job(name, f"data.data_path=DATA {settings}") for name, (_, settings, _) in HELD.items()}
    jobs |= {name: job(name, f"data.data_path=FILES/{name}.nc data.validation_split=0") for name in TRAINS}
    return dict(zip(jobs, run_many(runs / "logs", 2, list(jobs.values())), strict=True))


def _hold_runs(runs: Path, files: Path, small_history: Path) -> None:
    settings = ["train", *SMALL, f"data.data_path={small_history}"]
    made = run_many(runs / "made", None, [[*settings, f"output.model_dir={runs / 'source'}"]])
    assert [run.codes for run in made] == [[0]]
    for name, (what, _, _) in HELD.items():
        shutil.copytree(runs / "source", runs / name)
        if what == "halve":
            (checkpoint,) = (runs / name / "checkpoints").glob("step-*")
            whole = (checkpoint / TENSORS).read_bytes()
            (checkpoint / TENSORS).write_bytes(whole[: len(whole) // 2])
        shutil.copytree(runs / name, runs / "before" / name)


def content_of(folder: Path) -> dict[Path, bytes]:
    """Every file below a folder, but the probe-like log folder's times."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_one_line(outcome: Outcome, code: int, what: str) -> None:
    assert outcome.codes == [code] * 2, outcome.stderr
    assert "Traceback" not in outcome.stderr
    (line,) = outcome.our_lines
    assert line.startswith("mpitrain: error: ")
    assert re.search(what, line), line


@pytest.mark.parametrize("name", NO_RUN)
def test_bad_input_is_one_line_and_no_run_folder(name: str, outcomes: dict[str, Outcome], runs: Path) -> None:
    if "without GPU" in name and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    _, code, what = NO_RUN[name]
    assert_one_line(outcomes[name], code, what)
    assert not (runs / name).exists()


@pytest.mark.lab
@pytest.mark.parametrize("name", UNWRITABLE)
def test_an_unwritable_run_folder_is_one_line(name: str, outcomes: dict[str, Outcome], files: Path) -> None:
    assert_one_line(outcomes[name], 2, UNWRITABLE[name][1] + ".*choose another output.model_dir")
    assert (files / "text.nc").read_text() == "not NetCDF\n"


@pytest.mark.parametrize("name", HELD)
def test_a_refused_run_leaves_the_held_run_as_it_was(name: str, outcomes: dict[str, Outcome], runs: Path) -> None:
    assert_one_line(outcomes[name], 2, HELD[name][2])
    assert content_of(runs / name) == content_of(runs / "before" / name)


@pytest.mark.lab
@pytest.mark.parametrize("name", TRAINS)
def test_standard_semantics_train_on_what_is_usable(name: str, outcomes: dict[str, Outcome], runs: Path) -> None:
    outcome = outcomes[name]
    assert outcome.codes == [0, 0], outcome.stderr
    assert len(re.findall(TRAINS[name], outcome.stderr)) == 1 or not TRAINS[name]
    assert (runs / name / "model.pt").exists()


@pytest.mark.parametrize("name", ["truncated", "unknown key", "reference over gloo", "reference, constant"])
def test_the_process_itself_ends_with_the_exit_code(
    name: str, files: Path, small_history: Path, tmp_path: Path
) -> None:
    settings, code, what = NO_RUN[name]
    text = settings.replace("DATA", str(small_history)).replace("FILES", str(files))
    done = train(2, tmp_path / "run", *SMALL, *text.split())
    assert done.returncode == code, done.stderr
    assert len(done.our_lines) == 1
    assert re.search(what, done.our_lines[0])
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_word_that_is_no_option_is_explained_without_a_traceback(tmp_path: Path) -> None:
    done = launch(["-m", "mpitrain", "train", "--epoch", "5", "--bogus"], cwd=tmp_path)
    assert done.returncode == 2
    assert "--bogus" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_every_input_of_a_history_file_is_needed() -> None:
    assert set(CICE_INPUTS) >= {"sst_h", "hi_h", "sss_h", "Tair_h"}
