"""What two processes of a node must have in common, so that a fork of the one may be the rank of the other."""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpitrain.cluster.cpu.cpuid import cpuid_answers

# What launchers and schedulers tell each rank, with the GPU that it may use: all of it read after the fork. And what
# a shell tells itself.
_OF_ONE_RANK = re.compile(
    r"PMI|OMPI_|MV2_|JSM_|ALPS_|PBS_|PRTE_|MPI_|MPIR_|HYD|PALS_|FLUX_|SLURM|TORCHELASTIC_|MASTER_|(LOCAL_|GROUP_|ROLE_)?RANK$|ROLE_NAME$"
    r"|(CUDA|ROCR|HIP)_VISIBLE_DEVICES$|GPU_DEVICE_ORDINAL$|ZE_AFFINITY_MASK$|_$|SHLVL$|OLDPWD$"
)
_GPUS = re.compile(r"SLURM_(JOB|STEP)_GPUS$|(CUDA|ROCR|HIP)_VISIBLE_DEVICES$|GPU_DEVICE_ORDINAL$")
_SLURM_TASK = re.compile(r"/task_\d+$", re.MULTILINE)
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
_LIMITS = sorted({value for name, value in vars(resource).items() if name.startswith("RLIMIT_")})
_EBX_HOLDS_THE_CORE = 1  # of leaf 1


def likeness(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return it by name, as JSON would give it back. Raises OSError where the system does not tell."""
    return {
        "variables": _variables_of_all(environ),
        "working folder": os.getcwd(),
        "Python's path": sys.path,
        "Python's flags": list(sys.flags),
        "file mode mask": _umask(),
        "limits": [list(resource.getrlimit(number)) for number in _LIMITS],
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "number of CPUs": len(os.sched_getaffinity(0)),
        "memory policy": _memory_policy(),
        "containers": [os.readlink(f"/proc/self/ns/{name}") for name in _NAMESPACES],
        "control group": _control_group(environ),
        "CPU": _cpu(),
    }


def _variables_of_all(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what differs from rank to rank."""
    return {name: value for name, value in environ.items() if not _OF_ONE_RANK.match(name)}


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Name the first thing in which they differ, of variables the name; empty where they do not."""
    name = next((name for name in (*one, *other) if one.get(name) != other.get(name)), "")
    inner, of_other = one.get(name), other.get(name)
    if isinstance(inner, dict) and isinstance(of_other, dict):
        return f"{name}: {difference(inner, of_other)}"
    return name


def _umask() -> str:
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next((line.split()[1] for line in status.splitlines() if line.startswith("Umask:")), "")


def _memory_policy() -> str:
    """Return the policy of the first mapping, which is the process's: `default`, `bind:0`; empty without NUMA."""
    try:
        with Path("/proc/self/numa_maps").open(encoding="ascii", errors="replace") as file:
            return file.readline().split()[1]
    except (OSError, IndexError):
        return ""


def _control_group(environ: Mapping[str, str]) -> str:
    groups = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="replace")
    # Slurm gives each task a group of its own, whose only limit is on the devices that it may open.
    return groups if any(_GPUS.match(name) for name in environ) else _SLURM_TASK.sub("", groups)


def _cpu() -> list[list[int]]:
    """Return CPUID's words on what this process can run: under an emulator, other ones than natively."""
    if os.uname().machine != "x86_64":
        return []
    with cpuid_answers() as answers:
        if answers is None:
            return []
        first = list(answers.ask(1, 0))
        del first[_EBX_HOLDS_THE_CORE]
        return [first, list(answers.ask(7, 0))]
