"""SimGrid's tools, and cpp_reference/simulated_step.cpp built and run by them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mpitrain.bench.simulated.cluster import Cluster
from mpitrain.bench.simulated.platform import nodes_of, render_hosts, render_platform
from mpitrain.cache import code_folder, is_trusted_program
from mpitrain.errors import MissingDependencyError
from mpitrain.native.program import json_line_of, run_command
from mpitrain.native.toolchain import find_sources

SOURCES = ("simulated_step.cpp", "partition.cpp", "partition.hpp", "virtual_ranks.hpp", "mpi_session.hpp", "errors.hpp")
_FLAGS = ("-std=c++20", "-O2", "-ffp-contract=off")
# The link's own latency and bandwidth: SimGrid's default factors are those of a Gigabit cluster under TCP. Only what
# the program asks for takes time. All ranks are threads of one process, with small stacks: 4096 take 150 MB.
_SETTINGS = {
    "smpi/simulate-computation": "no",
    "smpi/lat-factor": "0:1",
    "smpi/bw-factor": "0:1",
    "smpi/wtime": "0",
    "network/crosstraffic": "0",
    "contexts/stack-size": "128",
}


@dataclass(frozen=True)
class SimulatedStep:
    """What one simulation is told: R rows of `row_length` float32 numbers are added over the ranks.

    `computing_s` of the rank with most rows, and `row_s` for copying or adding one row in a node's memory: seconds.
    """

    num_ranks: int
    num_rows: int
    row_length: int
    computing_s: float
    row_s: float
    num_steps: int = 3
    adds_numbers: bool = False


@dataclass(frozen=True)
class Simulator:
    """The simulated program, built, and what runs it."""

    smpirun: str
    program: Path


def open_simulator() -> Simulator:
    """Return the program, built first if these sources and this SimGrid have not been used before.

    Raises MissingDependencyError naming what to install.
    """
    smpirun, compiler = _find("smpirun"), _find("smpicxx")
    sources = find_sources()
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    digest = hashlib.sha256("\n".join([compiler, version, *_FLAGS]).encode())
    for name in SOURCES:
        digest.update((sources / name).read_bytes())
    program = code_folder() / f"simulated_step-{digest.hexdigest()[:16]}" / "simulated_step"
    if not is_trusted_program(program):
        _build(compiler, sources, program)
    return Simulator(smpirun, program)


def _find(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise MissingDependencyError(
            f"no {name} on the PATH: simulations need SimGrid; on Debian or Ubuntu: apt-get install libsimgrid-dev; "
            "on a cluster: module load the site's"
        )
    return found


def _build(compiler: str, sources: Path, program: Path) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    program.parent.chmod(0o755)  # whatever the umask: not for a group to write
    partial = program.with_name(f"{program.name}.{os.getpid()}.partial")
    files = [str(sources / name) for name in SOURCES if name.endswith(".cpp")]
    done = subprocess.run([compiler, *_FLAGS, *files, "-o", str(partial)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        complaint = next((line for line in lines if "error" in line), lines[0] if lines else "no output")
        raise MissingDependencyError(f"{compiler} cannot build simulated_step.cpp: {complaint.strip()}")
    partial.chmod(0o755)
    partial.replace(program)


def simulate(simulator: Simulator, cluster: Cluster, step: SimulatedStep) -> Mapping[str, Any]:
    """Return what the program prints: simulated times of its steps, microseconds, and what was added if asked for."""
    with TemporaryDirectory(prefix="mpitrain_simulated_") as folder:
        platform, hosts = Path(folder) / "platform.xml", Path(folder) / "hosts"
        platform.write_text(render_platform(cluster, nodes_of(cluster, step.num_ranks)))
        hosts.write_text(render_hosts(cluster, step.num_ranks))
        command = [simulator.smpirun, "-no-privatize", "-np", str(step.num_ranks)]
        command += ["-platform", str(platform), "-hostfile", str(hosts), "--log=root.thres:error"]
        command += [f"--cfg={key}:{value}" for key, value in _SETTINGS.items()]
        output = run_command([*command, str(simulator.program), *_flags_of(step, cluster)], num_ranks=1)
    answer: Mapping[str, Any] = json.loads(json_line_of(output))
    return answer


def _flags_of(step: SimulatedStep, cluster: Cluster) -> list[str]:
    flags = {
        "ranks-per-node": cluster.ranks_per_node,
        "rows": step.num_rows,
        "row-length": step.row_length,
        "computing-s": step.computing_s,
        "row-s": step.row_s,
        "steps": step.num_steps,
        "adds-numbers": int(step.adds_numbers),
    }
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]
