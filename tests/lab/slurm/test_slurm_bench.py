"""`mpitrain bench scaling` inside of an allocation: it starts its ranks on both nodes by the cluster's own launcher."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from slurm_cluster import SlurmCluster, slurm

__all__ = ["slurm"]

SCRIPT = """\
#!/bin/bash
{python} -m mpitrain bench scaling --launcher 'srun --mpi=pmi2' --ranks 1,2 --networks icenet --batch 64 \\
    --rounds 1 --steps 20 --json scaling.json
"""


def test_scaling_is_measured_on_both_nodes(slurm: SlurmCluster, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(SCRIPT.format(python=sys.executable))
    job = slurm.submit(script, "-N2", "--ntasks-per-node=1", "--output=job.txt", cwd=tmp_path)
    ended = slurm.wait_for_end(job, timeout_s=120.0)
    assert ended["JobState"] == "COMPLETED", (tmp_path / "job.txt").read_text()
    rows = json.loads((tmp_path / "scaling.json").read_text())["rows"]
    found = {(row["scaling"], row["ranks"]): (row["nodes"], row["global_batch_size"]) for row in rows}
    assert found == {("strong", 1): (1, 64), ("strong", 2): (2, 64), ("weak", 1): (1, 64), ("weak", 2): (2, 128)}
    of_two = next(row for row in rows if row["ranks"] == 2)
    assert of_two["spent"]["communicating"] > 0
    assert abs(sum(of_two["spent"][kind] for kind in ("computing", "reading", "communicating", "waiting")) - 1) < 1e-6
    # What ranks and command tell each other lies in the job's folder, and goes.
    assert {path.name for path in tmp_path.iterdir()} == {"job.sh", "job.txt", "scaling.json"}
