"""Restart files of a trainer that another made, hash and all: refused before anything beyond the memory is read."""

from __future__ import annotations

import hashlib
import os
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PROJECT, TIMEOUT_S, launch

from mpitrain.native.toolchain import find_next_to_python

PROGRAM = Path(__file__).parent / "programs" / "trainer_restarts.c"
# The sanitizer ends the program at the first byte that is not its own.
STRICT = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover"]
MAGIC, DIGITS = len(b"mpitrain trainer 1\n"), 64
RECORD = 8 + 8 + 10 * 4  # step, cell; 9 inputs and a target
REFUSED = "-4"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trainer")
    settings = "model: {name: mlp, hidden_size: 4, hidden_layers: 1}\ntraining: {global_batch_size: 32, epochs: 5}\n"
    (folder / "run.yaml").write_text(settings)
    shutil.copy(PROJECT / "jobs" / "collection" / "collect.yaml", folder)
    words = ["export", "run.yaml", "--format", "trainer", "--collection", "collect.yaml", "--output", "small.cpp"]
    done = launch(["-m", "mpitrain", *words], cwd=folder)
    assert done.returncode == 0, done.stderr
    compilers = [str(find_next_to_python(name)) for name in ("mpicxx", "mpicc")]
    exact = ["-std=c++17", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
    subprocess.run([compilers[0], *STRICT, *exact, "-c", "small.cpp"], check=True, cwd=folder)
    subprocess.run([compilers[1], *STRICT, "-I.", "-c", PROGRAM, "-o", "main.o"], check=True, cwd=folder)
    subprocess.run([compilers[0], *STRICT, "main.o", "small.o", "-o", "restarts"], check=True, cwd=folder)
    assert said(folder, "write", "whole") == "0"
    assert said(folder, "read", "whole") == "0"
    return folder


def said(folder: Path, *words: str) -> str:
    """Return the status that the program prints."""
    environ = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}  # MPI's own
    command = ["./restarts", *words]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[:2000]
    return done.stdout.split()[0]


def with_its_hash(file: bytes, change: Callable[[bytes], bytes]) -> bytes:
    content = change(file[MAGIC + DIGITS : -DIGITS])
    return file[: MAGIC + DIGITS] + content + hashlib.sha256(content).hexdigest().encode()


def place_of_progress(content: bytes) -> int:
    (count,) = struct.unpack_from("<Q", content, 4)
    return 12 + count * RECORD


def number(place: int, value: int) -> Callable[[bytes], bytes]:
    """Another number of the progress: epoch, step of it, step of all, best epoch."""

    def change(content: bytes) -> bytes:
        start = place_of_progress(content) + 8 * place
        return content[:start] + struct.pack("<q", value) + content[start + 8 :]

    return change


def few_best(content: bytes) -> bytes:
    """One best weight, where the network has many."""
    place = place_of_progress(content) + 9 * 8 + 4
    for _ in range(3):
        (count,) = struct.unpack_from("<Q", content, place)
        place += 8 + 4 * count
    (count,) = struct.unpack_from("<Q", content, place)
    return content[:place] + struct.pack("<Qf", 1, 0.5) + content[place + 8 + 4 * count :]


HOSTILE: dict[str, Callable[[bytes], bytes]] = {
    **{f"epoch {value}": number(0, value) for value in (-1, 6, 2**40, -(2**62))},
    **{f"step {value}": number(1, value) for value in (-1, 10**6, 2**62)},
    "another best epoch": number(3, 4),
    "few best weights": few_best,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_with_a_hash_of_its_own_is_refused(folder: Path, name: str) -> None:
    whole = (folder / "whole").read_bytes()
    assert with_its_hash(whole, lambda content: content) == whole
    hostile = with_its_hash(whole, HOSTILE[name])
    assert hostile != whole
    (folder / "hostile").write_bytes(hostile)
    assert said(folder, "read", "hostile") == REFUSED


def test_a_file_cut_anywhere_is_refused(folder: Path) -> None:
    whole = (folder / "whole").read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 12)):
        (folder / "cut").write_bytes(whole[:length])
        assert said(folder, "read", "cut") == REFUSED
        if length > MAGIC + 3 * DIGITS:
            (folder / "cut").write_bytes(with_its_hash(whole[:length], lambda content: content))
            assert said(folder, "read", "cut") == REFUSED


def test_a_device_stays_and_null_pointers_are_said(folder: Path) -> None:
    assert said(folder, "write", "/dev/full") == "-4"
    assert Path("/dev/full").is_char_device()
    assert said(folder, "null", "") == "-2"


def test_a_link_in_the_place_of_the_temporary_file_is_not_followed(folder: Path) -> None:
    (folder / "notes").write_text("mine")
    (folder / "linked.partial").symlink_to(folder / "notes")
    assert said(folder, "write", "linked") == "0"
    assert (folder / "notes").read_text() == "mine"
    assert not (folder / "linked").is_symlink()
    assert said(folder, "read", "linked") == "0"  # not the bytes of `whole`: epochs have times of their own
