"""A damaged kernel in the cache is found before it is loaded, said in one line, and built anew."""

from __future__ import annotations

import json
import random
import resource
import signal
from pathlib import Path

import pytest
import torch
from conftest import train

from mpitrain.cluster.cpu.kernel_cache import find_kernel
from mpitrain.errors import MissingDependencyError
from mpitrain.train.compiled.build import DenseNetwork, build_kernel, load_kernel

NETWORK = DenseNetwork((3, 4, 1), "tanh", "sigmoid", "mse", torch.float32)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A kernel that was built once, and its record."""
    folder = tmp_path_factory.mktemp("kernels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MPITRAIN_CACHE", str(folder))
        library = build_kernel(NETWORK)
    (record,) = folder.glob("*.json")
    return library, record


def test_a_library_cut_short_or_changed_anywhere_is_refused(whole: tuple[Path, Path]) -> None:
    library, record = whole
    content, draw = library.read_bytes(), random.Random(1)
    lengths = [0, 1, 63, 64, 4095, 4096, len(content) - 1, *(draw.randrange(len(content)) for _ in range(200))]
    damaged = [content[:length] for length in lengths] + [content + b"\0", bytes(len(content))]
    for _ in range(200):
        flipped = bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        damaged.append(bytes(flipped))
    for bad in damaged:
        library.write_bytes(bad)
        with pytest.raises(ValueError, match=r"\.so is damaged"):
            find_kernel(record)
    library.write_bytes(content)
    assert find_kernel(record) == library


def test_a_record_changed_anywhere_never_leads_to_other_bytes(whole: tuple[Path, Path]) -> None:
    library, record = whole
    content = record.read_bytes()
    for position in range(len(content)):
        for bit in range(position % 4, 8, 4):
            flipped = bytearray(content)
            flipped[position] ^= 1 << bit
            record.write_bytes(bytes(flipped))
            try:
                assert find_kernel(record) == library  # white space, or another letter of the same meaning
            except ValueError as error:
                assert str(record.parent) in str(error)  # noqa: PT017 - both ends are right
    for other in (
        b"",
        b"[]",
        b"{}",
        b'{"library": 3, "sha256": ""}',
        json.dumps({"library": "../x", "sha256": ""}).encode(),
    ):
        record.write_bytes(other)
        with pytest.raises(ValueError, match=r"damaged|cannot be read"):
            find_kernel(record)
    record.write_bytes(content)


def test_a_missing_record_is_no_damage_and_a_missing_library_is(whole: tuple[Path, Path]) -> None:
    library, record = whole
    assert find_kernel(record.with_name("none.json")) is None
    content = library.read_bytes()
    library.unlink()
    with pytest.raises(ValueError, match=r"\.so cannot be read \(No such file"):
        find_kernel(record)
    library.write_bytes(content)


def test_a_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MPITRAIN_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(MissingDependencyError, match=r"stored in .*below \(Not a directory\); set MPITRAIN_CACHE"):
        load_kernel(NETWORK)


def test_a_compiler_that_finds_no_space_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MPITRAIN_CACHE", str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        with pytest.raises(MissingDependencyError, match="could not build the compiled step"):
            load_kernel(NETWORK)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.mpi(ranks=2)
def test_a_run_builds_a_damaged_kernel_anew_and_says_so_once(small_history: Path, tmp_path: Path) -> None:
    cache = {"MPITRAIN_CACHE": str(tmp_path / "cache")}
    settings = [f"data.data_path={small_history}", "training.epochs=1"]
    done = train(None, tmp_path / "run-0", *settings, environ=cache)
    assert done.returncode == 0, done.stderr
    assert "built anew" not in done.stderr
    (library,) = (tmp_path / "cache").glob("*.so")
    content = library.read_bytes()
    library.write_bytes(content[: len(content) // 3])  # loaded as it is, this kills the process
    for number, expected in (
        (1, [f"note: the cache of compiled steps: {library} is damaged; it is built anew"]),
        (2, []),
    ):
        done = train(2, tmp_path / f"run-{number}", *settings, environ=cache)
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stderr.splitlines() if "built anew" in line] == expected
    assert library.read_bytes() == content
