"""Launches as they are really seen: good ones with the decision, wrong ones with the fix."""

from pathlib import Path

import pytest

from mpitrain.cluster.rank_info import RankClaim
from mpitrain.cluster.reconcile import reconcile
from mpitrain.errors import LaunchError

MPICH = "MPICH Version:      5.0.2"
OPEN_MPI = "Open MPI v5.0.11, package: Open MPI user@localhost Distribution"
INTEL = "Intel(R) MPI Library 2021.11 for Linux* OS"


def ranks(rank, size):
    return RankClaim("MPI", rank, size, variables=("MPI_COMM_WORLD",))


def hydra(rank, size):
    return {
        "HYDI_CONTROL_FD": "7",
        "MPI_LOCALNRANKS": str(size),
        "MPI_LOCALRANKID": str(rank),
        "PMI_FD": "9",
        "PMI_HOSTNAME": "n1",
        "PMI_RANK": str(rank),
        "PMI_SIZE": str(size),
    }


def open_mpi(rank, size):
    return {
        "OMPI_COMM_WORLD_LOCAL_RANK": str(rank),
        "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
        "OMPI_COMM_WORLD_NODE_RANK": str(rank),
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": str(size),
        "PMIX_NAMESPACE": "prterun-n1-5033@1",
        "PMIX_RANK": str(rank),
        "PMIX_SERVER_URI2": "prterun-n1-5033@0.0;tcp4://127.0.0.1:55979",
    }


def step(rank, size, per_node="", node=0):
    num_nodes = len(per_node.split(",")) if per_node else 1
    return {
        "SLURM_JOB_ID": "42",
        "SLURM_LOCALID": "0",
        "SLURM_NODEID": str(node),
        "SLURM_NTASKS": str(size),
        "SLURM_PROCID": str(rank),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "n[1-2]",
        "SLURM_STEP_NUM_NODES": str(num_nodes),
        "SLURM_STEP_NUM_TASKS": str(size),
        "SLURM_STEP_TASKS_PER_NODE": per_node or str(size),
    }


def pmi2(rank, size):
    return {"PMI_FD": "15", "PMI_JOBID": "42.0", "PMI_RANK": str(rank), "PMI_SIZE": str(size)}


def pmix(rank):
    return {"PMIX_NAMESPACE": "slurm.pmix.42.0", "PMIX_RANK": str(rank), "SLURM_MPI_TYPE": "pmix"}


def torchrun(rank, size, local=None, agents=1):
    return {
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": str(agents),
        "LOCAL_RANK": str(rank if local is None else local),
        "LOCAL_WORLD_SIZE": str(size // agents),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": "33857",
        "RANK": str(rank),
        "TORCHELASTIC_RUN_ID": "90d53753",
        "WORLD_SIZE": str(size),
    }


BATCH = {"SLURM_JOB_ID": "42", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}
FOUR_SLOTS = str(Path(__file__).with_name("four_slots"))
PBS = {"PBS_JOBID": "9.server", "PBS_NODEFILE": "/var/spool/aux/9.server", "PBS_TASKNUM": "1"}
FLUX = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_NNODES": "1", "PMI_FD": "3"}
BY_HAND = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "n1", "MASTER_PORT": "29500"}
SHELL = {**step(0, 1), "SLURM_STEP_ID": "4294967290", "SLURM_PTY_PORT": "42169", **pmix(0)}

