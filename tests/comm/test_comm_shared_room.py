"""Whether the memory that ranks of a node share has room: asked of this machine's own, and where there is little."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TIMEOUT_S, find_mpirun, launcher_environment

from mpitrain.comm.mpi import node_shared
from mpitrain.comm.mpi.node_shared import SHARED_MEMORY_FOLDER
from mpitrain.errors import LaunchError

pytestmark = [
    pytest.mark.skipif(not Path(SHARED_MEMORY_FOLDER).is_dir(), reason="this system keeps shared memory elsewhere"),
]


def test_more_than_there_is_is_refused_with_both_numbers() -> None:
    free = shutil.disk_usage(SHARED_MEMORY_FOLDER).free
    with pytest.raises(LaunchError, match=r"shared by the ranks of .* MB left; enlarge it") as refused:
        node_shared._check_room(2 * free + (1 << 20))
    assert SHARED_MEMORY_FOLDER in str(refused.value)


def test_what_fits_is_not_refused() -> None:
    free = shutil.disk_usage(SHARED_MEMORY_FOLDER).free
    node_shared._check_room(0)
    node_shared._check_room(free // 2)


def test_where_it_cannot_be_asked_the_library_decides(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(node_shared, "SHARED_MEMORY_FOLDER", str(tmp_path / "none"))
    node_shared._check_room(1 << 60)


def where_little_is_shared(*command: str) -> list[str]:
    """The command in a mount namespace of its own, whose shared memory is 48 MiB; skips where that cannot be."""
    mount = f'mount -t tmpfs -o size=48m tmpfs {SHARED_MEMORY_FOLDER} && exec "$@"'
    prefix = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode:
        pytest.skip("memory of its own needs root")
    return [*prefix, *command]


def test_ranks_share_what_there_is_and_are_refused_more_before_it_is_taken() -> None:
    program = Path(__file__).with_name("little_shared_memory.py")
    ranks = find_mpirun(), "-np", "2", sys.executable, "-m", "mpi4py", str(program)
    done = subprocess.run(
        where_little_is_shared(*ranks), env=launcher_environment(), capture_output=True, text=True, timeout=TIMEOUT_S,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = sorted(done.stdout.splitlines())
    refusal = re.compile(r"rank [01]: refused (\d+) MB of (\d+): .*: \1 MB shared by .* has \2 MB left; enlarge it")
    assert [lines[0], lines[2]] == [f"rank {rank}: given, its last number is 7" for rank in (0, 1)]
    assert all(map(refusal.match, (lines[1], lines[3]))), lines
