"""Ranks and GPUs of a job: a rank for each GPU where the script asks for that, else a line for the GPUs left idle."""

from __future__ import annotations

from pathlib import Path

import pytest
from played_scheduler import Stage

from mpitrain.launch.inside.place import gpus_of_host
from mpitrain.launch.job_request import make_job_request
from mpitrain.launch.schedulers.table import SCHEDULERS

IDLE = (
    "note: the job has 4 GPUs on this host but starts only 2 ranks on it, and each rank uses one GPU; write the "
    "script with --gpus-per-node 4, or set NPROC_PER_NODE=4"
)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path / "stage")


def slurm(**fields: object) -> str:
    return SCHEDULERS["slurm"].render(make_job_request(**{"nodes": 2, "tasks_per_node": 2, **fields}))


@pytest.mark.parametrize(
    ("requested", "variables", "ranks"),
    [
        ({"tasks_per_node": 4, "gpus_per_node": 4}, {"SLURM_GPUS_PER_NODE": "2"}, 4),
        ({"tasks_per_node": 4, "gpus_per_node": 4}, {"SLURM_GPUS_PER_NODE": "a100:1,v100:2"}, 6),
        ({"tasks_per_node": 4, "gpus_per_node": 4}, {"SLURM_GPUS_PER_NODE": "2", "NPROC_PER_NODE": "3"}, 6),
        ({"tasks_per_node": 1, "gpus_per_node": 4}, {"SLURM_GPUS_PER_NODE": "2"}, 2),
        ({"tasks_per_node": 4}, {"SLURM_GPUS_PER_NODE": "2"}, 8),
    ],
)
def test_each_gpu_that_a_job_got_has_a_rank(requested, variables, ranks):
    job = make_job_request(nodes=2, **requested)
    place = SCHEDULERS["slurm"].place(job, {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", **variables})
    assert place.num_nodes * place.tasks_per_node == ranks


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({"SLURM_GPUS_PER_NODE": "a100:1,v100:2", "SLURM_GPUS_ON_NODE": "9"}, 3),
        ({"SLURM_GPUS_ON_NODE": "4", "CUDA_VISIBLE_DEVICES": "0"}, 4),
        ({"CUDA_VISIBLE_DEVICES": "0,GPU-8f2,3"}, 3),
        ({"CUDA_VISIBLE_DEVICES": ""}, 0),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"SLURM_GPUS_ON_NODE": "$(touch x)"}, 2),
        ({}, 2),
    ],
)
def test_the_gpus_of_a_job_on_a_host(tmp_path, variables, gpus):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert gpus_of_host(variables, tmp_path) == gpus


@pytest.mark.parametrize(
    ("variables", "lines"),
    [
        ({"SLURM_GPUS_PER_NODE": "4"}, [IDLE]),
        ({"SLURM_GPUS_PER_NODE": "4", "NPROC_PER_NODE": "4"}, []),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, []),
    ],
    ids=["fewer ranks than GPUs", "as many by the variable", "a rank a GPU"],
)
def test_a_job_says_which_gpus_no_rank_uses(stage, variables, lines):
    done = stage.run(slurm(), variables)
    assert (done.returncode, done.stderr.splitlines()) == (0, lines)
    per_node = variables.get("NPROC_PER_NODE", "2")
    assert f"--ntasks-per-node={per_node}" in stage.arguments_of("srun")


def test_a_rank_a_gpu_follows_the_gpus_that_the_job_got(stage):
    done = stage.run(slurm(tasks_per_node=4, gpus_per_node=4), {"SLURM_GPUS_PER_NODE": "3"})
    assert (done.returncode, done.stderr) == (0, "")
    assert {"--ntasks=6", "--ntasks-per-node=3"} <= set(stage.arguments_of("srun"))
