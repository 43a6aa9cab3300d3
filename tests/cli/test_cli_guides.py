"""Commands of other trainers' guides that only real processes can answer: several ranks, ports, exported variables."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TESTS, TIMEOUT_S, Finished, launch, launcher_environment
from guides import Names, cases_of

# Of the launchers' variables, whatever started these tests.
_LAUNCHERS = re.compile(r"(RANK|WORLD_SIZE|LOCAL_RANK|MASTER_|PMI|OMPI|SLURM|PBS|MPI_LOCAL).*")
TRAINING = (
    "import os, sys; from mpitrain.cli.main import main; "
    "sys.exit(main([word.format(**os.environ) for word in sys.argv[1:]]))"
)
SMALL = ["training.epochs=1", "model.name=mlp", "model.hidden_layers=1", "model.hidden_size=3"]


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in filter(_LAUNCHERS.fullmatch, list(os.environ)):
        monkeypatch.delenv(name)


def mpich_only() -> None:
    from mpi4py import MPI

    if "MPICH" not in MPI.Get_library_version():
        pytest.skip("its mpirun tells ranks by other variables")


def test_numbers_that_a_guide_passes_on_agree_and_nccl_s_time_limit_is_answered_once(
    tmp_path: Path, small_history: Path
) -> None:
    """As `--world-size $SLURM_NTASKS --local-rank $SLURM_LOCALID` after srun, and `export NCCL_TIMEOUT=1800` before."""
    mpich_only()
    flags = ["--world-size", "{PMI_SIZE}", "--rank", "{PMI_RANK}", "--local-rank", "{MPI_LOCALRANKID}"]
    words = ["train", *flags, f"data.data_path={small_history}", f"output.model_dir={tmp_path / 'run'}", *SMALL]
    done = launch(["-c", TRAINING, *words], 2, environ={"NCCL_TIMEOUT": "1800"})
    assert done.returncode == 0, done.stderr
    notes = [line for line in done.stderr.splitlines() if "NCCL_TIMEOUT" in line]
    assert notes == ["note: NCCL_TIMEOUT=1800: not read by a run; set distributed.timeout_s=1800"]


def test_one_number_that_disagrees_ends_all_ranks_with_one_line(tmp_path: Path) -> None:
    mpich_only()
    words = ["train", "--local-rank", "{PMI_SIZE}", f"output.model_dir={tmp_path / 'run'}", *SMALL]
    done = launch(["-c", TRAINING, *words], 2)
    assert (done.returncode, len(done.our_lines)) == (3, 1), done.stderr
    assert re.search(r"--local-rank 2: it is [01] ", done.our_lines[0])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("variables", "outcome"), cases_of("starts"))
def test_a_start_that_its_variables_contradict(variables: str, outcome: Names, tmp_path: Path) -> None:
    environ = dict(word.split("=") for word in variables.split())
    words = ["-m", "mpitrain", "train", f"output.model_dir={tmp_path / 'run'}", *SMALL]
    done = launch(words, cwd=TESTS / "cluster", environ=environ)
    assert (done.returncode, len(done.stderr.splitlines())) == (outcome.code, 1), done.stderr
    assert outcome.words in done.our_lines[0]
    assert not (tmp_path / "run").exists()


def test_a_server_on_the_port_of_the_ranks_is_the_one_fault_that_is_named(tmp_path: Path) -> None:
    """Of ranks started by hand rank 0 says so, and the others, which reached the stranger's server, add nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = str(server.getsockname()[1])
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
        ranks = [started_by_hand(tmp_path, {**meeting, "RANK": number, "LOCAL_RANK": number}) for number in "01"]
        ends = [ended(rank) for rank in ranks]
    assert [end.returncode for end in ends] == [3, 3]
    (line,) = (line for end in ends for line in end.our_lines)
    assert line == (
        f"mpitrain: error: rank 0 cannot listen at 127.0.0.1:{port} (Address already in use); set MASTER_ADDR to an "
        "address of rank 0's host and MASTER_PORT to a free port there"
    )
    assert [rank.pid for rank in ranks if list(Path("/dev/shm").glob(f"mpich_shm_{rank.pid:x}_*"))] == []
    assert not (tmp_path / "run").exists()


def started_by_hand(folder: Path, environ: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mpitrain", "train", f"output.model_dir={folder / 'run'}", *SMALL],
        env={**launcher_environment(), **environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def ended(rank: subprocess.Popen[str]) -> Finished:
    output, errors = rank.communicate(timeout=TIMEOUT_S)
    return Finished(rank.returncode, output, errors)


def test_the_latest_file_of_another_trainer_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "model_latest.pt").write_bytes(b"PK\x03\x04")
    done = launch(["-m", "mpitrain", "train", "--resume", "model_latest.pt"], cwd=tmp_path)
    assert (done.returncode, len(done.our_lines)) == (2, 1), done.stderr
    assert done.our_lines[0] == (
        "mpitrain: error: --resume model_latest.pt: is a file; checkpoints of mpitrain are folders, and those of other "
        "programs cannot be resumed; give --resume FOLDER of a run, or start from the weights of a model.pt with "
        "model.initial_weights=FILE"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model_latest.pt"]
