"""Faults of one rank under a real srun, on two nodes: all end in time, one line names the rank, and nothing is lost."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from slurm_cluster import SlurmCluster, slurm

sys.path.insert(0, str(Path(__file__).parents[1] / "campaign"))

from test_campaign_kills import run_campaign

__all__ = ["slurm"]

# A rank without memory, one that vanishes, one that is stopped where only the first works.
ALWAYS = (2, 4, 25)
FULL = 60
LAUNCH = (sys.executable, "-m", "mpitrain", "launch", "--scheduler", "slurm", "--mpi", "pmi2", "--submit")
FAILING = """
import os
import torch


class Failing(torch.nn.Module):
    def __init__(self, num_inputs, num_outputs):
        super().__init__()
        self.linear = torch.nn.Linear(num_inputs, num_outputs)

    def forward(self, x):
        if os.environ.get("SLURM_PROCID") == "1" and torch.is_grad_enabled():
            raise ZeroDivisionError("on this rank alone")
        return self.linear(x)
"""


@pytest.mark.slow
def test_ranks_of_two_nodes_with_one_fault_end_as_the_table_says(
    slurm: SlurmCluster, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = [f"0-{FULL - 1}"] if request.config.getoption("--full") else ALWAYS
    said = run_campaign(
        "fault_schedules.py", tmp_path / "faults", *numbers, "--launcher", "srun", "--at-once", 2,
        environ=slurm.environment,
    )  # fmt: skip
    with capsys.disabled():
        print("\n" + said)
    count = FULL if request.config.getoption("--full") else len(ALWAYS)
    assert f"{count} schedules, {count} as expected" in said


def test_a_job_whose_rank_fails_alone_ends_with_its_code_and_is_not_tried_again(
    slurm: SlurmCluster, small_history: Path, tmp_path: Path
) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    words = ["training.epochs=3", "model.name=failing:Failing", f"data.data_path={small_history}"]
    sent = slurm.run(
        [*LAUNCH, "-N", "2", "--walltime", "00:05:00", "--restarts", "3", *words, "output.model_dir=run"], cwd=tmp_path
    )
    assert sent.returncode == 0, sent.stderr
    job = int(sent.stdout.split()[-1])
    ended = slurm.wait_for_end(job, 200.0)
    (log,) = tmp_path.glob("*.log")
    said = "".join(path.read_text() for path in (tmp_path / "logs").glob(f"{job}_node*.log"))
    # MPI_Abort has srun kill the others, which makes its own code 137.
    assert (ended["JobState"], ended["ExitCode"]) == ("FAILED", "1:0"), log.read_text() + said
    assert said.count("ZeroDivisionError: on this rank alone") == 1
    assert "restarting with" not in log.read_text()
