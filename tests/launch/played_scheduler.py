"""A scheduler that is played: srun, mpirun, scontrol and python are scripts that write down what they are given."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from conftest import PROJECT, TIMEOUT_S

PATHS = "/usr/local/bin:/usr/bin:/bin"
# Writes its own arguments, NUL-separated; $PLAY is what it does then.
# The script's one command is real, and starts the ranks' python, which is played.
PYTHON = (
    f"""#!/usr/bin/env bash
if [[ " $* " == *" --inside-job "* ]]; then exec {sys.executable} "$@"; fi
"""
    + """\
printf "%s\\0" "$@" >"$RECORDS/python"
export -p >"$RECORDS/exports"
echo $$ >"$RECORDS/pid"
eval "${PLAY:-true}"
"""
)
LAUNCHERS = {
    "srun": 'printf "%s\\0" "$@" >"$RECORDS/srun"\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n',
    "mpirun": 'printf "%s\\0" "$@" >"$RECORDS/mpirun"\n[[ $1 != -machinefile ]] || shift 2\nshift 2\nexec "$@"\n',
    "scontrol": 'echo "$@" >>"$RECORDS/scontrol"\n',
}


@dataclass
class Stage:
    """A folder with the played commands, and one where scripts run."""

    root: Path
    python_name: str = "python"
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bin, self.cwd, self.records = (self.root / name for name in ("bin", "cwd", "records"))
        for folder in (self.bin, self.cwd, self.records):
            folder.mkdir(parents=True)
        for name, body in LAUNCHERS.items():
            self.add_command(name, f"#!/usr/bin/env bash\n{body}")
        self.add_command(self.python_name, PYTHON)
        nodefile = self.root / "nodefile"
        nodefile.write_text(f"{os.uname().nodename}\n" * 2)
        self.environ |= {
            "PATH": f"{self.bin}:{PATHS}", "HOME": str(self.root), "RECORDS": str(self.records),
            "PYTHONPATH": str(PROJECT), "SLURM_JOB_ID": "77", "SLURM_JOB_NUM_NODES": "2",
            "SLURM_ARRAY_JOB_ID": "77", "SLURM_ARRAY_TASK_ID": "0", "PBS_ARRAY_INDEX": "0",
            "PBS_NODEFILE": str(nodefile), "PBS_O_WORKDIR": str(self.cwd), "PBS_JOBID": "78.server",
            "CUDA_VISIBLE_DEVICES": "",  # whatever this machine has
        }  # fmt: skip

    def add_command(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def start(self, script: str, environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-c", script], cwd=self.cwd, env={**self.environ, **(environ or {})},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    def run(self, script: str, environ: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        process = self.start(script, environ)
        stdout, stderr = process.communicate(timeout=TIMEOUT_S)
        return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)

    def arguments_of(self, command: str) -> list[str]:
        path = self.records / command
        return path.read_text().split("\0")[:-1] if path.exists() else []