# name: MPI's (rank, size) or None, library, environment, transport, (rank, world_size), notices
GOOD = {
    "laptop, MPI singleton": ((0, 1), MPICH, {}, "mpi", (0, 1), 0),
    "laptop, no MPI": (None, "", {}, "torch", (0, 1), 0),
    "mpirun, MPICH": ((1, 2), MPICH, hydra(1, 2), "mpi", (1, 2), 0),
    "mpirun, MPICH, one rank": ((0, 1), MPICH, hydra(0, 1), "mpi", (0, 1), 0),
    "mpirun, Intel MPI": ((3, 4), INTEL, hydra(3, 4), "mpi", (3, 4), 0),
    "mpirun, Open MPI": ((1, 2), OPEN_MPI, open_mpi(1, 2), "mpi", (1, 2), 0),
    "mpirun, Open MPI, one rank": ((0, 1), OPEN_MPI, open_mpi(0, 1), "mpi", (0, 1), 0),
    "srun pmi2, MPICH": ((3, 4), MPICH, step(3, 4, "3,1", 1) | pmi2(3, 4), "mpi", (3, 4), 0),
    "srun pmix, Open MPI": ((2, 4), OPEN_MPI, step(2, 4, "3,1") | pmix(2), "mpi", (2, 4), 0),
    "srun pmi2, one task": ((0, 1), MPICH, step(0, 1) | pmi2(0, 1), "mpi", (0, 1), 0),
    "srun none, MPICH": ((0, 1), MPICH, step(3, 4, "3,1", 1), "torch", (3, 4), 1),
    "srun none, no MPI": (None, "", step(1, 2), "torch", (1, 2), 1),
    "srun pmix, no MPI": (None, "", step(1, 2) | pmix(1), "torch", (1, 2), 1),
    "srun none in a PMIx shell": (
        (0, 1), MPICH, pmix(0) | step(1, 4) | {"SLURM_MPI_TYPE": "none"}, "torch", (1, 4), 1
    ),
    "srun with RANK exported for torch": ((0, 1), MPICH, step(1, 2) | BY_HAND, "torch", (1, 2), 1),
    "srun pmi2 with WORLD_SIZE in the script": (
        (1, 4), MPICH, step(1, 4) | pmi2(1, 4) | {"WORLD_SIZE": "4"}, "mpi", (1, 4), 0
    ),
    "torchrun": ((0, 1), MPICH, torchrun(1, 2), "torch", (1, 2), 1),
    "torchrun, no MPI": (None, "", torchrun(0, 2), "torch", (0, 2), 1),
    "torchrun, one rank": ((0, 1), MPICH, torchrun(0, 1), "mpi", (0, 1), 0),
    "torchrun an agent a node, srun none": (
        (0, 1), MPICH, step(1, 2, "1,1", 1) | torchrun(5, 8, 1, agents=2), "torch", (5, 8), 1
    ),
    "torchrun an agent a node, srun pmix": (
        None, "", step(1, 2, "1,1", 1) | pmix(1) | torchrun(1, 8, 1, agents=2), "torch", (1, 8), 1
    ),
    "torchrun in an srun step of one task": (
        (0, 1), OPEN_MPI, step(0, 1) | pmix(0) | torchrun(3, 4), "torch", (3, 4), 1
    ),
    "by hand": ((0, 1), MPICH, BY_HAND, "torch", (1, 2), 1),
    "mpirun in a batch step, MPICH": ((5, 8), MPICH, BATCH | hydra(5, 8) | {"SLURM_NTASKS": "1"}, "mpi", (5, 8), 0),
    "mpirun in a batch step, Open MPI": (
        (5, 8), OPEN_MPI, BATCH | open_mpi(5, 8) | {"SLURM_NTASKS": "8"}, "mpi", (5, 8), 0
    ),
    "mpirun on purpose with one rank in a batch step": (
        (0, 1), OPEN_MPI, BATCH | open_mpi(0, 1) | {"SLURM_NTASKS": "8"}, "mpi", (0, 1), 0
    ),
    "mpirun over nodes: the daemons' srun step is inherited": (
        (5, 8), MPICH, step(1, 2, "1,1", 1) | hydra(5, 8), "mpi", (5, 8), 0
    ),
    "mpirun with as many ranks as daemons, placed otherwise": (
        (0, 2), OPEN_MPI, step(1, 2, "1,1", 1) | open_mpi(0, 2), "mpi", (0, 2), 0
    ),
    "mpirun in a step of one task": ((1, 2), MPICH, step(0, 1) | hydra(1, 2), "mpi", (1, 2), 0),
    "mpirun in an interactive step": ((1, 2), OPEN_MPI, SHELL | open_mpi(1, 2), "mpi", (1, 2), 0),
    "mpirun typed into srun --pty": (
        (1, 2), OPEN_MPI, step(0, 4) | {"SLURM_PTY_PORT": "45418"} | open_mpi(1, 2), "mpi", (1, 2), 0
    ),
    "batch step of one task": ((0, 1), MPICH, BATCH | {"SLURM_NTASKS": "1"}, "mpi", (0, 1), 0),
    "interactive shell": ((0, 1), OPEN_MPI, SHELL, "mpi", (0, 1), 0),
    "PBS, mpirun": ((1, 2), MPICH, PBS | hydra(1, 2), "mpi", (1, 2), 0),
    "PBS, one process": ((0, 1), MPICH, PBS, "mpi", (0, 1), 0),
    "Torque, one process": (
        (0, 1), MPICH, PBS | {"PBS_NP": "1", "PBS_NUM_NODES": "1", "PBS_NUM_PPN": "1"}, "mpi", (0, 1), 0
    ),
    "Torque's numbers without a job": ((0, 1), MPICH, {"PBS_NP": "8"}, "mpi", (0, 1), 0),
    "Torque, mpirun of one rank": ((0, 1), MPICH, PBS | hydra(0, 1) | {"PBS_NP": "8"}, "mpi", (0, 1), 0),
    "nodes without tasks by node": ((0, 1), MPICH, BATCH | {"SLURM_NNODES": "2"}, "mpi", (0, 1), 0),
    "Cray PALS": ((3, 8), "MPI VERSION : CRAY MPICH version 8.1", {"PALS_RANKID": "3"}, "mpi", (3, 8), 0),
    "Flux": ((1, 4), MPICH, FLUX, "mpi", (1, 4), 0),
    "Flux on Slurm: the brokers' step is inherited": ((1, 4), MPICH, step(1, 2, "1,1", 1) | FLUX, "mpi", (1, 4), 0),
    "bare PMIX_RANK": ((2, 4), OPEN_MPI, {"PMIX_RANK": "2"}, "mpi", (2, 4), 0),
}  # fmt: skip


