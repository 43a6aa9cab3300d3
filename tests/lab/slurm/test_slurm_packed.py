"""A packed Python environment on a real Slurm of two nodes: unpacked before the ranks start, which load torch there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PROJECT
from slurm_cluster import SlurmCluster, slurm

__all__ = ["slurm"]

TIMEOUT_S = 200.0
# A network of a user's own: it notes what its rank has loaded, and from where.
NETWORK = """
import os, sys
from pathlib import Path
import torch

def build(num_inputs, num_targets):
    loaded = Path("/proc/self/maps").read_text()
    Path(f"loaded-{os.environ['SLURM_PROCID']}").write_text(sys.executable + "\\n" + loaded)
    return torch.nn.Linear(num_inputs, num_targets)
"""
# What no rank of this test needs, and what would take long to pack.
LEFT_OUT = ("torch/include", "torch/test", "onnx*", "pyarrow*", "wandb", "mlflow", "numcodecs*")
WORDS = "-m mpitrain launch --scheduler slurm --mpi pmi2 -N 2 --no-requeue --walltime 00:05:00"
LAUNCH = (sys.executable, *WORDS.split())


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """This environment, as the README packs one."""
    path = tmp_path / "environment.tar"
    left_out = [f"--exclude=*/site-packages/{name}" for name in LEFT_OUT]
    subprocess.run(["tar", "-C", sys.prefix, *left_out, "-cf", path, "."], check=True)
    return path


def test_ranks_load_torch_from_their_hosts_own_disk(
    slurm: SlurmCluster, archive: Path, small_history: Path, tmp_path: Path
) -> None:
    (tmp_path / "noting.py").write_text(NETWORK)
    of_hosts = tmp_path / "disk of a host"
    of_hosts.mkdir()
    words = ["--packed-environment", archive.name, "--env", f"PYTHONPATH={tmp_path}:{PROJECT}"]
    settings = [
        f"data.data_path={small_history}",
        "model.name=noting:build",
        "training.epochs=1",
        "output.model_dir=run",
    ]
    written = slurm.run([*LAUNCH, *words, "--output", "job.sh", *settings], cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    job = slurm.submit(tmp_path / "job.sh", f"--export=ALL,NODE_FOLDER={of_hosts}", cwd=tmp_path)
    ended = slurm.wait_for_end(job, TIMEOUT_S)
    said = "".join(path.read_text() for path in (*tmp_path.glob("*.log"), *tmp_path.glob("logs/*.log")))
    assert (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"), said
    place = of_hosts / f"mpitrain-environment-{job}"
    for rank in (0, 1):
        python, *loaded = (tmp_path / f"loaded-{rank}").read_text().splitlines()
        assert python == str(place / "bin" / "python")
        packages = f"{place}/lib/python3.{sys.version_info.minor}/site-packages"
        assert any(line.endswith(f"{packages}/torch/lib/libtorch_cpu.so") for line in loaded)
        assert not [line for line in loaded if f"{sys.prefix}/" in line]
    assert (tmp_path / "run" / "model.pt").exists()
    assert list(of_hosts.iterdir()) == []  # taken away again


def test_an_archive_without_python_ends_the_job_with_what_to_do(slurm: SlurmCluster, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    subprocess.run(["tar", "-C", tmp_path / "empty", "-cf", tmp_path / "none.tar", "."], check=True)
    written = slurm.run([*LAUNCH, "--packed-environment", "none.tar", "--output", "job.sh"], cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    job = slurm.submit(tmp_path / "job.sh", f"--export=ALL,NODE_FOLDER={tmp_path}", cwd=tmp_path)
    ended = slurm.wait_for_end(job, TIMEOUT_S)
    said = "".join(path.read_text() for path in tmp_path.glob("*.log"))
    assert ended["ExitCode"] == "3:0", said
    assert "none.tar on " in said
    assert "contains no bin/python; create it with: tar -C ENVIRONMENT -cf none.tar ." in said
