"""Static checks of the machine: compilers, scheduler, cores, threads, memory, clock and host name."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from mpitrain.cluster import detect_usable_core_count
from mpitrain.compiler import find_compiler
from mpitrain.doctor.check_result import CheckResult
from mpitrain.errors import MpitrainError
from mpitrain.native.toolchain import find_toolchain

_GIB = 1 << 30
_LITTLE_MEMORY_BYTES = 1 * _GIB
_SCHEDULERS = {"Slurm": ("srun", "sbatch"), "PBS": ("qsub",), "Flux": ("flux",), "LSF": ("bsub",)}
_GROUPS, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def check_compiler(environ: Mapping[str, str]) -> CheckResult:
    """Check for a C++ compiler, which builds the compiled engine's kernels and which torch.compile needs."""
    wanted = environ.get("CXX") or "g++"
    found = find_compiler("c++", environ)
    if found:
        return CheckResult("C++ compiler", "pass", found)
    fix = "apt-get install g++, module load gcc, or set CXX to the compiler's path"
    return CheckResult(
        "C++ compiler", "warn",
        f"no {wanted} and no c++ on the PATH: training.engine=traced computes instead, slower and with other bits", fix,
    )  # fmt: skip


def check_native_toolchain() -> CheckResult:
    """Check for the tools that build the C++ program; only `mpitrain verify` needs them."""
    name = "C++ program"
    try:
        tools = find_toolchain()
    except MpitrainError as error:
        problem, _, fix = str(error).partition("; ")
        return CheckResult(name, "warn", f"cannot be built (mpitrain verify): {problem}", fix or problem)
    return CheckResult(name, "pass", f"can be built: {tools.cmake}, {tools.mpi_compiler}")


def check_scheduler(environ: Mapping[str, str]) -> CheckResult:
    """Report the schedulers whose commands are on the PATH; having none is not a failure."""
    path = environ.get("PATH", "")
    found = [
        f"{scheduler} ({', '.join(command for command in commands if shutil.which(command, path=path))})"
        for scheduler, commands in _SCHEDULERS.items()
        if any(shutil.which(command, path=path) for command in commands)
    ]
    return CheckResult("scheduler", "pass" if found else "skip", ", ".join(found) or "none on the PATH: use mpirun")


def check_cores(environ: Mapping[str, str]) -> CheckResult:
    """Check that the variables that set the number of threads do not exceed the number of usable cores."""
    cores = detect_usable_core_count()
    settings = {name: environ[name] for name in _THREAD_VARIABLES if environ.get(name)}
    found = ", ".join([f"{cores} of {os.cpu_count()} usable here", *(f"{k}={v}" for k, v in settings.items())])
    for name, text in settings.items():
        number = text.split(",")[0]
        if not (number.isascii() and number.isdigit() and int(number) > 0):
            return CheckResult("cores", "fail", found, f"{name}={text} is not a number of threads: export {name}=1")
        if int(number) > cores:
            return CheckResult("cores", "warn", found, f"more threads than cores: export {name}={cores} or less")
    return CheckResult("cores", "pass", found)


def available_memory_bytes() -> int | None:
    """Return the number of bytes that this job may still allocate; None if it is unknown.

    It is the smaller of the machine's free memory and that left by the control group's limits.
    """
    limits = [_meminfo_available(), _cgroup_free()]
    return min((limit for limit in limits if limit is not None), default=None)


def _meminfo_available() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _cgroup_free() -> int | None:
    """Return the memory left under the limits of this process's control group and its parents; None without limits."""
    lines = _OWN_GROUPS.read_text(encoding="utf-8").splitlines() if _OWN_GROUPS.exists() else []
    groups = {controllers: path for _, controllers, path in (line.split(":", 2) for line in lines)}
    free = []
    for root, group, limit, used in (
        (_GROUPS, groups.get("", "/"), "memory.max", "memory.current"),
        (_GROUPS / "memory", groups.get("memory", "/"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        own = root / group.lstrip("/")
        for folder in (one for one in (own, *own.parents) if one.is_relative_to(root)):
            with contextlib.suppress(OSError):
                texts = [(folder / name).read_text(encoding="ascii").strip() for name in (limit, used)]
                free += [int(texts[0]) - int(texts[1])] if all(text.isdigit() for text in texts) else []
    return min(free, default=None)


def check_memory() -> CheckResult:
    """Check that the free memory suffices for at least one rank."""
    available = available_memory_bytes()
    if available is None:
        return CheckResult("memory", "skip", "the system does not report its free memory")
    found = f"{available / _GIB:.1f} GiB free"
    if available < _LITTLE_MEMORY_BYTES:
        return CheckResult(
            "memory", "warn", found, "a rank needs about 0.5 GiB: request more memory (--mem), or use fewer ranks"
        )
    return CheckResult("memory", "pass", found)


def check_clock() -> CheckResult:
    """Check that the clock is not behind this file's date; a wrong clock would mislead make and checkpoints."""
    now_s, file_s = time.time(), Path(__file__).stat().st_mtime
    found = datetime.datetime.fromtimestamp(now_s, datetime.UTC).isoformat(timespec="seconds")
    if now_s < file_s - 3600:
        return CheckResult(
            "clock", "warn", f"{found}: before this program was installed", "set the clock (chrony, ntp)"
        )
    return CheckResult("clock", "pass", found)


def check_host_name() -> CheckResult:
    """Check that this host's name resolves to an address, which gloo, NCCL and MPI over TCP need."""
    host = socket.gethostname()
    try:
        address = socket.gethostbyname(host)
    except OSError as error:
        fix = (
            f"add a line `ADDRESS {host}` to /etc/hosts, or name the interface: GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME"
        )
        return CheckResult("host name", "warn", f"{host} does not resolve ({error.strerror})", fix)
    return CheckResult("host name", "pass", f"{host} is {address}")
