"""The hosts of a Slurm job: which of them answer, and a watch over the first one.

Slurm keeps a job with --no-kill whose first host is lost, with its script gone, until the time limit. Two of the other
hosts look now and then whether that is so, and requeue or cancel the job; logs/JOB_watch.log says so.

`python -m mpitrain.launch.inside.slurm_hosts JOB FIRST_HOST LOG requeue|cancel` watches, on one host.
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
    """Return the words that start what follows them once on each host."""
    return [*_STEP, f"--nodes={num_nodes}", f"--ntasks={num_nodes}", "--ntasks-per-node=1"]


def hosts_that_answer(hosts: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return those of `hosts` that start a process in time; all are asked at once."""
    probes = [_start_probe(host, environ) for host in hosts]
    deadline_s = time.monotonic() + _PROBE_TIMEOUT_S
    return [host for host, probe in zip(hosts, probes, strict=True) if _succeeds(probe, deadline_s)]


def _start_probe(host: str, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    words = [*_STEP, "--nodes=1", "--ntasks=1", f"--nodelist={host}", "true"]
    null = subprocess.DEVNULL
    return subprocess.Popen(words, stdin=null, stdout=null, stderr=null, env=environ)


def _succeeds(probe: subprocess.Popen[bytes], deadline_s: float) -> bool:
    try:
        return probe.wait(max(0.0, deadline_s - time.monotonic())) == 0
    except subprocess.TimeoutExpired:
        probe.terminate()
        return False


def start_watch(
    job: str, name: str, hosts: Sequence[str], is_requeued: bool, environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start the watch over the first of several hosts, on two of the others. Raises OSError."""
    others, log = hosts[1:3], Path("logs") / f"{name}_watch.log"
    words = [
        *_STEP, "--no-kill", f"--nodes={len(others)}", f"--ntasks={len(others)}", f"--nodelist={','.join(others)}",
        "--output=none", sys.executable, "-m", __name__, job, hosts[0], str(log),
        "requeue" if is_requeued else "cancel",
    ]  # fmt: skip
    with log.open("ab") as errors:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=errors, env=environ)


def has_lost(job: str, host: str) -> bool:
    """Tell whether Slurm has taken `host` from a job that still runs."""
    shown = _said("scontrol", "--oneliner", "show", "job", job)
    found = re.search(r" NodeList=(\S+)", shown)
    return "JobState=RUNNING" in shown and found is not None and host not in expand_host_list(found[1])


def _watch(job: str, first_host: str, log: Path, action: str) -> None:
    while not has_lost(job, first_host):
        time.sleep(_WATCH_INTERVAL_S)
    is_requeued = action == "requeue"
    after = "back into the queue, to go on from the checkpoint" if is_requeued else "the job ends; go on with RESUME=1"
    with log.open("a") as lines:
        lines.write(f"{first_host}, the first host, is lost: {after}\n")
    if not (is_requeued and subprocess.run(["scontrol", "requeue", job]).returncode == 0):  # noqa: S607
        subprocess.run(["scancel", job])  # noqa: S607


def _said(*words: str) -> str:
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


if __name__ == "__main__":
    _watch(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
