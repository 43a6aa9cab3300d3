"""Libraries are told to yield exactly where ranks outnumber cores."""

import pytest

from mpitrain.cluster.cores import WAIT_POLICY_VARIABLES, wait_policy_variables

pytestmark = pytest.mark.fast

MPICH = {"PMI_RANK": "1", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}


@pytest.mark.parametrize(
    ("environ", "num_cores", "quota", "expected"),
    [
        (MPICH, 2, None, WAIT_POLICY_VARIABLES),
        (MPICH, 4, None, {}),
        (MPICH, 16, "200000 100000", WAIT_POLICY_VARIABLES),
        ({}, 1, None, {}),
    ],
)
def test_only_more_ranks_than_cores_yield(environ, num_cores, quota, expected):
    assert wait_policy_variables(environ, num_cores, quota) == expected
