"""Simulated steps of a run on a described cluster, strong and weak, and beside real ones on this machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mpitrain.bench.simulated.cluster import Cluster
from mpitrain.bench.simulated.platform import nodes_of
from mpitrain.bench.simulated.program import SimulatedStep, Simulator, simulate
from mpitrain.bench.simulated.workloads import (
    Costs,
    Workload,
    adding_case,
    computing_case,
    costs_of,
    workload_of,
)
from mpitrain.bench.step import measure_steps
from mpitrain.bench.step_cases import ScaledRun, StepCase

SCALINGS = ("strong", "weak")
_NUMBER_BYTES = 4  # simulated_step.cpp sends float32
VALIDATION_RANKS = (1, 2, 4, 8)
ASSUMED_MEMORY_BANDWIDTH_GB_S = 10.0
Say = Callable[[str], None]


@dataclass(frozen=True)
class Point:
    """A number of ranks and the batch that they share."""

    run: ScaledRun
    scaling: str
    num_ranks: int

    @property
    def batch_size(self) -> int:
        """Samples of all ranks together."""
        return self.run.batch_size * (self.num_ranks if self.scaling == "weak" else 1)

    @property
    def workload(self) -> Workload:
        """What each rank computes."""
        kind = "fields" if self.run.network.has_fields else "points"
        return workload_of(self.batch_size, self.num_ranks, self.run.num_virtual_ranks, kind)

    @property
    def real_case(self) -> StepCase:
        """The same, measured on this machine."""
        return self.run.case(self.batch_size, self.num_ranks)


@dataclass(frozen=True)
class Simulated:
    """A simulated step: its time, the computing in it as measured, and what that says of so many ranks."""

    point: Point
    num_nodes: int
    computing_us: float
    step_us: float
    real_us: float | None = None
    speedup: float = 1.0
    efficiency: float = 1.0

    @property
    def communication(self) -> float:
        """The part of the step, 0 to 1, that is not computing."""
        return max(0.0, 1 - self.computing_us / self.step_us) if self.step_us else 0.0

    @property
    def error_percent(self) -> float | None:
        """How much longer the simulated step takes than the real one, percent; negative: shorter."""
        return None if self.real_us is None else 100 * (self.step_us / self.real_us - 1)


@dataclass(frozen=True)
class Outcome:
    """What is reported: `predicted` on the cluster, `validated` on this machine, what both rest on, by the runs."""

    predicted: Sequence[Simulated]
    validated: Sequence[Simulated]
    costs: Sequence[tuple[ScaledRun, Costs]]


@dataclass(frozen=True)
class Request:
    """What to simulate: `cluster` on these `ranks`, and a machine of `cores` where `validates`."""

    runs: Sequence[ScaledRun]
    cluster: Cluster | None
    ranks: Sequence[int]
    validates: bool
    cores: int
    num_rounds: int
    longest_s: float


def points_of(run: ScaledRun, ranks: Sequence[int]) -> list[Point]:
    """Return the points of both kinds of scaling; a batch is shared out as far as each rank has a sample of it."""
    points = [Point(run, scaling, num_ranks) for scaling in SCALINGS for num_ranks in ranks]
    return [point for point in points if point.batch_size >= point.num_ranks]


def predict(request: Request, simulator: Simulator, say: Say) -> Outcome:
    """Measure what a rank computes, here, and simulate the rest. Raises the user's errors, and MpitrainError."""
    points = [point for run in request.runs for point in points_of(run, request.ranks)] if request.cluster else []
    on_host = [p for run in request.runs for p in points_of(run, VALIDATION_RANKS)] if request.validates else []
    cases = [computing_case(point.run, point.workload) for point in (*points, *on_host)]
    cases += [*(adding_case(run) for run in request.runs), *(point.real_case for point in on_host)]
    unique = list({case.key: case for case in cases}.values())
    results = {one.case.key: one for one in measure_steps(unique, request.num_rounds, request.longest_s, False, say)}
    costs = {}
    for run in request.runs:
        own = {point.workload: None for point in (*points, *on_host) if point.run == run}
        costs[run.name] = costs_of(run, list(own), results)
    say(f"simulating {len(points) + len(on_host)} steps")
    predicted = []
    if request.cluster is not None:
        predicted = [_simulated(simulator, request.cluster, point, costs[point.run.name]) for point in points]
    host = Cluster(1, request.cores, max(VALIDATION_RANKS), 0.0, 1.0)
    validated = [
        replace(
            _simulated(simulator, host, point, costs[point.run.name]),
            real_us=results[point.real_case.key].median_us,
        )
        for point in on_host
    ]
    return Outcome(with_efficiencies(predicted), validated, [(run, costs[run.name]) for run in request.runs])


def _simulated(simulator: Simulator, cluster: Cluster, point: Point, costs: Costs) -> Simulated:
    computing_s = costs.computing_s[point.workload] / cluster.core_speed
    known = with_memory(cluster, costs)
    row_s = costs.row_bytes / (known.memory_bandwidth_gb_s or 1.0) * 1e-9
    step = SimulatedStep(point.num_ranks, point.num_ranks, -(-costs.row_bytes // _NUMBER_BYTES), computing_s, row_s)
    answer = simulate(simulator, known, step)
    step_us = statistics.fmean(answer["step_us"])
    return Simulated(point, nodes_of(cluster, point.num_ranks), computing_s * 1e6, step_us)


def with_memory(cluster: Cluster, costs: Costs) -> Cluster:
    """Return the cluster with a memory bandwidth: as described, else as measured here, else an assumed one."""
    measured_gb_s = costs.row_bytes / costs.row_s * 1e-9 if costs.adds_in_memory else ASSUMED_MEMORY_BANDWIDTH_GB_S
    return replace(cluster, memory_bandwidth_gb_s=cluster.memory_bandwidth_gb_s or measured_gb_s)


def with_efficiencies(results: Sequence[Simulated]) -> list[Simulated]:
    """Return the results with speed-up and efficiency against the fewest ranks of their run and kind of scaling."""
    first: dict[tuple[str, str], Simulated] = {}
    for result in results:
        first.setdefault((result.point.run.name, result.point.scaling), result)
    return [_against(first[result.point.run.name, result.point.scaling], result) for result in results]


def _against(first: Simulated, result: Simulated) -> Simulated:
    growth = result.point.num_ranks / first.point.num_ranks
    speedup = first.step_us / result.step_us * (growth if result.point.scaling == "weak" else 1)
    return replace(result, speedup=speedup, efficiency=speedup / growth)


def half_communication(results: Sequence[Simulated]) -> int | None:
    """Return the fewest ranks from which on communication takes half of a step or more; None where it never does."""
    below = [result.point.num_ranks for result in results if result.communication < 0.5]
    above = [result.point.num_ranks for result in results if result.point.num_ranks > max(below, default=0)]
    return min(above, default=None)
