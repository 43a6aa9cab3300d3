"""The hosts of a Slurm job: a test which of them answer, and a watch on the first one.

If a job with --no-kill loses its first host, which runs the script, Slurm keeps the job until the time limit. Two of
the other hosts therefore check regularly whether the first host is lost; if so they requeue or cancel the job, and
report it in logs/JOB_watch.log.

`python -m mpitrain.launch.inside.slurm_hosts JOB FIRST_HOST LOG requeue|cancel` runs the watch on one host.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from mpitrain.cluster.host_list import expand_host_list

_PROBE_TIMEOUT_S, _WATCH_INTERVAL_S = 30, 30
_STEP = ("srun", "--mpi=none", "--overlap", "--export=ALL")


def once_a_host(num_nodes: int) -> list[str]:
    """Return the launcher that starts the command after it once on each host."""
    return [*_STEP, f"--nodes={num_nodes}", f"--ntasks={num_nodes}", "--ntasks-per-node=1"]


def hosts_that_answer(hosts: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return those of `hosts` that start a process in time; all are probed at once."""
    probes = [_start_probe(host, environ) for host in hosts]
    deadline_s = time.monotonic() + _PROBE_TIMEOUT_S
    return [host for host, probe in zip(hosts, probes, strict=True) if _succeeds(probe, deadline_s)]


def _start_probe(host: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    command = [*_STEP, "--nodes=1", "--ntasks=1", f"--nodelist={host}", "true"]
    null = subprocess.DEVNULL
    return subprocess.Popen(command, stdin=null, stdout=null, stderr=null, env=environ)


def _succeeds(probe: subprocess.Popen[bytes], deadline_s: float) -> bool:
    try:
        return probe.wait(max(0.0, deadline_s - time.monotonic())) == 0
    except subprocess.TimeoutExpired:
        probe.terminate()
        return False


def start_watch(
    job: str, name: str, hosts: Sequence[str], is_requeued: bool, environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start the watch on the first of several hosts; it runs on two of the others. Raises OSError."""
    others, log = hosts[1:3], Path("logs") / f"{name}_watch.log"
    command = [
        *_STEP, "--no-kill", f"--nodes={len(others)}", f"--ntasks={len(others)}", f"--nodelist={','.join(others)}",
        "--output=none", sys.executable, "-m", __name__, job, hosts[0], str(log),
        "requeue" if is_requeued else "cancel",
    ]  # fmt: skip
    with log.open("ab") as errors:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=errors, env=environ)


def has_lost(job: str, host: str) -> bool:
    """Return whether Slurm has removed `host` from a job that still runs."""
    shown = _output_of("scontrol", "--oneliner", "show", "job", job)
    found = re.search(r" NodeList=(\S+)", shown)
    return "JobState=RUNNING" in shown and found is not None and host not in expand_host_list(found[1])


def _watch(job: str, first_host: str, log: Path, action: str) -> None:
    while not has_lost(job, first_host):
        time.sleep(_WATCH_INTERVAL_S)
    is_requeued = action == "requeue"
    after = (
        "the job is requeued and resumes from its checkpoint" if is_requeued else "the job ends; resume with RESUME=1"
    )
    with log.open("a") as lines:
        lines.write(f"{first_host}, the first host, is lost: {after}\n")
    if is_requeued and subprocess.run(["scontrol", "requeue", job]).returncode == 0:  # noqa: S607
        return
    if has_lost(job, first_host):  # otherwise the watch on another host has requeued the job, or ended it
        subprocess.run(["scancel", job])  # noqa: S607


def _output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


if __name__ == "__main__":
    _watch(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
