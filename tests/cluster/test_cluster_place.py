"""What the launcher's variables say of one process before it has met the others."""

from __future__ import annotations

import pytest

from mpitrain.cluster.place import read_place

FLUX = {"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "4", "FLUX_TASK_LOCAL_ID": "1"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "4"}
SLURM = {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0", "SLURM_STEP_NUM_TASKS": "4"}
OPENMPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}


@pytest.mark.parametrize(
    ("environ", "is_one_node"),
    [
        ({**FLUX, "FLUX_JOB_NNODES": "2"}, False),
        ({**FLUX, "FLUX_JOB_NNODES": "1"}, True),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, True),
        ({**OPENMPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, False),
        ({**FLUX, **PMI, "FLUX_JOB_NNODES": "2"}, False),
        ({**SLURM, **PMI, "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, False),
        ({**SLURM, **PMI, "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "4"}, True),
        ({**PMI, "PALS_RANKID": "1", "PALS_LOCAL_RANKID": "1", "PALS_LOCAL_SIZE": "2", "PALS_NODEID": "0"}, False),
        ({}, True),
    ],
)
def test_a_launch_is_of_one_node_where_the_launcher_says_so(environ: dict[str, str], is_one_node: bool) -> None:
    assert read_place(environ).is_one_node is is_one_node
