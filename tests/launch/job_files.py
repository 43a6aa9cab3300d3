"""The files of `jobs/`: scripts and their settings. Written anew by `python tests/launch/job_files.py jobs`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpitrain.launch.job_request import JobRequest
from mpitrain.launch.presets import PRESETS
from mpitrain.launch.schedulers.table import SCHEDULERS

_CONFIGS = {
    "cpu.yaml": """\
# Training on CPUs: the same result, bit for bit, on 1 to 8 ranks.
training:
  epochs: 60
  global_batch_size: 512
""",
    "gpu.yaml": """\
# Training on GPUs, one rank per GPU: the batch size is per rank, so the total batch grows with the number of GPUs.
training:
  epochs: 60
  batch_size: 4096
compute:
  device: cuda
""",
    "sweep.yaml": """\
# Four settings, each with two seeds: eight networks in one job. best.yaml contains the best settings.
training:
  epochs: 30
  global_batch_size: 512
ensemble:
  members: 2
  grid:
    training.optimizer.learning_rate: [0.003, 0.001]
    model.hidden_size: [16, 64]
""",
}

# File name, without its ending, to the preset and what differs from it.
_SCRIPTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "single_gpu": ("single_gpu", {"config_path": "jobs/configs/gpu.yaml"}),
    "multi_gpu": ("multi_gpu", {"config_path": "jobs/configs/gpu.yaml"}),
    "multi_node": ("multi_node", {"config_path": "jobs/configs/gpu.yaml", "interface": "ib0"}),
    "cpu_only": ("cpu_cluster", {"config_path": "jobs/configs/cpu.yaml"}),
    "sweep": (
        "cpu_cluster",
        {"config_path": "jobs/configs/sweep.yaml", "walltime": "01:00:00", "command": "ensemble"},
    ),
    "doctor": ("debug", {"nodes": 2, "command": "doctor"}),
    "generate_data": ("debug", {"command": "data generate", "tasks_per_node": 1, "mpi": "none"}),
}
_WRITTEN_FOR = ("slurm", "pbs")


def job_files() -> dict[str, str]:
    """Return the text of every file of `jobs/` by its path below that folder. Pure."""
    files = {f"configs/{name}": text for name, text in _CONFIGS.items()}
    for name, (preset, changes) in _SCRIPTS.items():
        request = JobRequest(**{"job_name": name, **PRESETS[preset], **changes})
        files |= {f"{scheduler}/{name}.sh": SCHEDULERS[scheduler].render(request) for scheduler in _WRITTEN_FOR}
    return files


def write_job_files(folder: Path) -> None:
    """Write every file below `folder`, scripts executable. Raises OSError."""
    for name, text in job_files().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755 if path.suffix == ".sh" else 0o644)


if __name__ == "__main__":
    write_job_files(Path(sys.argv[1]))
