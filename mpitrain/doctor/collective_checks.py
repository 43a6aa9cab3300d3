"""Checks between ranks, in order; each is a step with a time limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from mpitrain.cluster import Place
from mpitrain.cluster.cores import threads_per_rank
from mpitrain.comm import Ranks
from mpitrain.comm.probes.measurements import leave_world, mpi_thread_level
from mpitrain.comm.start import fail_alone, start_ranks
from mpitrain.config import RunConfig, TrainingSection
from mpitrain.doctor import network
from mpitrain.doctor.check_result import CheckResult, exit_code_of, render
from mpitrain.doctor.comparisons import compare_devices, compare_facts, compare_fingerprints, compare_notes
from mpitrain.doctor.rank_facts import RankFacts, collect_device_facts, collect_facts, file_fingerprint
from mpitrain.doctor.steps import END_LIMIT_S, DoctorRequest, Steps
from mpitrain.errors import LaunchError


def run_collective_checks(
    place: Place,
    steps: Steps,
    request: DoctorRequest,
    results: list[CheckResult],
    config: RunConfig | None,
    environ: Mapping[str, str],
) -> int:
    """Start the ranks, check them, print on rank 0, and return the same exit code on all ranks. Collective."""
    facts = collect_facts(place.rank, environ)
    steps.watch.tell(facts=dataclasses.asdict(facts))
    steps.enter("start MPI")
    try:
        ranks = start_ranks(environ)
    except LaunchError as error:
        steps.watch.tell(failure=str(error))
        # Without a communicator the ranks can be compared only by the notes that they left in files.
        results += [_launch_failure(error), *compare_notes(steps.notes())]
        steps.enter("end", request.static_limit_s + END_LIMIT_S, leaves=True)
        steps.print_once(render(results, place.world_size, request.as_json), request.static_limit_s)
        return exit_code_of(results)
    ranks.watch = steps.watch
    try:
        return _check_ranks(ranks, facts, steps, request, results, config)
    except BaseException as error:
        fail_alone(ranks, error)
        raise


def _launch_failure(error: LaunchError) -> CheckResult:
    problem, _, fix = str(error).partition("\nTo fix it: ")
    if not fix:
        problem, _, fix = problem.partition("; ")
    return CheckResult("ranks find each other", "fail", problem, fix)


def _check_ranks(
    ranks: Ranks,
    facts: RankFacts,
    steps: Steps,
    request: DoctorRequest,
    results: list[CheckResult],
    config: RunConfig | None,
) -> int:
    settings = ranks.cpu.broadcast_object(config) or RunConfig()
    facts = dataclasses.replace(facts, rank=ranks.rank, host=ranks.host)
    notices = (CheckResult("launch", "warn", *_split(notice)) for notice in ranks.notices)
    results += [_describe_ranks(ranks), *notices]
    for title, check in _checks(ranks, facts, settings, request.timeout_s):
        steps.enter(title)
        results += check(results)
        steps.keep(results)
    steps.enter("print")
    exit_code: int = ranks.cpu.broadcast_object(exit_code_of(results))
    if ranks.is_root and steps.watch.claim():
        ranks.say(*render(results, ranks.world_size, request.as_json).rstrip("\n").split("\n"))
    steps.enter("end", END_LIMIT_S, leaves=True)
    leave_world(ranks)
    return exit_code


def _describe_ranks(ranks: Ranks) -> CheckResult:
    carrier = "MPI" if ranks.transport == "mpi" else "torch.distributed (gloo)"
    return CheckResult(
        "ranks find each other",
        "pass",
        f"{ranks.world_size} rank(s) on {ranks.num_nodes} node(s) over {carrier}, as launched",
    )


def _split(notice: str) -> tuple[str, str]:
    problem, _, fix = notice.rpartition("; ")
    return (problem, fix) if problem else (notice, "")


Step = tuple[str, Callable[[list[CheckResult]], Iterable[CheckResult]]]


def _checks(ranks: Ranks, facts: RankFacts, config: RunConfig, limit_s: float) -> list[Step]:
    """Return the steps, the same on all ranks: they depend only on values that are equal on all ranks."""
    steps: list[Step] = [
        ("compare the ranks", lambda _: _compare_ranks(ranks, facts, config.training, config.compute.device)),
        ("read the data file on all ranks", lambda _: _compare_data(ranks, facts, config.data.entries)),
        ("shared files", lambda _: [network.check_shared_files(ranks, Path(config.output.model_dir))]),
        ("TCP to rank 0", lambda _: [network.check_tcp(ranks)]),
        ("clocks", lambda _: [network.check_clocks(ranks)]),
    ]
    backends = ["mpi", "gloo", "nccl"] if ranks.transport == "mpi" else ["gloo", "nccl"]
    return [*steps, *((f"Allreduce over {name}", _backend_check(ranks, name, limit_s)) for name in backends)]


def _backend_check(ranks: Ranks, backend: str, limit_s: float) -> Callable[[list[CheckResult]], Iterable[CheckResult]]:
    def check(results: list[CheckResult]) -> Iterable[CheckResult]:
        statuses = {result.name: result.status for result in results}
        if backend != "mpi" and statuses.get("TCP to rank 0") == "fail":
            return [CheckResult(f"Allreduce over {backend}", "skip", "not tried: it needs TCP between the ranks")]
        if backend == "nccl" and statuses.get("GPU of each rank") != "pass":
            return [CheckResult("Allreduce over nccl", "skip", "not tried: not every rank has a GPU of its own")]
        # Half the step's limit, so that the library's own message about a lost rank comes before the agent's.
        return network.check_backend(ranks, backend, limit_s / 2)

    return check


def _compare_ranks(ranks: Ranks, facts: RankFacts, training: TrainingSection, device_name: str) -> list[CheckResult]:
    all_facts = ranks.cpu.all_gather_object(facts)
    cores = dict(ranks.cpu.all_gather_object((ranks.host, ranks.node_cores)))
    keeps_bits = training.reduction != "any"
    threads = threads_per_rank(training.threads_per_rank, keeps_bits, ranks.node_cores, ranks.local_world_size)
    device = collect_device_facts(device_name, ranks.local_rank, mpi_thread_level(ranks))
    devices = ranks.cpu.all_gather_object(device)
    return [*compare_facts(all_facts, threads, cores), *compare_devices(all_facts, devices)]


def _compare_data(ranks: Ranks, facts: RankFacts, entries: Sequence[str]) -> list[CheckResult]:
    if not entries:
        return []
    prints = ranks.cpu.all_gather_object((facts, " ".join(file_fingerprint(Path(entry)) for entry in entries)))
    return [compare_fingerprints([fact for fact, _ in prints], [text for _, text in prints])]
