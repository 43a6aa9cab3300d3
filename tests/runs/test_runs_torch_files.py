"""`model.pt` of a run whose ranks need no torch: a process of its own writes it while the page is drawn."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import launch, launcher_environment

from mpitrain.models.files.torch_files import TorchFilesWriter, torch_files_writer

FILES = ("model.pt", "normalization.model.pt")
# Runs the command, then says whether this process has loaded torch; LATE is what the writer finds in its way.
WATCHED = """
import sys
from mpitrain.cli.main import main
from mpitrain.models.files import torch_files
own = torch_files.TorchFilesWriter.__init__
def late(self, *paths):
    own(self, *paths)
    {late}
torch_files.TorchFilesWriter.__init__ = late
code = main()
print("a rank has loaded torch:", "torch" in sys.modules, file=sys.stderr)
sys.exit(code)
"""

WRITE = """
import sys
from pathlib import Path
from mpitrain.models.files.own_file import read_own_model
from mpitrain.models.files.torch_files import write_torch_files
stored = read_own_model(Path(sys.argv[1]))
write_torch_files(stored.model, Path(sys.argv[2]), stored.description)
"""


def trained(folder: Path, history: Path, late: str = "pass", num_ranks: int | None = None) -> tuple[Path, int]:
    """Train; return the run folder and how many ranks have loaded torch."""
    script = folder / "watched.py"
    script.write_text(WATCHED.format(late=late))
    done = launch([str(script), "--data", str(history), "--epochs", "1", "--output", str(folder / "run")], num_ranks)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("a rank has loaded torch:") == (num_ranks or 1)
    return folder / "run", done.stderr.count("a rank has loaded torch: True")


def parts(folder: Path) -> dict[str, list[bytes]]:
    """The lines of both files' parts, sorted: torch writes a layer's constants in the order of a set."""
    found = {}
    for file in FILES:
        with zipfile.ZipFile(folder / file) as archive:
            names = [name for name in archive.namelist() if not name.endswith("serialization_id")]
            found |= {f"{file}: {name}": sorted(archive.read(name).splitlines()) for name in names}
    return found


def parts_written_at_once(run: Path, folder: Path) -> dict[str, list[bytes]]:
    """The same of the files that a process which does nothing else writes from the run's own file.

    torch numbers the types that it has compiled in a process: what this one writes holds other names.
    """
    folder.mkdir()
    done = launch(["-c", WRITE, str(run / "model.safetensors"), str(folder / "model.pt")])
    assert done.returncode == 0, done.stderr
    return parts(folder)


@pytest.mark.parametrize("num_ranks", [None, 3])
def test_no_rank_loads_torch_and_the_files_are_those_it_would_write(
    tmp_path: Path, small_history: Path, num_ranks: int | None
) -> None:
    run, num_loaded = trained(tmp_path, small_history, num_ranks=num_ranks)
    assert num_loaded == int(num_ranks is None and len(os.sched_getaffinity(0)) == 1)  # no core is free for a process
    assert parts(run) == parts_written_at_once(run, tmp_path / "again")


@pytest.mark.lab
@pytest.mark.parametrize(("num_ranks", "by_block"), [(2, "1"), (3, "1"), (3, "0")])
def test_nodes_of_one_and_of_several_ranks_do_the_same(
    tmp_path: Path, small_history: Path, num_ranks: int, by_block: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the ranks were on two nodes, for MPICH.
    for name, value in (("NUM_CLIQUES", "2"), ("CLIQUES_BY_BLOCK", by_block), ("ENABLE_HEAVY_YIELD", "1")):
        monkeypatch.setenv(f"MPIR_CVAR_{name}", value)
    run, _ = trained(tmp_path, small_history, num_ranks=num_ranks)
    assert f"{num_ranks} ranks on 2 nodes" in (run / "logs" / "rank-0000.log").read_text()
    assert parts(run) == parts_written_at_once(run, tmp_path / "again")


@pytest.mark.parametrize("num_ranks", [None, 2])
def test_where_the_process_is_killed_the_rank_writes_the_files(
    tmp_path: Path, small_history: Path, num_ranks: int | None
) -> None:
    run, num_loaded = trained(tmp_path, small_history, "self._process.kill()", num_ranks)
    assert num_loaded == 1
    assert parts(run) == parts_written_at_once(run, tmp_path / "again")


def test_the_process_ends_with_the_rank_and_writes_nothing(tmp_path: Path, small_history: Path) -> None:
    (tmp_path / "trained").mkdir()
    run, _ = trained(tmp_path / "trained", small_history)
    path = tmp_path / "model.pt"
    program = (
        "import sys\nfrom pathlib import Path\nfrom mpitrain.models.files.torch_files import TorchFilesWriter\n"
        "writer = TorchFilesWriter(Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(writer._process.pid, flush=True)\nsys.stdin.read()\n"
    )
    words = [sys.executable, "-c", program, str(run / "model.safetensors"), str(path)]
    with subprocess.Popen(
        words, env=launcher_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as rank:
        assert rank.stdout is not None
        writer = os.pidfd_open(int(rank.stdout.readline()))
        rank.send_signal(signal.SIGKILL)
    # A pidfd is readable once its process has ended.
    assert select.select([writer], [], [], 120)[0], "the process stayed"
    os.close(writer)
    assert not path.exists()


def test_a_file_that_is_no_model_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"no model")
    assert not TorchFilesWriter(tmp_path / "own", tmp_path / "model.pt").has_written()


def test_where_no_process_can_be_started_none_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with torch_files_writer(tmp_path / "own", tmp_path / "model.pt") as writer:
        assert writer is None
