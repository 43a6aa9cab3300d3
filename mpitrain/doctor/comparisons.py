"""Checks between ranks as pure functions of the ranks' facts: software, cores, threads, GPUs, memory, files."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mpitrain.cluster import as_ranges
from mpitrain.cluster.cores import oversubscription_warning
from mpitrain.comm.device import find_gpu_conflict
from mpitrain.doctor.check_result import CheckResult
from mpitrain.doctor.rank_facts import DeviceFacts, RankFacts

_GIB = 1 << 30
_LITTLE_MEMORY_BYTES = 1 << 29
_SHOWN_HOSTS = 6


def compare_facts(facts: Sequence[RankFacts], threads: int, cores_of_host: Mapping[str, int]) -> Iterator[CheckResult]:
    """Compare all ranks' facts, in rank order; `threads` per rank, `cores_of_host`: usable cores of each host."""
    yield compare_mpi(facts)
    yield compare_versions(facts)
    yield compare_hosts(facts)
    yield compare_cores(facts)
    yield check_oversubscription(facts, threads, cores_of_host)
    yield compare_variables(facts)
    yield compare_memory(facts)


def compare_notes(notes: Mapping[int, Mapping[str, Any]]) -> list[CheckResult]:
    """Return differences in software between ranks that left notes: a frequent cause of a failed start."""
    facts = [RankFacts(**note["facts"]) for _, note in sorted(notes.items()) if note.get("facts")]
    if len(facts) < 2:
        return []
    return [found for found in (compare_mpi(facts), compare_versions(facts)) if found.status == "fail"]


def compare_mpi(facts: Sequence[RankFacts]) -> CheckResult:
    """Check that all ranks loaded the same MPI library."""
    differing = _differing([(fact, f"{fact.mpi_library} ({fact.mpi_path})") for fact in facts])
    if differing:
        fix = "give every rank one environment: the same Python, modules and MPI4PY_LIBMPI (srun/mpirun --export=ALL)"
        return CheckResult("same MPI on all ranks", "fail", differing, fix)
    return CheckResult("same MPI on all ranks", "pass", facts[0].mpi_library)


def compare_versions(facts: Sequence[RankFacts]) -> CheckResult:
    """Check that Python and all packages have the same version on all ranks."""
    name = "same versions on all ranks"
    for package in facts[0].versions:
        differing = _differing([(fact, fact.versions.get(package) or "missing") for fact in facts])
        if differing:
            fix = "use one environment on a file system that all hosts share, or install the same versions on each host"
            return CheckResult(name, "fail", f"{package}: {differing}", fix)
    shown = ", ".join(f"{package} {facts[0].versions[package]}" for package in ("Python", "torch", "mpi4py", "numpy"))
    return CheckResult(name, "pass", shown)


def compare_hosts(facts: Sequence[RankFacts]) -> CheckResult:
    """Report the number of ranks on each host; uneven counts are allowed."""
    counts = Counter(fact.host for fact in facts)
    shown = ", ".join(f"{host}: {count} rank(s)" for host, count in list(counts.items())[:_SHOWN_HOSTS])
    return CheckResult(
        "hosts", "pass", shown + (f", and {len(counts) - _SHOWN_HOSTS} more" * (len(counts) > _SHOWN_HOSTS))
    )


def compare_cores(facts: Sequence[RankFacts]) -> CheckResult:
    """Check that no two ranks of a host are bound to the same cores."""
    name = "cores of each rank"
    for host, ranks in _by_host(facts).items():
        for first, second in itertools.pairwise(ranks):
            shared = set(first.cores) & set(second.cores)
            everything = {core for rank in ranks for core in rank.cores}
            # Ranks whose masks contain all cores of the node are not bound: the system distributes them.
            if shared and not (len(first.cores) == len(second.cores) == len(everything) and len(everything) > 1):
                found = (
                    f"{host}: ranks {first.rank} and {second.rank} are bound to the same core(s) {as_ranges(shared)}"
                )
                fix = "mpirun --bind-to core, or srun --cpu-bind=cores --cpus-per-task=N; then request enough cores"
                return CheckResult(name, "warn", found, fix)
    shown = "; ".join(f"rank {fact.rank}: {as_ranges(fact.cores)}" for fact in facts[:_SHOWN_HOSTS])
    return CheckResult(name, "pass", shown + (" ..." if len(facts) > _SHOWN_HOSTS else ""))


def check_oversubscription(facts: Sequence[RankFacts], threads: int, cores_of_host: Mapping[str, int]) -> CheckResult:
    """Check that on each host the ranks run no more threads than there are cores."""
    for host, ranks in _by_host(facts).items():
        warning = oversubscription_warning(len(ranks), threads, cores_of_host[host], host)
        if warning:
            problem, _, fix = warning.partition("; ")
            return CheckResult("enough cores", "warn", problem, fix)
    return CheckResult("enough cores", "pass", f"{threads} thread(s) a rank: enough cores on all hosts")


