"""Times, bandwidths and wrong values of collectives over all transports of this launch, in one run.

algbw = bytes / time      busbw = algbw * factor: traffic on the network, comparable with the hardware's bandwidth
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mpitrain.bench.collective_kinds import KINDS, CollectiveKind
from mpitrain.bench.measurement import Candidate, CollectiveClock, Plan, Timing, measure_interleaved, timing_record
from mpitrain.bench.output import format_bytes, render_table
from mpitrain.bench.plots import draw_collectives
from mpitrain.comm import Ranks, mark_agreed
from mpitrain.comm.agreement import on_root
from mpitrain.comm.communicator import Communicator
from mpitrain.comm.mpi.communicator import MpiCommunicator
from mpitrain.comm.probes.transports import Call, Transport, available_transports, prepare_bare, start_transports
from mpitrain.errors import LaunchError, UserError
from mpitrain.train.engines.standard import EXTRA_ENTRIES

_TIMEOUT_S = 120.0
_VALUE_BYTES = 4  # float32
_NOT_WRITTEN = -1.0


@dataclass(frozen=True)
class CollectivesRequest:
    """Options of the command line; `transports` None means all that are available in this launch."""

    collectives: tuple[str, ...]
    transports: tuple[str, ...] | None
    min_bytes: int
    max_bytes: int
    factor: int
    plan: Plan


@dataclass(frozen=True)
class CollectiveResult:
    """One collective over one transport at one size; `wrong_values` of all ranks, checked before and after timing."""

    collective: str
    transport: str
    num_bytes: int
    timing: Timing
    bus_factor: float
    wrong_values: int

    @property
    def algbw_gb_s(self) -> float:
        """Bytes of the message divided by the median time, in 10^9 bytes a second."""
        return self.num_bytes / self.timing.median_s / 1e9

    @property
    def busbw_gb_s(self) -> float:
        """`algbw_gb_s` times the collective's factor."""
        return self.algbw_gb_s * self.bus_factor


def bench_collectives(
    ranks: Ranks, request: CollectivesRequest, check: Callable[[], None],
    write: Callable[[Mapping[str, Any], Callable[[], bytes]], None],
) -> int:  # fmt: skip
    """Measure as requested; rank 0 prints, and calls `write` with record and picture. Returns exit code 0. Collective.

    `check` raises OutputError if these files cannot be written. If a collective gave wrong values, raises LaunchError
    on all ranks after everything has been printed and written.
    """
    ranks.on_all_ranks(lambda: _check_sizes(request))
    ranks.on_all_ranks(check)
    ranks.end_start()
    names = choose_transports(request.transports, available_transports(ranks))
    torch.set_num_threads(1)  # torch's threads spin after filling a tensor, which would disturb the timing
    transports = start_transports(ranks, names, _TIMEOUT_S)
    ranks.note(*ranks.notices)
    results: list[CollectiveResult] = []
    for name in request.collectives:
        found = [
            result
            for num_values in message_sizes(KINDS[name], request, ranks.cpu.size)
            for result in measure_collective(ranks.cpu, KINDS[name], num_values, transports, request.plan)
        ]
        ranks.say(*_render(name, found, ranks).split("\n"))
        results += found
    record = {"num_ranks": ranks.world_size, "num_nodes": ranks.num_nodes, "dtype": "float32", "transports": names}
    records = [to_record(result) for result in results]
    on_root(ranks.cpu, lambda: write({**record, "results": records}, lambda: draw_collectives(records)))
    _raise_if_wrong(results)
    return 0


def _check_sizes(request: CollectivesRequest) -> None:
    if request.min_bytes > request.max_bytes:
        raise UserError(
            f"--min-bytes {request.min_bytes} is larger than --max-bytes {request.max_bytes}; exchange them"
        )


def choose_transports(requested: Sequence[str] | None, available: Sequence[str]) -> list[str]:
    """Return the transports to measure. Raises LaunchError on all ranks if one is not available in this launch."""
    missing = [name for name in requested or () if name not in available]
    if missing:
        needs = "one GPU for each rank" if missing[0] == "nccl" else "ranks started by mpirun or srun --mpi=pmi2"
        raise mark_agreed(LaunchError(f"--transports {missing[0]}: needs {needs}; available: {','.join(available)}"))
    return list(requested or available)


def message_sizes(kind: CollectiveKind, request: CollectivesRequest, size: int) -> list[int]:
    """Return the numbers of values of all messages in ascending order, without duplicates caused by rounding."""
    numbers, num_bytes = [], request.min_bytes
    while num_bytes <= request.max_bytes:
        numbers.append(kind.num_values(num_bytes, size))
        num_bytes *= request.factor
    return sorted(set(numbers))


