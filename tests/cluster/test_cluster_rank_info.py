import pytest

from mpitrain.cluster.rank_info import RankClaim, rank_info_from_hosts
from mpitrain.cluster.reconcile import render_claims_table
from mpitrain.errors import LaunchError


@pytest.mark.parametrize(
    ("rank", "place"),
    [(0, (0, 3, 0)), (1, (0, 1, 1)), (2, (1, 3, 0)), (3, (2, 3, 0))],
)
def test_uneven_and_interleaved_layouts_are_placed_by_host_names(rank, place):
    info = rank_info_from_hosts(rank, ["a", "b", "a", "a"], "MPI")
    assert (info.local_rank, info.local_world_size, info.node_rank) == place
    assert (info.rank, info.world_size, info.num_nodes, info.source) == (rank, 4, 2, "MPI")


def test_a_rank_without_a_host_name_is_refused():
    with pytest.raises(LaunchError, match="rank 2 of MPI: 2 host names were gathered"):
        rank_info_from_hosts(2, ["a", "a"], "MPI")


def test_the_table_is_plain_aligned_text():
    claims = [
        RankClaim("MPI", 0, 1, variables=("MPI_COMM_WORLD",)),
        RankClaim("Slurm step", 12, 16, 4, variables=("SLURM_PROCID", "SLURM_LOCALID")),
        RankClaim("PBS job"),
    ]
    assert render_claims_table(claims) == [
        "source      rank  world_size  local_rank  read from",
        "MPI         0     1           -           MPI_COMM_WORLD",
        "Slurm step  12    16          4           SLURM_PROCID, SLURM_LOCALID",
        "PBS job     -     -           -           -",
    ]