def compare_variables(facts: Sequence[RankFacts]) -> CheckResult:
    """Check that environment variables for threads, network interfaces and file locks are equal on all ranks."""
    for variable in facts[0].variables:
        differing = _differing([(fact, fact.variables.get(variable) or "not set") for fact in facts])
        if differing:
            fix = (
                f"set it once, before the launch, and pass it on: export {variable}=...; mpirun -x or srun --export=ALL"
            )
            return CheckResult("same variables on all ranks", "warn", f"{variable}: {differing}", fix)
    shown = [f"{name}={value}" for name, value in facts[0].variables.items() if value]
    return CheckResult("same variables on all ranks", "pass", ", ".join(shown) or "none of them set")


def compare_memory(facts: Sequence[RankFacts]) -> CheckResult:
    """Check that each rank's share of its host's free memory is enough to start."""
    shares = [
        (fact.memory_bytes // len(ranks), fact)
        for ranks in _by_host(facts).values()
        for fact in ranks
        if fact.memory_bytes is not None
    ]
    if not shares:
        return CheckResult("memory of each rank", "skip", "the hosts do not report their free memory")
    least, fact = min(shares, key=lambda share: share[0])
    found = f"at least {least / _GIB:.1f} GiB (rank {fact.rank} on {fact.host})"
    if least < _LITTLE_MEMORY_BYTES:
        fix = "start fewer ranks on that host, or request more memory (--mem, --mem-per-cpu)"
        return CheckResult("memory of each rank", "warn", found, fix)
    return CheckResult("memory of each rank", "pass", found)


def compare_devices(facts: Sequence[RankFacts], devices: Sequence[DeviceFacts]) -> Iterator[CheckResult]:
    """Check that each rank has a GPU of its own or no rank has one; check MPI's thread level."""
    yield _compare_gpus(facts, devices)
    levels = sorted({device.thread_level for device in devices if device.thread_level is not None})
    if levels and levels != ["MULTIPLE"]:
        fix = "use an MPI built with thread support (--enable-mpi-threads); below MULTIPLE the bits of a sum may differ"
        yield CheckResult("thread level", "warn", " and ".join(levels), fix)
    else:
        yield CheckResult("thread level", "pass" if levels else "skip", ", ".join(levels) or "no MPI between the ranks")


def _compare_gpus(facts: Sequence[RankFacts], devices: Sequence[DeviceFacts]) -> CheckResult:
    name = "GPU of each rank"
    for fact, device in zip(facts, devices, strict=True):
        if device.problem:
            fix = "request one GPU per rank from the scheduler (--gpus-per-task=1), or use compute.device=auto"
            return CheckResult(name, "fail", f"rank {fact.rank} on {fact.host}: {device.problem}", fix)
    if not any(device.gpu_uuid for device in devices):
        return CheckResult(name, "skip", "no GPU: the ranks compute on the CPU")
    conflict = find_gpu_conflict([fact.host for fact in facts], [device.gpu_uuid for device in devices])
    if conflict is not None:
        return CheckResult(name, "fail", *conflict)
    return CheckResult(name, "pass", f"{len(devices)} GPUs, one a rank: {devices[0].gpu_name}")


def compare_fingerprints(facts: Sequence[RankFacts], fingerprints: Sequence[str]) -> CheckResult:
    """Check that all ranks read the same data file."""
    name = "data seen by all ranks"
    fix = "put the data on a file system that all hosts share, under the same path"
    differing = _differing(list(zip(facts, fingerprints, strict=True)))
    if differing or fingerprints[0].startswith("not readable"):
        return CheckResult(name, "fail", differing or f"all ranks: {fingerprints[0]}", fix)
    return CheckResult(name, "pass", fingerprints[0])


def _differing(values: Sequence[tuple[RankFacts, str]]) -> str:
    """Return a text with the most common value and the first rank that has another; "" if all are equal."""
    counts = Counter(value for _, value in values)
    if len(counts) <= 1:
        return ""
    usual = counts.most_common(1)[0][0]
    fact, value = next((fact, value) for fact, value in values if value != usual)
    others = len(values) - counts[usual] - 1
    more = f" (and {others} more ranks differ)" if others else ""
    return f"rank {fact.rank} on {fact.host} has {value}, most have {usual}{more}"


def _by_host(facts: Sequence[RankFacts]) -> dict[str, list[RankFacts]]:
    hosts: dict[str, list[RankFacts]] = defaultdict(list)
    for fact in facts:
        hosts[fact.host].append(fact)
    return hosts