def measure_collective(
    communicator: Communicator, kind: CollectiveKind, num_values: int, transports: Sequence[Transport], plan: Plan
) -> list[CollectiveResult]:
    """Check, time and check again one collective of `num_values` float32 values over all transports. Collective."""
    trials = [_Trial(communicator, kind, num_values, transport) for transport in transports]
    wrong = [trial.count_wrong() for trial in trials]
    for trial in trials:
        trial.clear()
    candidates = {trial.transport.name: Candidate(trial.call, trial.transport.finish) for trial in trials}
    clock = CollectiveClock(communicator.barrier, lambda values: _slowest(communicator, values))
    timings = measure_interleaved(candidates, plan, clock)
    wrong = [before + trial.count_wrong() for before, trial in zip(wrong, trials, strict=True)]
    factor = kind.bus_factor(communicator.size)
    return [
        CollectiveResult(kind.name, name, num_values * _VALUE_BYTES, timings[name], factor, number)
        for name, number in zip(candidates, wrong, strict=True)
    ]


class _Trial:
    """The buffers of one collective over one transport."""

    def __init__(self, communicator: Communicator, kind: CollectiveKind, num_values: int, transport: Transport) -> None:
        self.transport = transport
        self._communicator = communicator
        place = (num_values, communicator.size, communicator.rank)
        self._input = kind.sent(*place)
        self._expected = kind.expected(*place).to(transport.device)
        self._sent = torch.zeros_like(self._input, device=transport.device)
        self._received = self._sent if kind.works_in_place else torch.zeros_like(self._expected)
        self.call: Call = transport.prepare(kind.name, self._sent, self._received)

    def count_wrong(self) -> int:
        """Run once on values with a known result; return the number of wrong values on all ranks. Collective."""
        self._received.fill_(_NOT_WRITTEN)
        self._sent.copy_(self._input)
        self.call()
        self.transport.finish()
        number = (self._received != self._expected).sum().cpu()
        self._communicator.all_reduce(number)
        return int(number)

    def clear(self) -> None:
        """Set the buffer to zeros for the timed calls, because repeated sums in place would overflow."""
        self._sent.zero_()


def _slowest(communicator: Communicator, values: Sequence[float]) -> list[float]:
    tensor = torch.tensor(values, dtype=torch.float64)
    communicator.all_reduce(tensor, "max")
    return [float(value) for value in tensor]


class ExchangeLoop:
    """Exchange of messages of the size of an engine's sums, instead of steps; timed as in `bench collectives`."""

    def __init__(self, engine: Any, ranks: Ranks) -> None:
        engine.close()
        if not isinstance(ranks.cpu, MpiCommunicator):
            raise mark_agreed(LaunchError("the exchange between nodes needs MPI, which does not connect these ranks"))
        trained = engine.inputs.model.named_parameters()
        num_values = sum(math.prod(parameter.shape) for _, parameter in trained) + EXTRA_ENTRIES
        self._ranks, self._sent = ranks, torch.zeros(num_values)
        self._received = torch.zeros_like(self._sent)
        self._call = prepare_bare(ranks.cpu.mpi_comm, "exchange", self._sent, self._received)

    def time_steps(self, num_steps: int) -> list[float]:
        """Return the mean time of a message in each timing sample, in microseconds. Ignores `num_steps`. Collective."""
        clock = CollectiveClock(self._ranks.barrier, lambda values: _slowest(self._ranks.cpu, values))
        return [
            sample_s * 1e6 for sample_s in measure_interleaved({"": Candidate(self._call)}, Plan(), clock)[""].samples_s
        ]


def _raise_if_wrong(results: Sequence[CollectiveResult]) -> None:
    wrong = [result for result in results if result.wrong_values]
    if wrong:
        first = wrong[0]
        raise mark_agreed(
            LaunchError(
                f"{first.collective} of {first.num_bytes} bytes over {first.transport}: {first.wrong_values} wrong "
                f"values ({len(wrong)} of {len(results)} measurements have wrong values); do not train over "
                f"{first.transport} here, and run mpitrain doctor"
            )
        )


def _render(name: str, results: Sequence[CollectiveResult], ranks: Ranks) -> str:
    title = (
        f"{name}: {ranks.world_size} rank(s) on {ranks.num_nodes} node(s), float32, median and 10th to 90th percentile"
    )
    columns = ("transport", "size", "median us", "10-90 % us", "algbw GB/s", "busbw GB/s", "wrong", "x first")
    first_s = {result.num_bytes: result.timing.median_s for result in reversed(results)}
    rows = [
        (
            result.transport,
            format_bytes(result.num_bytes),
            f"{result.timing.median_s * 1e6:.1f}",
            f"{result.timing.p10_s * 1e6:.1f}-{result.timing.p90_s * 1e6:.1f}",
            f"{result.algbw_gb_s:.3g}",
            f"{result.busbw_gb_s:.3g}",
            str(result.wrong_values),
            f"{result.timing.median_s / first_s[result.num_bytes]:.2f}",
        )
        for result in results
    ]
    return render_table(title, columns, rows)


def to_record(result: CollectiveResult) -> dict[str, Any]:
    """Return one result as a row of the JSON file."""
    return {
        "collective": result.collective,
        "transport": result.transport,
        "num_bytes": result.num_bytes,
        **timing_record(result.timing),
        "algbw_gb_s": result.algbw_gb_s,
        "busbw_gb_s": result.busbw_gb_s,
        "wrong_values": result.wrong_values,
    }
