"""A disk that is full, really, at any moment of a run: one line, exit code 2, no file that is half written."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Finished, train
from many_runs import run_many

from mpitrain.errors import OutputError
from mpitrain.models.files.torchscript import save_model
from mpitrain.models.icenet import IceNet
from mpitrain.train.checkpoint.store import CheckpointStore


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[[str, int], Path]]:
    """Make a small disk of so many KiB."""
    mounted: list[Path] = []

    def mount(name: str, size_kib: int) -> Path:
        disk = tmp_path / name
        disk.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "none", str(disk)]
        if subprocess.run(command, capture_output=True).returncode != 0:
            pytest.skip("mounting a small disk needs root")
        mounted.append(disk)
        return disk

    yield mount
    for disk in mounted:
        subprocess.run(["umount", str(disk)], check=True)


def files_that_are_half_written(folder: Path) -> list[str]:
    found = [str(path) for path in folder.rglob("*") if "partial" in path.name]
    found += [str(path) for path in folder.rglob("*.pt") if not zipfile.is_zipfile(path)]
    for path in folder.rglob("*.json*"):
        for line in path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]:
            try:
                json.loads(line)
            except ValueError:
                found.append(f"{path}: {line}")
    return found + [str(path) for path in folder.glob("report.html") if not path.read_text().endswith("</html>\n")]


def needed_kib(*files: Path) -> int:
    """A tmpfs gives out pages of 4 KiB."""
    return sum(-(-path.stat().st_size // 4096) * 4 for path in files if path.is_file())


@pytest.fixture(scope="module")
def settings(small_history: Path) -> list[str]:
    return [f"data.data_path={small_history}", "training.epochs=2", "training.save_interval=1"]


@pytest.fixture(scope="module")
def whole(settings: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has all the space it wants."""
    folder = tmp_path_factory.mktemp("whole")
    (outcome,) = run_many(folder / "logs", None, [["train", f"output.model_dir={folder / 'run'}", *settings]])
    assert outcome.codes == [0]
    return folder / "run"


@pytest.mark.lab
def test_a_run_on_a_disk_of_any_size_ends_with_one_line_or_is_whole(
    settings: list[str],
    whole: Path,
    tmp_path: Path,
    mount: Callable[[str, int], Path],
    request: pytest.FixtureRequest,
) -> None:
    full = needed_kib(*whole.rglob("*"))
    sizes = range(4, full + 64, 4 if request.config.getoption("--full") else max(4, full // 6))
    disks = [mount(f"disk-{size}", size) for size in sizes]
    outcomes = run_many(
        tmp_path / "logs", None, [["train", f"output.model_dir={disk / 'run'}", *settings] for disk in disks]
    )
    for disk, size, outcome in zip(disks, sizes, outcomes, strict=True):
        assert files_that_are_half_written(disk) == [], size
        if outcome.codes == [0]:
            assert (disk / "run" / "report.html").exists()
            continue
        assert outcome.codes == [2], (size, outcome.stderr)
        (line,) = outcome.our_lines
        assert "No space left on device" in line, line
    codes = [outcome.codes[0] for outcome in outcomes]
    assert (codes[0], codes[-1]) == (2, 0), "the sizes must go from too small to large enough"


def fill(disk: Path) -> Path:
    """Leave no byte; return what takes them."""
    (disk / "ballast").touch()
    with contextlib.suppress(OSError), (disk / "ballast").open("ab", buffering=0) as file:
        while file.write(bytes(4096)):
            pass
    return disk / "ballast"


@pytest.mark.lab
@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("where", ["logs", "tracking"])
def test_a_disk_that_is_full_under_a_folder_that_only_tells_costs_a_line_at_most(
    settings: list[str], whole: Path, tmp_path: Path, mount: Callable[[str, int], Path], where: str, num_ranks: int
) -> None:
    if where == "tracking":
        pytest.importorskip("tensorboard")
    (tmp_path / "run").mkdir()
    fill(mount(f"run/{where}", 8))
    done = train(num_ranks, tmp_path / "run", *settings, f"tracking.tensorboard={where == 'tracking'}")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    told = [line for line in done.stderr.splitlines() if "No space left on device" in line]
    assert len(told) == int(where == "tracking"), told
    assert all("tracking.tensorboard: failed and is no longer used" in line for line in told)
    assert weights_of(tmp_path / "run") == weights_of(whole)


@pytest.mark.lab
def test_a_temporary_folder_that_is_full_costs_nothing(
    settings: list[str], whole: Path, tmp_path: Path, mount: Callable[[str, int], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    disk = mount("temporary", 8)
    fill(disk)
    monkeypatch.setenv("TMPDIR", str(disk))
    done = train(2, tmp_path / "run", *settings)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert weights_of(tmp_path / "run") == weights_of(whole)


@pytest.mark.lab
def test_a_disk_that_is_full_under_checkpoints_keeps_the_last_one(
    settings: list[str], whole: Path, tmp_path: Path, mount: Callable[[str, int], Path]
) -> None:
    assert train(2, tmp_path / "run", *settings, "training.epochs=1").returncode == 0
    (tmp_path / "run" / "checkpoints").rename(tmp_path / "kept")
    disk = mount("run/checkpoints", 512)
    shutil.copytree(tmp_path / "kept", disk, symlinks=True, dirs_exist_ok=True)
    ballast, before = fill(disk), CheckpointStore(disk).load_latest()[0].path
    done = train(2, tmp_path / "run", "--resume", "training.epochs=2")
    assert done.returncode == 2, done.stderr
    (line,) = done.our_lines
    assert "the checkpoint cannot be written (No space left on device)" in line
    assert CheckpointStore(disk).load_latest()[0].path == before
    ballast.unlink()
    assert train(2, tmp_path / "run", "--resume", "training.epochs=2").returncode == 0
    assert weights_of(tmp_path / "run") == weights_of(whole)


def weights_of(run: Path) -> str:
    return str(json.loads((run / "run_record.json").read_text())["result"]["weights_sha256"])


def test_the_model_on_a_full_disk_is_one_line_and_no_file(mount: Callable[[str, int], Path]) -> None:
    disk = mount("disk", 64)
    with pytest.raises(OutputError, match=r"model\.pt: cannot be written \(No space left on device\)"):
        save_model(IceNet(input_size=7, hidden_size=20000), disk / "model.pt")
    assert list(disk.iterdir()) == []


@pytest.mark.lab
def test_the_process_itself_ends_with_2_and_goes_on_when_there_is_space(
    settings: list[str], whole: Path, mount: Callable[[str, int], Path]
) -> None:
    disk = mount("disk", 512)
    ballast = disk / "ballast"
    before_the_end = (path for path in whole.rglob("*") if path.suffix not in (".pt", ".html"))
    space = needed_kib(*before_the_end) + 8  # one more rank's log; the report alone is larger
    ballast.write_bytes(bytes((512 - space) * 1024))
    done: Finished = train(2, disk / "run", *settings)
    assert done.returncode == 2, done.stderr
    assert len(done.our_lines) == 1
    assert "terminate called" not in done.stderr
    assert files_that_are_half_written(disk) == []
    assert CheckpointStore(disk / "run" / "checkpoints").load_latest()[1] == []
    ballast.unlink()
    done = train(None, disk / "run", "--resume")
    assert done.returncode == 0, done.stderr
    assert (disk / "run" / "metrics.jsonl").read_text().count("\n") == 2
    shutil.rmtree(disk / "run")
