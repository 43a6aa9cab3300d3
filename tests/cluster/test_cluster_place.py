"""What the launcher's variables say of one process before it has met the others."""

from __future__ import annotations

import pytest

from mpitrain.cluster.place import read_place

FLUX = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "1"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("environ", "is_one_node"),
    [
        ({**FLUX, "FLUX_JOB_NNODES": "2"}, False),
        ({**FLUX, "FLUX_JOB_NNODES": "1"}, True),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, True),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, False),
        ({}, True),
    ],
)
def test_a_launch_is_of_one_node_where_the_launcher_says_so(environ: dict[str, str], is_one_node: bool) -> None:
    assert read_place(environ).is_one_node is is_one_node
