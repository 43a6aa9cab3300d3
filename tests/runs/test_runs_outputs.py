"""A file that a user names as output: an input, a run's own file and another program's are never lost unasked."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import launch
from one_rank import one_rank_in_this_process

from mpitrain.cli.main import main
from mpitrain.data.describe.names import CICE_INPUTS, CICE_TARGET
from mpitrain.durable_files import check_output, replacing
from mpitrain.models.files.record import parse_record
from mpitrain.models.files.torchscript import load_and_run_code
from mpitrain.models.files.zip_parts import ArchiveError

pytestmark = [pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")]

NAMED = "data.data_path=h.nc"
SMALL = ("model.name=mlp", "model.hidden_layers=1", "model.hidden_size=3", "training.virtual_ranks=2")
SABER = tuple(f"--name={name}=of_{name}" for name in (*CICE_INPUTS, CICE_TARGET))
FOREIGN = b"numbers of somebody's\n"


@pytest.fixture(scope="module", autouse=True)
def _one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with one_rank_in_this_process(tmp_path_factory.mktemp("outputs")):
        yield


@pytest.fixture(scope="module")
def history(small_history: Path, _one_rank: None) -> Path:
    shutil.copy(small_history, "h.nc")
    shutil.copy(small_history, "test_1.nc")
    Path("sub").mkdir()
    Path("link.nc").symlink_to("h.nc")
    os.link("h.nc", "second_name.nc")
    Path("foreign.txt").write_bytes(FOREIGN)
    return Path("h.nc")


@pytest.fixture(scope="module")
def run(history: Path) -> Path:
    assert main(["train", *SMALL, NAMED, "training.epochs=1", "output.model_dir=run"]) == 0
    return Path("run")


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def settings_file() -> str:
    Path("run.yaml").write_text("data:\n  data_path: h.nc\n")
    return "run.yaml"


# Each command, and what it must not write whether or not --overwrite is given.
NEVER: dict[str, Callable[[], list[str]]] = {
    "predict: the data": lambda: ["predict", "run", "--data", "h.nc", "--output", "h.nc"],
    "predict: the data by another path": lambda: ["predict", "run", "--data", "h.nc", "--output", "sub/../h.nc"],
    "predict: the data by a second name": lambda: ["predict", "run", "--data", "h.nc", "--output", "second_name.nc"],
    "predict: the data by a link": lambda: ["predict", "run", "--data", "link.nc", "--output", "h.nc"],
    "predict: a link to the data": lambda: ["predict", "run", "--data", "h.nc", "--output", "link.nc"],
    "predict: the run's data": lambda: ["predict", "run", "--output", "h.nc", "--layout", "grid"],
    "predict: config.yaml": lambda: ["predict", "run", "--output", "run/config.yaml"],
    "predict: model.safetensors": lambda: ["predict", "run", "--output", "run/model.safetensors"],
    "predict: run_record.json": lambda: ["predict", "run", "--output", "run/run_record.json"],
    "predict: model.pt": lambda: ["predict", "run", "--output", "run/model.pt"],
    "predict: a checkpoint": lambda: ["predict", "run", "--output", "run/checkpoints/latest/manifest.json"],
    "predict: the model": lambda: ["predict", "alone.pt", "--data", "h.nc", "--output", "alone.pt"],
    "predict: a device": lambda: ["predict", "run", "--output", "/dev/null"],
    "export: the data": lambda: ["export", "run", "--output", "h.nc"],
    "export: run_record.json": lambda: ["export", "run", "--output", "run/run_record.json"],
    "export: report.html": lambda: ["export", "run", "--format", "pt2", "--output", "run/report.html"],
    "export: another run's model": lambda: ["export", "run", "--output", "other/model.pt"],
    "train: the first weights": lambda: [
        "train", *SMALL, NAMED, "model.initial_weights=alone.pt", "output.model_file=../alone.pt",
        "output.model_dir=a"],
    "export: a device": lambda: ["export", "run", "--output", "/dev/full"],
    "generate: a file of a run": lambda: ["data", "generate", "run/run_record.json"],
    "launch: the settings": lambda: ["launch", "--scheduler", "slurm", "--output", "run.yaml", settings_file()],
    "bench: a file of a run": lambda: [
        "bench", "collectives", "--max-bytes", "4", "--rounds", "1", "--json", "run/metrics.jsonl"],
    "train: the data": lambda: ["train", *SMALL, NAMED, "output.model_file=../h.nc", "output.model_dir=a"],
    "train: a test file": lambda: [
        "train", *SMALL, NAMED, "data.test_path=test_?.nc", "output.model_file=../test_1.nc",
        "output.model_dir=a"],
    "train: the data, predicted": lambda: [
        "train", *SMALL, NAMED, "prediction.output_filename=h.nc", "output.model_dir=a"],
    "train: config.yaml": lambda: [
        "train", *SMALL, NAMED, "output.model_file=config.yaml", "output.model_dir=a"],
}  # fmt: skip


@pytest.mark.parametrize("overwrite", [(), ("--overwrite",)], ids=["", "--overwrite"])
@pytest.mark.parametrize("what", NEVER)
def test_an_input_a_device_and_a_file_of_a_run_are_kept(
    what: str, overwrite: tuple[str, ...], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(run / "model.pt", "alone.pt")
    shutil.copytree(run, "other", dirs_exist_ok=True)
    words, before = NEVER[what](), content(Path())
    command = in_another_process if words[0] == "bench" else main
    assert command([*words, *overwrite]) == 2
    output, told = words[words.index("--output") + 1] if "--output" in words else "", capsys.readouterr().err
    of_ending = f"{output}: cannot be written (the ending determines the format", f"{output}: --format pt2 writes .pt2"
    assert any(one in told for one in (f"cannot be written ({Path(output).name}", *of_ending))
    assert content(Path()) == before
    assert Path("link.nc").is_symlink()
    assert Path("/dev/null").is_char_device()
    assert Path("/dev/full").is_char_device()


# Commands that write a file which the user names, and that file.
ASKED: dict[str, tuple[list[str], str]] = {
    "predict": (["predict", "run", "--output", "out.nc"], "out.nc"),
    "predict: parquet": (["predict", "run", "--output", "out.parquet"], "out.parquet"),
    "predict --maps": (
        ["predict", "run", "--output", "p.nc", "--layout", "grid", "--maps", "maps"], "maps/aice_h_error.png"),
    "export": (["export", "run", "--output", "m.pt"], "m.pt"),
    "export: normalization": (["export", "run", "--output", "n.pt"], "normalization.n.pt"),
    "export --format pt2": (["export", "run", "--format", "pt2", "--output", "m.pt2"], "m.pt2"),
    "export --format saber": (["export", "run", "--format", "saber", "--output", "s.pt", *SABER], "s.pt"),
    "export --format c": (["export", "run", "--format", "c", "--output", "emulator.c"], "emulator_test.c"),
    "export --format c: header": (["export", "run", "--format", "c", "--output", "emulator.c"], "emulator.h"),
    "export --format c++": (["export", "run", "--format", "c++", "--output", "e.hpp"], "e.hpp"),
    "data generate": (["data", "generate", "g.nc", "--times", "3"], "g.nc"),
    "data inspect --maps": (["data", "inspect", "h.nc", "--maps", "maps"], "maps/aice_h.png"),
    "launch": (["launch", "--scheduler", "slurm", "--output", "job.sh"], "job.sh"),
    "bench --json": (
        ["bench", "collectives", "--max-bytes", "4", "--rounds", "1", "--json", "b.json"], "b.json"),
    "bench --plot": (
        ["bench", "collectives", "--max-bytes", "4", "--rounds", "1", "--plot", "b.png"], "b.png"),
    "train: model": (
        ["train", *SMALL, NAMED, "output.model_file=../t.pt", "output.model_dir=f", "training.epochs=1"],
        "t.pt"),
    "train: report": (
        ["train", *SMALL, NAMED, "output.model_dir=g", "training.epochs=1"], "g/report.html"),
    "train: normalization": (
        ["train", *SMALL, NAMED, "output.model_dir=g", "training.epochs=1"],
        "g/normalization.model.pt"),
    "train: history": (["train", *SMALL, "output.model_dir=g", "training.epochs=1"], "g/cice_history.nc"),
    "ensemble: history": (
        ["ensemble", *SMALL, "output.model_dir=g", "training.epochs=1", "ensemble.members=2"], "g/cice_history.nc"),
}  # fmt: skip


@pytest.mark.parametrize("what", ASKED)
def test_another_programs_file_is_replaced_on_request_alone_and_our_own_without(
    what: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, name = ASKED[what]
    shutil.rmtree("g", ignore_errors=True)
    shutil.rmtree("f", ignore_errors=True)
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(FOREIGN)
    command = in_another_process if words[0] == "bench" else main
    assert command(words) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert path.read_bytes() == FOREIGN
    assert command([*words, "--overwrite"]) == 0, capsys.readouterr().err
    assert path.read_bytes() != FOREIGN
    if words[0] in ("train", "ensemble"):  # a run that is there has a line of its own
        return
    assert command(words) == 0, capsys.readouterr().err


def in_another_process(words: Sequence[str]) -> int:
    """Run a command that can begin torch.distributed only once a process."""
    done = launch(["-m", "mpitrain", *words])
    sys.stderr.write(done.stderr)
    return done.returncode


def test_a_run_without_settings_of_its_folder_is_begun_over_what_a_killed_start_has_left(run: Path) -> None:
    assert main(["data", "generate", "killed/cice_history.nc"]) == 2  # no folder yet
    Path("killed").mkdir()
    assert main(["data", "generate", "killed/cice_history.nc"]) == 0
    assert main(["train", *SMALL, "output.model_dir=killed", "training.epochs=1"]) == 0


def test_a_run_without_a_checkpoint_is_begun_anew_by_resume(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["train", *SMALL, NAMED, "training.epochs=1", "output.model_dir=full"]
    assert main([*words, "--overwrite"]) == 0
    whole = content(Path("full"))
    for path in whole:  # as where the disk was full before the first checkpoint
        if path.name not in ("config.yaml", "metrics.jsonl", "rank-0000.log"):
            path.unlink()
    shutil.rmtree("full/checkpoints")
    capfd.readouterr()
    assert main([*words, "--resume"]) == 0
    assert "full has no checkpoint yet; the run starts from scratch" in capfd.readouterr().err
    kept = [path for path in whole if path.name in ("statistics.json", "tensors.safetensors")]
    assert len(kept) > 1
    assert all(path.read_bytes() == whole[path] for path in kept)
    assert Path("full/metrics.jsonl").read_text().count("train_loss") == 1
    model = Path("full/model.pt").read_bytes()
    shutil.rmtree("full/checkpoints")  # of a run that has ended: its model stays
    assert main([*words, "--resume"]) == 2
    assert Path("full/model.pt").read_bytes() == model


def test_what_a_run_has_made_is_replaced_and_what_a_user_has_put_there_stays(
    run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *SMALL, NAMED, "training.epochs=1", "output.model_dir=again", "--overwrite"]
    assert main(words) == 0
    mine = [Path("again", name) for name in ("checkpoints/step-backup", "logs/slurm-17.out", "notes.txt")]
    for path in mine:
        path.write_bytes(FOREIGN)
    Path("again/model.pt").write_bytes(b"")
    assert main(words) == 0
    assert all(path.read_bytes() == FOREIGN for path in mine)
    for name in ("checkpoints", "logs"):
        Path("elsewhere").mkdir()
        shutil.move(f"again/{name}", "elsewhere")
        Path("again", name).symlink_to(Path("elsewhere", name).resolve())
        before = content(Path("elsewhere"))
        assert main(words) == 2
        assert f"again/{name}: is a symbolic link" in capfd.readouterr().err
        assert content(Path("elsewhere")) == before
        Path("again", name).unlink()
        shutil.rmtree("elsewhere")


@pytest.mark.parametrize(("kind", "ending"), [("torchscript", "of.pt"), ("c", "of.c")])
def test_a_run_without_checkpoints_is_exported_from_its_model(run: Path, kind: str, ending: str) -> None:
    words = ["train", *SMALL, NAMED, "training.epochs=1", "output.model_dir=bare", "--overwrite"]
    assert main(words) == 0
    assert main(["export", "bare", "--format", kind, "--output", f"full_{ending}"]) == 0
    shutil.rmtree("bare/checkpoints")
    assert main(["export", "bare", "--format", kind, "--output", f"bare_{ending}"]) == 0
    if kind == "torchscript":
        inputs = torch.zeros(3, 7)
        full, bare = (load_and_run_code(Path(f"{name}_{ending}"))(inputs) for name in ("full", "bare"))
        assert torch.equal(full, bare)
    assert main(["export", "bare", "--weights", "final", "--output", "final.pt"]) == 2


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"name": "mlp", "hidden_size": 2_000_000, "hidden_layers": 2}, (7, 1)),
        ({"name": "mlp", "hidden_size": 2_000_000, "hidden_layers": 1}, (1_000_000, 1)),
        ({"name": "icenet", "hidden_size": 2_000_000}, (1, 1_000_000)),
        ({"name": "cnn", "hidden_size": 2_000_000, "hidden_layers": 2}, (1, 1)),
        ({"name": "unet", "hidden_size": 2_000_000, "hidden_layers": 2}, (1, 1)),
        ({"name": "cnn", "linear_part": True, "grid": [2_000, 2_000]}, (1, 1)),
    ],
)
def test_a_file_claims_no_more_numbers_than_it_has(settings: dict[str, Any], sizes: tuple[int, int]) -> None:
    record = {"model": settings, "num_inputs": sizes[0], "num_outputs": sizes[1], "dtype": "float32"}
    with pytest.raises(ArchiveError, match="states sizes"):
        parse_record(json.dumps(record).encode(), {"weights": np.zeros(2_000_000, np.float32)})


def test_a_network_that_no_memory_holds_is_one_line(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for more in (["model.hidden_layers=3"], ["model.name=cnn", "data.samples=fields", "model.hidden_layers=3"]):
        words = ["train", *SMALL, NAMED, "output.model_dir=big", "model.hidden_size=5000000", *more]
        assert main(words) == 2
        assert "too many for this machine" in capfd.readouterr().err


@pytest.mark.parametrize("module", ["mpitrain.cli.main", "mpitrain.comm.start"])
def test_an_interrupt_of_the_start_is_one_line(module: str) -> None:
    code = f"""
