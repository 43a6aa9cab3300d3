"""What a rank computes in a step, on any number of ranks, and how long that takes as measured on one rank here.

P  ranks      V  virtual ranks      B  samples of all ranks in a step
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mpitrain.bench.step_cases import ScaledRun, StepCase
from mpitrain.bench.step_results import StepResult
from mpitrain.comm.virtual_ranks import FEWEST_ROWS, microbatches_of
from mpitrain.errors import MpitrainError

# On two ranks each copies its row into the node's memory and adds both.
ROWS_TOUCHED_BY_TWO = 3


@dataclass(frozen=True)
class Workload:
    """The microbatches of a rank in one step, and the rows of each."""

    num_microbatches: int
    rows: int


@dataclass(frozen=True)
class Costs:
    """What was measured of a run: seconds of computing, the bytes that a rank adds, seconds to copy or add these.

    `row_s` is 0 where two ranks here do not add in memory that they share, but by messages.
    """

    computing_s: Mapping[Workload, float]
    row_bytes: int
    row_s: float
    engine: str

    @property
    def adds_in_memory(self) -> bool:
        """Whether ranks of a node add in its memory, which is what is simulated."""
        return self.row_s > 0


def workload_of(batch_size: int, num_ranks: int, num_virtual_ranks: int | None, kind: str = "points") -> Workload:
    """Return what each of P ranks computes, P and V powers of two; V None: as many microbatches as the batch has.

    A V that is named is raised to P where it is less; of ranks beyond the batch's microbatches, what the others do. A
    batch with work for more ranks than it has microbatches is computed as `training.virtual_ranks=P` asks.
    """
    if num_virtual_ranks is None:
        number = microbatches_of(batch_size, kind)
        if num_ranks > number and batch_size >= FEWEST_ROWS * num_ranks:
            number = num_ranks
        return Workload(max(1, number // num_ranks), -(-batch_size // number))
    virtual_ranks = max(num_virtual_ranks, num_ranks)
    return Workload(virtual_ranks // num_ranks, -(-batch_size // virtual_ranks))


def computing_case(run: ScaledRun, workload: Workload) -> StepCase:
    """Return the case of one rank that computes just this."""
    num, rows = workload.num_microbatches, workload.rows
    settings = (*run.engine.settings, f"training.virtual_ranks={num}")
    engine = replace(run.engine, name=f"{run.engine.name} in {num}", settings=settings)
    return replace(run, engine=engine).case(num * rows, 1)


def adding_case(run: ScaledRun) -> StepCase:
    """Return the case of two ranks that tells how long adding takes."""
    return run.case(run.batch_size, 2)


def costs_of(run: ScaledRun, workloads: Sequence[Workload], results: Mapping[Any, StepResult]) -> Costs:
    """Return what the results, by their cases' keys, tell of a run. Raises MpitrainError where one failed."""
    adding = _measured(results[adding_case(run).key])
    of_workloads = {workload: _measured(results[computing_case(run, workload).key]) for workload in workloads}
    computing_s = {workload: (result.median_us or 0.0) * 1e-6 for workload, result in of_workloads.items()}
    row_s = adding.spent["adding_us"] * 1e-6 / ROWS_TOUCHED_BY_TWO
    return Costs(computing_s, int(adding.facts["row_bytes"]), row_s, str(adding.facts["engine"]))


def _measured(result: StepResult) -> StepResult:
    if result.median_us is None or not result.spent:
        case = result.case
        what = result.error or "no times"
        raise MpitrainError(f"{case.network.name}, batch {case.global_batch_size}, {case.num_ranks} ranks: {what}")
    return result
