"""A checkpoint is whole or refused, whatever happens to the process, the disk or a single bit."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from conftest import launcher_environment

from mpitrain.errors import CheckpointError, OutputError
from mpitrain.models.files.named_tensors import dtype_name
from mpitrain.train.checkpoint.format import COMMIT, MANIFEST, TENSORS
from mpitrain.train.checkpoint.manifest import _NEEDED, check_whole
from mpitrain.train.checkpoint.store import CheckpointStore, load_checkpoint

STATE = {"epoch": 3, "train_loss": 0.1 + 0.2, "best_loss": 5e-324, "best_epoch": None, "stopped_early": False}
SETTINGS = {"seed": 0, "model.name": "icenet", "training.global_batch_size": "full"}


def some_tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """Every kind of number that a training saves, with the values that a text or a conversion would lose."""
    generator = torch.Generator().manual_seed(seed)
    special = torch.tensor([-0.0, 0.0, torch.inf, -torch.inf, torch.nan, 1e-45, 3.4e38])
    return {
        "model.fc1.weight": torch.randn(16, 7, generator=generator),
        "model.fc1.bias": special,
        "optimizer.fc1.weight.step": torch.tensor(12.0),
        "epoch_loss_sums": torch.randn(8, generator=generator, dtype=torch.float64),
        "order": torch.arange(5),
        "empty": torch.zeros(0, 3),
        "best.fc1.weight": torch.randn(7, 16, generator=generator).t(),
    }


def assert_same_bits(found: dict[str, Any], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].shape, dtype_name(found[name])) == (tensor.shape, str(tensor.dtype))
        assert found[name].tobytes() == tensor.contiguous().numpy().tobytes(), name


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


def test_what_was_saved_is_loaded_bit_for_bit(store: CheckpointStore) -> None:
    path = store.save(some_tensors(), STATE, SETTINGS, step=24)
    loaded, notices = store.load_latest()
    assert_same_bits(loaded.tensors, some_tensors())
    assert (loaded.state, loaded.settings, loaded.path, notices) == (STATE, SETTINGS, path, [])


def test_one_flipped_bit_anywhere_is_refused(store: CheckpointStore, request: pytest.FixtureRequest) -> None:
    path = store.save(some_tensors(), STATE, SETTINGS, step=1)
    draw = random.Random(1)
    for number in range(1000 if request.config.getoption("--full") else 50):
        file = path / (TENSORS, MANIFEST, COMMIT)[number % 3]
        whole = file.read_bytes()
        position, bit = draw.randrange(len(whole)), draw.randrange(8)
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="step-00000001: damaged"):
            load_checkpoint(path)
        file.write_bytes(whole)
    assert_same_bits(load_checkpoint(path).tensors, some_tensors())


@pytest.mark.parametrize("name", [TENSORS, MANIFEST, COMMIT])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_file_cut_short_or_lengthened_is_refused(store: CheckpointStore, name: str, kept: float) -> None:
    path = store.save(some_tensors(), STATE, SETTINGS, step=1)
    whole = (path / name).read_bytes()
    for content in (whole[: int(len(whole) * kept)], whole + b"\n"):
        (path / name).write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged"):
            load_checkpoint(path)


def test_a_tensor_that_was_never_saved_is_refused(store: CheckpointStore) -> None:
    path = store.save(some_tensors(), STATE, SETTINGS, step=1)
    more = {name: tensor.contiguous() for name, tensor in some_tensors().items()} | {"best.fc2.bias": torch.ones(1)}
    (path / TENSORS).write_bytes(safetensors.torch.save(more))
    with pytest.raises(CheckpointError, match=r"damaged \(tensors\.safetensors is not as it was written\)"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("name", "what"), [(TENSORS, "cannot be read"), (MANIFEST, "cannot be read"), (COMMIT, "was never finished")]
)
def test_a_missing_file_is_named(store: CheckpointStore, name: str, what: str) -> None:
    path = store.save(some_tensors(), STATE, SETTINGS, step=1)
    (path / name).unlink()
    with pytest.raises(CheckpointError, match=rf"step-00000001: the checkpoint {what} \({name}: No such file"):
        load_checkpoint(path)


def test_the_newest_three_and_the_best_are_kept(store: CheckpointStore, tmp_path: Path) -> None:
    for step in range(1, 7):
        store.save(some_tensors(step), STATE, SETTINGS, step)
        if step % 2:
            store.save(some_tensors(step), STATE, SETTINGS, step, "best")
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["best", "best-00000005", "latest", "step-00000004", "step-00000005", "step-00000006"]
    links = {name: (tmp_path / "checkpoints" / name).resolve().name for name in ("latest", "best")}
    assert links == {"latest": "step-00000006", "best": "best-00000005"}


def test_step_numbers_are_ordered_as_numbers(store: CheckpointStore) -> None:
    for step in (99_999_998, 99_999_999, 100_000_000, 100_000_001):
        store.save(some_tensors(step), {"global_step": step}, SETTINGS, step)
    assert store.load_latest()[0].state == {"global_step": 100_000_001}


def test_a_committed_step_is_never_written_again(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    path = store.save(some_tensors(1), STATE, SETTINGS, step=4)

    def killed(*_: object) -> None:
        raise RuntimeError("killed at the last moment of a save, when what it replaces is gone")

    monkeypatch.setattr("mpitrain.train.checkpoint.store.write_durably", killed)
    assert store.save(some_tensors(2), STATE, SETTINGS, step=4) == path
    assert_same_bits(store.load_latest()[0].tensors, some_tensors(1))


@pytest.mark.parametrize("damage", [COMMIT, MANIFEST, TENSORS])
def test_a_step_that_is_not_whole_is_written_again(store: CheckpointStore, damage: str) -> None:
    path = store.save(some_tensors(1), STATE, SETTINGS, step=4)
    (path / damage).write_bytes((path / damage).read_bytes()[:-2])
    store.save(some_tensors(2), STATE, SETTINGS, step=4)
    assert_same_bits(store.load_latest()[0].tensors, some_tensors(2))


def test_a_step_that_is_found_is_on_the_disk_before_the_save_returns(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who wrote it may have been killed before the disk had it."""
    path = store.save(some_tensors(), STATE, SETTINGS, step=24)
    synced: list[Path] = []
    for name in ("sync_file", "sync_folder"):
        monkeypatch.setattr(f"mpitrain.train.checkpoint.store.{name}", synced.append)
    store.save(some_tensors(), STATE, SETTINGS, step=24)
    assert synced == [path / TENSORS, path / MANIFEST, path / COMMIT, path, path.parent]