@pytest.mark.parametrize("name", GOOD)
def test_good_launches(name):
    mpi, library, environ, transport, place, num_notices = GOOD[name]
    decision = reconcile(ranks(*mpi) if mpi else None, environ, library)
    assert decision.transport == transport
    assert (decision.claim.rank, decision.claim.world_size) == place
    assert len(decision.notices) == num_notices
    assert all("\n" not in notice for notice in decision.notices)


DOUBLE = "one launcher only.*never `srun mpirun"

# name: MPI's (rank, size) or None, library, environment, words of the error and its fix
WRONG = {
    "srun pmix, MPICH": (
        (0, 1),
        MPICH,
        step(1, 4) | pmix(1),
        "offered pmix.*`srun --mpi=pmi2 -n 4 python -m mpitrain`",
    ),
    "srun pmi2, Open MPI": ((0, 1), OPEN_MPI, step(0, 4) | pmi2(0, 4), "`srun --mpi=pmix -n 4 python -m mpitrain`"),
    "srun pmix, Intel MPI": ((0, 1), INTEL, step(0, 4) | pmix(0), "`I_MPI_PMI_LIBRARY=.* srun --mpi=pmi2 -n 4"),
    "srun pmix, unknown MPI": ((0, 1), "", step(0, 4) | pmix(0), "pmi2 .*MPICH.*--mpi=pmix .*Open MPI"),
    "srun pmi2, MPICH built without it": (
        (0, 1),
        MPICH,
        step(0, 4) | pmi2(0, 4),
        "the right kind.*built without it.*--mpi-lib-version",
    ),
    "Open MPI's mpirun, MPICH": (
        (0, 1),
        MPICH,
        open_mpi(1, 2),
        "Open MPI mpirun started this process, but Python loaded MPICH 5.0.2.*--mpi-lib-version",
    ),
    "MPICH's mpirun, Open MPI": (
        (0, 1),
        OPEN_MPI,
        hydra(1, 2),
        'MPICH mpirun started this process, but Python loaded Open MPI 5.0.11.*/mpirun" -n 2',
    ),
    "Open MPI's mpirun over nodes, MPICH": (
        (0, 1),
        MPICH,
        step(1, 2, "1,1", 1) | open_mpi(5, 8),
        "Open MPI mpirun started this process.*-n 8",
    ),
    "mpirun, no MPI": (
        None,
        "",
        open_mpi(1, 2),
        "could load no MPI library.*MPI4PY_LIBMPI.*torchrun --nproc-per-node 2",
    ),
    "Flux, Open MPI": ((0, 1), OPEN_MPI, FLUX, "`flux run -o pmi=pmix -n 4"),
    "PALS, other MPI": (
        (0, 1),
        OPEN_MPI,
        {"PALS_RANKID": "3"},
        "Cray PALS started this process.*MPI4PY_LIBMPI=.* mpiexec -n N",
    ),
    "bare PMIX_RANK of a later rank": ((0, 1), OPEN_MPI, {"PMIX_RANK": "3"}, "each is alone in MPI_COMM_WORLD"),
    "srun with RANK exported and an unused PMI": (
        (0, 1),
        MPICH,
        step(1, 2) | pmix(1) | BY_HAND,
        "srun --mpi=pmi2.*srun --mpi=none",
    ),
    "srun forgotten in a batch script, MPICH": (
        (0, 1),
        MPICH,
        BATCH | {"SLURM_NTASKS": "8"},
        "SLURM_NTASKS=8.*`srun --mpi=pmi2 -n 8.*`SLURM_NTASKS=1 python",
    ),
    "srun forgotten in a batch script, no MPI": (
        None,
        "",
        BATCH | {"SLURM_NTASKS": "8"},
        "nothing started the others; put srun",
    ),
    "mpirun forgotten in a PBS job": (
        (0, 1),
        OPEN_MPI,
        {"PBS_JOBID": "9.server", "PBS_NODEFILE": FOUR_SLOTS},
        "4 slots in job 9.server.*`mpirun -np 4 python.*`env -u PBS_JOBID python",
    ),
    "mpirun forgotten in a Torque job, the file of hosts elsewhere": (
        (0, 1),
        OPEN_MPI,
        {"PBS_JOBID": "9.server", "PBS_NODEFILE": "/nowhere", "PBS_NUM_NODES": "2", "PBS_NUM_PPN": "4"},
        "^PBS_NUM_NODES=2 and PBS_NUM_PPN=4 in job 9.server.*`mpirun -np 8 python.*`env -u PBS_JOBID python",
    ),
    "mpirun forgotten in a Torque job without a file of hosts": (
        (0, 1),
        MPICH,
        {"PBS_JOBID": "9.server", "PBS_NP": "6", "PBS_NUM_NODES": "2", "PBS_NUM_PPN": "4"},
        "^PBS_NP=6 in job 9.server.*`mpirun -np 6 python",
    ),
    "mpirun forgotten in a Torque job of two hosts": (
        None,
        "",
        {"PBS_JOBID": "9.server", "PBS_NUM_NODES": "2"},
        "^PBS_NUM_NODES=2 in job 9.server",
    ),
    "Torque's number by hand": (
        None,
        "",
        {"PBS_JOBID": "9.server", "PBS_NP": "all"},
        "PBS_NP=all: not a whole number; .*`unset PBS_NP`",
    ),
    "srun forgotten, tasks by node": (
        (0, 1),
        MPICH,
        BATCH | {"SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "4"},
        "^SLURM_NNODES=2 and SLURM_NTASKS_PER_NODE=4.*`srun --mpi=pmi2 -n 8.*`SLURM_NTASKS=1 python",
    ),
    "SLURM_NTASKS by hand": (None, "", BATCH | {"SLURM_NTASKS": "all"}, "SLURM_NTASKS=all: not a whole number"),
    "mpirun in every task of srun": (
        (1, 2),
        OPEN_MPI,
        step(3, 4) | open_mpi(1, 2),
        f"number of ranks is 2 .MPI. and 4 .Slurm.*{DOUBLE}",
    ),
    "as many ranks as tasks": (
        (1, 4),
        OPEN_MPI,
        step(3, 4) | open_mpi(1, 4),
        f"rank 1 .MPI. and 3 .Slurm step.*{DOUBLE}",
    ),
    "torchrun in every task of srun": (
        (0, 1),
        MPICH,
        step(3, 4) | torchrun(1, 2),
        f"4 .Slurm step. and 2 .torchrun.*{DOUBLE}.*--ntasks-per-node=1 torchrun",
    ),
    "torchrun of another size inside mpirun": (
        (0, 2),
        MPICH,
        hydra(0, 2) | torchrun(1, 4, agents=2),
        "number of ranks is 2 .MPI. and 4 .torchrun",
    ),
    "WORLD_SIZE left over in the shell": (
        (1, 4),
        MPICH,
        hydra(1, 4) | {**BY_HAND, "WORLD_SIZE": "2"},
        "`unset RANK WORLD_SIZE` first",
    ),
    "RANK left over in the shell": (
        (0, 2),
        MPICH,
        hydra(0, 2) | BY_HAND,
        "this process is rank 0 .MPI. and 1 .RANK and WORLD_SIZE set by hand.*`unset RANK WORLD_SIZE` first",
    ),
    "launchers disagree on the rank, no MPI": (
        None,
        "",
        step(0, 2) | BY_HAND,
        "this process is rank 0 .Slurm step. and 1 .RANK and WORLD_SIZE set by hand",
    ),
    "a size without a rank": ((0, 1), MPICH, {"PMI_SIZE": "4"}, "the rank of this process is unknown"),
    "half-set": ((0, 1), MPICH, {"RANK": "0"}, "RANK=0 without WORLD_SIZE"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_launches_are_caught_with_their_fix(name):
    mpi, library, environ, words = WRONG[name]
    with pytest.raises(LaunchError, match=f"(?s){words}") as caught:
        reconcile(ranks(*mpi) if mpi else None, environ, library)
    assert caught.value.exit_code == 3


def test_a_contradiction_shows_what_each_source_says():
    with pytest.raises(LaunchError) as caught:
        reconcile(ranks(0, 1), step(1, 4) | pmix(1), MPICH)
    lines = str(caught.value).splitlines()
    assert lines[0] == "several ranks were started, but each is alone in MPI_COMM_WORLD (MPICH 5.0.2)"
    assert [line.split("  ")[0] for line in lines[1:5]] == ["source", "MPI", "PMIx", "Slurm step"]
    assert lines[5].startswith("To fix it: ")
    assert len(lines) == 6


def test_what_mpi_does_not_tell_is_filled_from_an_agreeing_launcher():
    claim = reconcile(ranks(3, 4), step(3, 4, "3,1", 1) | pmi2(3, 4), MPICH).claim
    assert (claim.source, claim.local_rank, claim.local_world_size) == ("MPI", 0, 1)
    assert (claim.node_rank, claim.num_nodes) == (1, 2)
    # nothing comes from a step of another size
    assert reconcile(ranks(0, 1), step(0, 1) | BY_HAND, MPICH).claim.local_rank is None


def test_the_notice_names_the_command_for_mpi():
    (notice,) = reconcile(ranks(0, 1), step(3, 4), OPEN_MPI).notices
    assert "torch.distributed" in notice
    assert "`srun --mpi=pmix -n 4 python -m mpitrain`" in notice


def test_an_address_without_a_port_is_no_meeting_point_for_mpirun_without_mpi() -> None:
    for known in ({"MASTER_ADDR": "n1"}, {"MASTER_PORT": "29500"}):
        with pytest.raises(LaunchError, match="mpirun was used, but there is no MPI"):
            reconcile(None, hydra(0, 2) | known, "")
    assert reconcile(None, hydra(0, 2) | {"MASTER_ADDR": "n1", "MASTER_PORT": "29500"}, "").transport == "torch"


@pytest.mark.parametrize("step_id", ["4294967290", "4294967291", "4294967292"])
def test_the_shell_of_a_job_is_no_step_that_started_its_ranks(step_id: str) -> None:
    job = {"SLURM_JOB_ID": "42", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}
    with pytest.raises(LaunchError, match="SLURM_NTASKS=4 in Slurm job 42, but this is the only process"):
        reconcile(ranks(0, 1), job | {"SLURM_STEP_ID": step_id}, MPICH)


def test_a_number_of_tasks_outside_of_a_job_starts_nothing() -> None:
    """SLURM_NTASKS is also how a user tells sbatch what to ask for."""
    assert reconcile(ranks(0, 1), {"SLURM_NTASKS": "4"}, MPICH).claim.world_size == 1
