"""A damaged kernel in the cache is found before it is loaded, said in one line, and built anew."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from conftest import train

from mpitrain.cache import private_folder
from mpitrain.cluster.cpu import kernel_cache
from mpitrain.cluster.cpu.kernel_cache import CompilerError, compile_into, find_kernel
from mpitrain.errors import MissingDependencyError
from mpitrain.train.compiled.build import DenseNetwork, build_kernel, load_kernel

NETWORK = DenseNetwork((3, 4, 1), "tanh", "sigmoid", "mse", "float32")


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


def test_nothing_is_left_of_a_compiler_that_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch, cache = tmp_path / "scratch", tmp_path / "cache"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    interrupted = "import os, signal, tempfile; tempfile.mkstemp('.s'); os.kill(os.getpid(), signal.SIGKILL)"
    with pytest.raises(CompilerError):
        compile_into(cache / "kernel.json", [sys.executable, "-c", interrupted])
    assert not [*scratch.iterdir(), *cache.iterdir()]


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


@pytest.fixture
def private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where this user's own folder is made: a temporary folder that everybody may write to, as /tmp is."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp" / f"mpitrain-{os.getuid()}"


def built(monkeypatch: pytest.MonkeyPatch, cache: Path) -> tuple[Path, list[str]]:
    """Return the kernel that a run finds or builds with this cache, loaded too, and what was said."""
    monkeypatch.setenv("MPITRAIN_CACHE", str(cache))
    said: list[str] = []
    library = build_kernel(NETWORK, say=said.append)
    assert load_kernel(NETWORK)._name == str(library)
    return library, said


def test_a_cache_that_cannot_be_written_changes_no_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, private: Path
) -> None:
    (tmp_path / "file").touch()
    library, said = built(monkeypatch, tmp_path / "file" / "below")
    assert library.parent == private
    where = tmp_path / "file" / "below"
    assert said == [
        f"the cache of compiled steps: {where} cannot be written (Not a directory); {private} is used instead"
    ]
    again, _ = built(monkeypatch, tmp_path / "file" / "below")
    assert again == library, "built once"
    monkeypatch.setattr(kernel_cache, "private_folder", lambda: tmp_path / "file" / "neither")
    with pytest.raises(
        MissingDependencyError, match=r"stored in .*below or in \$TMPDIR \(Not a directory\); set MPITR"
    ):
        load_kernel(NETWORK)


@pytest.mark.parametrize("how", ["the folder for a group", "the folder for all", "another user's folder"])
def test_a_cache_that_others_can_write_to_is_not_looked_at(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, private: Path
) -> None:
    planted, _ = built(monkeypatch, tmp_path / "cache")
    if how == "another user's folder":
        if os.geteuid() != 0:
            pytest.skip("giving a folder away needs root")
        os.chown(tmp_path / "cache", 12345, -1)
    else:
        (tmp_path / "cache").chmod(0o775 if "group" in how else 0o1777)
    planted.unlink()  # in place, it would change what this process has loaded
    planted.write_bytes(b"code of a stranger, with its own hash in the record")
    library, said = built(monkeypatch, tmp_path / "cache")
    assert library.parent == private
    why = "belongs to another user" if "user" in how else "can be written by others"
    assert said == [f"the cache of compiled steps: {tmp_path / 'cache'} {why}; {private} is used instead"]


@pytest.mark.parametrize("how", ["for all", "another user's", "a link"])
def test_a_library_that_others_can_write_is_built_anew(
    how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, private: Path
) -> None:
    library, _ = built(monkeypatch, tmp_path / "cache")
    content = library.read_bytes()
    if how == "another user's":
        if os.geteuid() != 0:
            pytest.skip("giving a file away needs root")
        os.chown(library, 12345, -1)
    elif how == "a link":
        library.replace(tmp_path / "elsewhere.so")
        library.symlink_to(tmp_path / "elsewhere.so")
    else:
        library.chmod(0o777)
    with pytest.raises((ValueError, OSError)):
        kernel_cache.load_library(library)
    again, (line,) = built(monkeypatch, tmp_path / "cache")
    assert (again, again.read_bytes(), again.stat().st_mode & 0o777, again.stat().st_uid) == (
        library, content, 0o755, os.geteuid(),
    )  # fmt: skip
    assert line.endswith("; it is built again")


def test_a_private_folder_that_another_made_first_is_passed_by(private: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    private.symlink_to(tmp_path / "theirs")
    found = private_folder()
    assert (found != private, found.parent, found.stat().st_mode & 0o777) == (True, private.parent, 0o700)
    private.unlink()
    private.mkdir()
    private.chmod(0o777)
    assert private_folder() not in (private, found)
    private.chmod(0o700)
    assert private_folder() == private


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


@pytest.mark.lab
def test_a_run_builds_a_damaged_kernel_anew_and_says_so_once(small_history: Path, tmp_path: Path) -> None:
    cache = {"MPITRAIN_CACHE": str(tmp_path / "cache")}
    settings = [f"data.data_path={small_history}", "training.epochs=1"]
    done = train(None, tmp_path / "run-0", *settings, environ=cache)
    assert done.returncode == 0, done.stderr
    assert "built again" not in done.stderr
    (library,) = (tmp_path / "cache").glob("*.so")
    content = library.read_bytes()
    library.write_bytes(content[: len(content) // 3])  # loaded as it is, this kills the process
    for number, expected in (
        (1, [f"note: the cache of compiled steps: {library} is damaged; it is built again"]),
        (2, []),
    ):
        done = train(2, tmp_path / f"run-{number}", *settings, environ=cache)
        assert done.returncode == 0, done.stderr
        assert [line for line in done.stderr.splitlines() if "built again" in line] == expected
    assert library.read_bytes() == content


def test_each_library_is_its_own_though_descriptors_are_used_again() -> None:
    """The loader knows libraries by the spelling of their paths, and each of these is the file of one descriptor."""
    sizes = [(3, width, 1) for width in (4, 8, 16, 4)]
    kernels = [load_kernel(DenseNetwork(one, "tanh", "sigmoid", "mse", "float32")) for one in sizes]
    handles = [kernel._handle for kernel in kernels]
    assert len(set(handles[:3])) == 3
    assert handles[3] == handles[0]