def test_each_part_is_on_the_disk_before_the_name_that_promises_it(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut a rename may be there without what was not synced before it: the order of the system calls."""
    calls: list[tuple[str, str]] = []

    def called(verb: str, path: str | Path) -> None:
        calls.append((verb, re.sub(r"\.\d+[-\w]*\.partial$", ".partial", Path(path).name)))

    fsync, rename, replace = os.fsync, os.rename, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (fsync(file), called("sync", os.readlink(f"/proc/self/fd/{file}"))))
    monkeypatch.setattr(os, "rename", lambda old, new: (rename(old, new), called("name", new)))
    monkeypatch.setattr(os, "replace", lambda old, new: (replace(old, new), called("name", new)))
    path = store.save(some_tensors(), STATE, SETTINGS, step=24)
    assert calls[: calls.index(("sync", path.name)) + 1] == [
        ("sync", TENSORS),
        ("sync", MANIFEST),
        ("sync", f".{path.name}.partial"),
        ("name", path.name),
        ("sync", path.parent.name),
        ("sync", f".{COMMIT}.partial"),
        ("name", COMMIT),
        ("sync", path.name),
    ]


def test_what_a_save_had_left_to_do_when_it_was_killed_is_done(store: CheckpointStore) -> None:
    for step in (1, 2, 3):
        store.save(some_tensors(), STATE, SETTINGS, step)
    folder = store.save(some_tensors(), STATE, SETTINGS, step=4).parent
    shutil.copytree(folder / "step-00000004", folder / "step-00000001")  # not yet removed
    (folder / "latest").unlink()
    (folder / "latest").symlink_to("step-00000003")
    (folder / ".latest.7.partial").symlink_to("step-00000004")
    store.save(some_tensors(), STATE, SETTINGS, step=4)
    assert (folder / "latest").readlink() == Path("step-00000004")
    assert sorted(path.name for path in folder.iterdir()) == ["latest", *(f"step-0000000{step}" for step in (2, 3, 4))]


def test_a_folder_that_only_looks_like_a_checkpoint_is_none(store: CheckpointStore) -> None:
    path = store.save(some_tensors(1), STATE, SETTINGS, step=4)
    shutil.copytree(path, path.with_name("step-backup-of-mine"))
    shutil.copytree(path, path.with_name("step-00000009-old"))
    assert store.load_latest()[0].path == path
    for step in (5, 6, 7):
        store.save(some_tensors(1), STATE, SETTINGS, step)
    assert path.with_name("step-backup-of-mine").is_dir()  # nor is it pruned


def test_what_a_killed_save_left_behind_is_ignored_and_cleared(store: CheckpointStore, tmp_path: Path) -> None:
    store.save(some_tensors(1), STATE, SETTINGS, step=4)
    # In a container a restarted process often has the number of the one that was killed.
    leftovers = [tmp_path / "checkpoints" / f".step-00000008.{number}.partial" for number in (1, os.getpid())]
    for leftover in leftovers:
        leftover.mkdir()
        (leftover / TENSORS).write_bytes(b"half")
    loaded, notices = store.load_latest()
    assert (loaded.path.name, notices) == ("step-00000004", [])
    store.save(some_tensors(2), STATE, SETTINGS, step=8)
    assert_same_bits(store.load_latest()[0].tensors, some_tensors(2))
    assert not any(leftover.exists() for leftover in leftovers)


def test_loading_falls_back_past_damaged_ones_and_says_so(store: CheckpointStore) -> None:
    paths = [store.save(some_tensors(step), STATE, SETTINGS, step) for step in (1, 2, 3)]
    (paths[2] / COMMIT).unlink()
    (paths[1] / TENSORS).write_bytes((paths[1] / TENSORS).read_bytes()[:-1])
    loaded, notices = store.load_latest()
    assert_same_bits(loaded.tensors, some_tensors(1))
    assert [notice.split(": ")[0] for notice in notices] == [str(paths[2]), str(paths[1])]
    assert all(notice.endswith("; falling back to the one before") and "\n" not in notice for notice in notices)
    (paths[0] / MANIFEST).write_bytes(b"{}")
    with pytest.raises(CheckpointError, match=r"step-00000003: .*no older one can be used: start again with"):
        store.load_latest()


def test_a_folder_without_a_checkpoint_says_what_to_do(store: CheckpointStore) -> None:
    with pytest.raises(CheckpointError, match="holds no checkpoint to resume from; start without --resume"):
        store.load_latest()


# The tensors of step s hold the number s and nothing else: a mixture of two checkpoints shows at once.
ENDLESS_SAVING = """
import sys, torch
from pathlib import Path
from mpitrain.train.checkpoint.store import CheckpointStore
store, start = CheckpointStore(Path(sys.argv[1])), int(sys.argv[2])
print("ready", flush=True)
for step in range(start, start + 1000):
    for _ in range(2):  # the second time it is replaced, as by a run that is resumed and stops at once
        store.save({"model.weight": torch.full((512, 1024), float(step))}, {"global_step": step}, {}, step)
"""


@pytest.mark.lab
@pytest.mark.slow
def test_kill_9_while_saving_never_leaves_garbage(tmp_path: Path, tries: Callable[[int], int]) -> None:
    folder, draw = tmp_path / "checkpoints", random.Random(2)
    CheckpointStore(folder).save({"model.weight": torch.zeros(512, 1024)}, {"global_step": 0}, {}, 0)
    newest = 0
    for _ in range(tries(20)):
        newest = _kill_while_saving(folder, newest, delay_s=draw.uniform(0.02, 0.25))
    assert newest > 0


def _kill_while_saving(folder: Path, newest_before: int, delay_s: float) -> int:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS_SAVING, str(folder), str(newest_before + 1)],
        stdout=subprocess.PIPE, env=launcher_environment(), text=True,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    loaded, notices = CheckpointStore(folder).load_latest()
    step = loaded.state["global_step"]
    assert loaded.path.name == f"step-{step:08d}"
    assert (loaded.tensors["model.weight"] == np.full((512, 1024), float(step))).all()
    assert len(notices) <= 1  # at most the one that was being written is lost
    assert step >= newest_before - 1
    return step


FULL_DISK_MIB = 4


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={FULL_DISK_MIB}m", "none", str(disk)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_reported_and_older_checkpoints_still_load(small_disk: Path) -> None:
    store = CheckpointStore(small_disk / "checkpoints")
    tensors = {"model.weight": torch.ones(256, 1024)}  # 1 MiB
    store.save(tensors, {"global_step": 1}, {}, 1)
    with pytest.raises(OutputError, match=r"step-00000002: .*cannot be written \(No space left on device\); check"):
        store.save({"model.weight": torch.zeros(1024, 1024)}, {"global_step": 2}, {}, 2)
    assert store.load_latest()[0].state == {"global_step": 1}
    # What was half written is gone: there is space for a smaller one.
    store.save(tensors, {"global_step": 3}, {}, 3)
    assert store.load_latest()[0].state == {"global_step": 3}


def test_a_file_size_limit_is_reported_and_older_checkpoints_still_load(store: CheckpointStore) -> None:
    store.save(some_tensors(), STATE, SETTINGS, step=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, hard))
    try:
        with pytest.raises(OutputError, match=r"step-00000002: .*cannot be written \(File too large\)"):
            store.save({"model.weight": torch.zeros(1024, 1024)}, STATE, SETTINGS, step=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    loaded, notices = store.load_latest()
    assert (loaded.path.name, notices) == ("step-00000001", [])


def test_a_manifest_without_what_going_on_needs_is_named_by_what_it_lacks(tmp_path: Path) -> None:
    settings = dict.fromkeys(_NEEDED)
    check_whole(tmp_path, {"global_step": 3}, settings)
    with pytest.raises(CheckpointError, match="lacks 'global_step'"):
        check_whole(tmp_path, {}, settings)
    for name in _NEEDED:
        lacking = {key: value for key, value in settings.items() if key != name}
        with pytest.raises(CheckpointError, match=f"lacks '{name}'"):
            check_whole(tmp_path, {"global_step": 3}, lacking)