import runpy, sys
class Interrupt:
    def find_spec(self, name, *others):
        if name == {module!r}:
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
sys.argv = ["mpitrain", "train", "output.model_dir=interrupted"]
runpy.run_module("mpitrain", run_name="__main__", alter_sys=True)
"""
    done = launch(["-c", code])
    assert (done.returncode, done.stderr) == (130, "mpitrain: error: interrupted\n")


def test_members_have_files_of_their_own(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["ensemble", *SMALL, NAMED, "ensemble.members=2", "output.model_dir=members", "output.model_file=../h.nc"]
    before = content(Path())
    assert main(words) == 2
    assert "each member has its own file" in capsys.readouterr().err
    assert content(Path()) == before


def test_a_file_in_a_store_that_is_read_is_an_input(tmp_path: Path) -> None:
    (tmp_path / "store.zarr").mkdir()
    inside = tmp_path / "store.zarr" / ".zmetadata"
    inside.write_bytes(FOREIGN)
    with pytest.raises(FileExistsError, match="an input"):
        check_output(inside, "no mark", [tmp_path / "store.zarr"], overwrite=True)


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_only_a_regular_file_is_replaced(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "there"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(FileExistsError, match="is a folder, a device or a pipe"), replacing(path) as temporary:
        temporary.write_bytes(b"new")
    assert path.is_dir() or path.is_fifo()
    assert os.listdir(tmp_path) == ["there"]
