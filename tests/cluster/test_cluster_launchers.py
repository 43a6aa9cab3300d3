import pytest

from mpitrain.cluster.launchers import LAUNCHERS, claimed_rank, read_claims
from mpitrain.cluster.rank_info import RankClaim
from mpitrain.errors import LaunchError

pytestmark = pytest.mark.fast

SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
}
BY_HAND = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1234"}


def test_every_launcher_is_read_into_its_own_claim():
    environ = {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
        "OMPI_COMM_WORLD_NODE_RANK": "1",
        "PMIX_RANK": "3",
        "FLUX_TASK_RANK": "3",
        "FLUX_JOB_SIZE": "4",
        "PALS_RANKID": "3",
        "PALS_LOCAL_RANKID": "1",
        "PBS_TASKNUM": "1",
        "PMI_RANK": "3",
        **SLURM,
    }
    claims = {claim.source: claim for claim in read_claims(environ)}
    # Open MPI's NODE_RANK is no node's number, so none is told
    names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
    open_mpi = tuple(f"OMPI_COMM_WORLD_{name}" for name in names)
    assert claims["Open MPI mpirun"] == RankClaim("Open MPI mpirun", 3, 4, 1, 2, variables=open_mpi)
    slurm = claims["Slurm step"]
    assert (slurm.rank, slurm.world_size, slurm.local_rank, slurm.local_world_size) == (3, 4, 0, 1)
    assert (slurm.node_rank, slurm.num_nodes) == (1, 2)
    assert claims["PMIx"] == RankClaim("PMIx", 3, variables=("PMIX_RANK",))
    assert claims["PMI"] == RankClaim("PMI", 3, variables=("PMI_RANK",))
    assert claims["PBS job"] == RankClaim("PBS job", variables=("PBS_TASKNUM",))
    assert (claims["Cray PALS"].rank, claims["Cray PALS"].local_rank, claims["Cray PALS"].world_size) == (3, 1, None)
    assert (claims["Flux"].rank, claims["Flux"].world_size) == (3, 4)
    assert list(claims) == [launcher.source for launcher in LAUNCHERS if launcher.source in claims]


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"},
        {**SLURM, "SLURM_STEP_ID": "4294967291"},
        {"LOCAL_RANK": "0", "MASTER_ADDR": "a"},
        {"RANK": "", "WORLD_SIZE": ""},
    ],
)
def test_no_claim_where_nothing_was_launched(environ):
    assert read_claims(environ) == ()


@pytest.mark.parametrize(("task", "local_world_size"), [(0, 2), (1, 2), (2, 2), (3, 1)])
def test_local_world_size_follows_the_node(task, local_world_size):
    environ = {"SLURM_PROCID": "6", "SLURM_STEP_NUM_TASKS": "7", "SLURM_STEP_TASKS_PER_NODE": "2(x3),1"}
    (claim,) = read_claims({**environ, "SLURM_NODEID": str(task)})
    assert claim.local_world_size == local_world_size


def test_a_world_size_beside_another_launchers_rank_is_a_claim_of_size_only():
    claims = {claim.source: claim for claim in read_claims({**SLURM, "WORLD_SIZE": "4"})}
    assert claims["RANK and WORLD_SIZE set by hand"] == RankClaim(
        "RANK and WORLD_SIZE set by hand", world_size=4, variables=("WORLD_SIZE",)
    )


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"RANK": "0"}, "RANK=0 without WORLD_SIZE.*`unset RANK`.*torchrun --nproc-per-node"),
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE=4 without RANK.*`unset WORLD_SIZE`.*torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "without MASTER_ADDR and MASTER_PORT.*set MASTER_ADDR to rank 0's host"),
        ({**BY_HAND, "MASTER_PORT": ""}, "RANK=0 WORLD_SIZE=2 without MASTER_PORT"),
        ({**BY_HAND, "RANK": "captain"}, "RANK=captain: not a whole number.*`unset RANK`"),
        ({**BY_HAND, "RANK": "-1"}, "RANK=-1: not a whole number of 0 or more"),
        ({**BY_HAND, "RANK": "1.0"}, "RANK=1.0: not a whole number"),
        ({**BY_HAND, "RANK": "²"}, "RANK=²: not a whole number"),
        ({**BY_HAND, "RANK": "2"}, "RANK=2 with WORLD_SIZE=2: allowed are 0 to 1.*`unset RANK WORLD_SIZE`"),
        ({**BY_HAND, "WORLD_SIZE": "0"}, "WORLD_SIZE=0: at least 1"),
        ({**BY_HAND, "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK=2 with LOCAL_WORLD_SIZE=2"),
        ({"OMPI_COMM_WORLD_RANK": "1"}, "OMPI_COMM_WORLD_RANK=1 without OMPI_COMM_WORLD_SIZE.*mpirun"),
        ({"PMI_RANK": "4", "PMI_SIZE": "4"}, "PMI_RANK=4 with PMI_SIZE=4"),
        ({"PMIX_RANK": "x"}, "PMIX_RANK=x"),
        ({"FLUX_TASK_RANK": "1"}, "FLUX_TASK_RANK=1 without FLUX_JOB_SIZE.*flux run"),
        ({"SLURM_STEP_NUM_TASKS": "4"}, "SLURM_STEP_NUM_TASKS=4 without SLURM_PROCID.*srun"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "2,1"}, "TASKS_PER_NODE=2,1 does not fit SLURM_STEP_NUM_TASKS=4"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4"}, "TASKS_PER_NODE=4 does not fit.* on node 1"),
        ({**SLURM, "SLURM_NODEID": "2"}, "SLURM_NODEID=2 with SLURM_STEP_NUM_NODES=2"),
    ],
)
def test_impossible_variables_are_named_with_their_fix(environ, words):
    with pytest.raises(LaunchError, match=words) as caught:
        read_claims(environ)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("environ", "rank"), [({}, 0), ({"PMI_RANK": "2"}, 2), ({"RANK": "x", "SLURM_PROCID": "5"}, 5), ({"RANK": "7"}, 7)]
)
def test_the_printing_rank_never_fails(environ, rank):
    assert claimed_rank(environ) == rank
