"""What carries the messages changes no bit of a result; and launches that contradict themselves end at once."""

import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import launch, losses_of, train, without_notes_on_cores

from mpitrain.train.checkpoint.format import weights_sha256
from mpitrain.train.checkpoint.store import CheckpointStore

# The eager engine: nothing is compiled first, and the messages are the same.
TINY = ("training.epochs=2", "training.global_batch_size=128", "training.engine=eager", "seed=5")
LAUNCHER_VARIABLES = re.compile(r"RANK|WORLD_SIZE|MASTER_|PMI|OMPI|SLURM|MPI_LOCAL")
SECONDS_TO_REFUSE = 60.0


@pytest.fixture(autouse=True)
def _no_launcher_variables(monkeypatch):
    """These tests set the variables of launchers themselves."""
    for name in [name for name in os.environ if LAUNCHER_VARIABLES.match(name)]:
        monkeypatch.delenv(name)


def start_by_hand(environs, *arguments):
    """Start one plain process for each environment, at once, and wait for all."""
    with ThreadPoolExecutor(len(environs)) as pool:
        return list(pool.map(lambda environ: launch(["-m", "mpitrain", *arguments], environ=environ), environs))


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def meeting_by_hand(num_ranks):
    meeting_point = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(num_ranks)}
    return [{**meeting_point, "RANK": str(rank)} for rank in range(num_ranks)]


def result_of(folder):
    checkpoint, notices = CheckpointStore(folder / "checkpoints").load_latest()
    assert notices == []
    return weights_sha256(dict(sorted(checkpoint.tensors.items()))), losses_of(folder)


@pytest.mark.lab
def test_mpi_gloo_and_ranks_started_by_hand_train_to_the_same_bits(tmp_path, small_history):
    settings = (*TINY, f"data.data_path={small_history}")
    over_mpi = train(2, tmp_path / "mpi", *settings)
    over_gloo = train(2, tmp_path / "gloo", *settings, "compute.backend=gloo")
    by_hand = start_by_hand(meeting_by_hand(2), "train", f"output.model_dir={tmp_path / 'by_hand'}", *settings)
    for done, backend in ((over_mpi, "mpi"), (over_gloo, "gloo"), (by_hand[0], "gloo")):
        assert done.returncode == 0, done.stderr
        assert f"2 ranks, backend {backend}, cpu, reduction fixed" in done.stdout
    assert by_hand[1].returncode == 0, by_hand[1].stderr
    assert by_hand[1].stdout == ""
    lines = without_notes_on_cores(line for done in by_hand for line in done.stderr.splitlines())
    assert [line for line in lines if line.startswith("note: ")] == [
        "note: 2 ranks were started by hand (RANK and WORLD_SIZE are set): they train over torch.distributed; "
        "for MPI start with mpirun or srun instead"
    ]
    expected = result_of(tmp_path / "mpi")
    assert result_of(tmp_path / "gloo") == expected
    assert result_of(tmp_path / "by_hand") == expected
    assert (tmp_path / "by_hand" / "model.pt").exists()
    assert expected[1][1] < expected[1][0], "nothing was learnt"


REFUSED = {
    "no size": ({"RANK": "0"}, ["RANK=0 without WORLD_SIZE", "unset RANK"]),
    "no rank": ({"WORLD_SIZE": "2"}, ["WORLD_SIZE=2 without RANK", "torchrun"]),
    "no meeting point": ({"RANK": "0", "WORLD_SIZE": "2"}, ["without MASTER_ADDR and MASTER_PORT"]),
    "half of Open MPI": ({"OMPI_COMM_WORLD_RANK": "0"}, ["OMPI_COMM_WORLD_RANK=0 without OMPI_COMM_WORLD_SIZE"]),
}


@pytest.mark.parametrize(("environ", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_half_set_variables_are_refused(tmp_path, environ, words):
    done = launch(["-m", "mpitrain", "train", f"output.model_dir={tmp_path / 'run'}"], environ=environ)
    assert done.returncode == 3
    assert len(done.our_lines) == 1
    assert all(word in done.our_lines[0] for word in words)
    assert not (tmp_path / "run").exists()


@pytest.mark.lab
def test_another_librarys_mpirun_is_refused_once_and_at_once(tmp_path):
    from mpi4py import MPI

    if "MPICH" not in MPI.Get_library_version():
        pytest.skip("this Python loads another library than MPICH")
    environs = [
        {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": "2",
            "PMIX_RANK": str(rank),
            "PMIX_NAMESPACE": "n@1",
        }
        for rank in range(2)
    ]
    both = start_by_hand(environs, "train", f"output.model_dir={tmp_path / 'run'}")
    assert [done.returncode for done in both] == [3, 3]
    assert [len(done.our_lines) for done in both] == [1, 0]
    assert "Open MPI's mpirun started this process: use MPICH's" in both[0].our_lines[0]
    assert "Traceback" not in both[0].stderr + both[1].stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.lab
def test_open_mpis_variables_alone_leave_no_silent_singletons(tmp_path):
    environ = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    done = launch(["-m", "mpitrain", "train", f"output.model_dir={tmp_path / 'run'}"], environ=environ)
    assert done.returncode == 3
    assert len(done.our_lines) == 1
    assert done.stderr.count("\n") == 1, "mpi4py's own warning came through"
    assert not (tmp_path / "run").exists()


@pytest.mark.lab
def test_mpi_and_variables_set_by_hand_that_contradict_it_are_refused_once(tmp_path):
    environ = {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    done = train(2, tmp_path / "run", environ=environ)
    assert done.returncode == 3
    assert done.our_lines == [
        "mpitrain: error: the launch contradicts itself: "
        "the number of ranks is 2 (MPI) and 4 (RANK and WORLD_SIZE set by hand)"
    ]
    sources = [line.split("  ")[0] for line in done.stderr.splitlines()]
    assert [source for source in sources if source in ("source", "MPI", "RANK and WORLD_SIZE set by hand")] == [
        "source",
        "MPI",
        "RANK and WORLD_SIZE set by hand",
    ]
    assert done.stderr.count("To fix it: ") == 1
    assert not (tmp_path / "run").exists()
