"""Short measurements between the ranks: Allreduce (result and speed), a DDP step, offsets of the clocks."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from mpitrain.comm.communicator import Communicator
from mpitrain.comm.device import Device
from mpitrain.comm.probes.probe_group import ProbeGroup
from mpitrain.comm.ranks import Ranks

MEASURING_S = 0.5
FEWEST_CALLS, MOST_CALLS = 3, 30
LARGE_BYTES = 4 << 20
CLOCK_ROUNDS = 8
_DDP_TOLERANCE = 1e-5


@dataclass(frozen=True)
class AllReduceReading:
    """Result of an Allreduce: latency for one number, bandwidth for 4 MiB, and the first wrong value (empty: none)."""

    latency_us: float
    bandwidth_gb_s: float
    wrong: str = ""


@dataclass(frozen=True)
class ClockReading:
    """Offset of a rank's clock (positive: ahead of rank 0's), and its uncertainty, half the round-trip time."""

    offset_s: float
    uncertainty_s: float


def probe_all_reduce(data: Communicator, device: torch.device | Device) -> AllReduceReading:
    """Check and time `data.all_reduce` on `device`. Collective.

    The bandwidth is the algorithm bandwidth: bytes of the buffer divided by the seconds of one call on this rank.
    """
    wrong = _first_wrong_value(data, device)
    small = torch.ones(1, dtype=torch.float64, device=device)
    large = torch.zeros(LARGE_BYTES // 4, dtype=torch.float32, device=device)
    latency_s, large_s = _median_time_s(data, small), _median_time_s(data, large)
    return AllReduceReading(latency_s * 1e6, LARGE_BYTES / large_s / 1e9, wrong)


def _first_wrong_value(data: Communicator, device: torch.device | Device) -> str:
    # Small integers, different for each element and rank: float32 sums are exact in any order of addition.
    elements = torch.arange(1000, dtype=torch.float32, device=device)
    values = elements + data.rank + 1
    data.all_reduce(values)
    expected = elements * data.size + data.size * (data.size + 1) // 2
    differing = torch.nonzero(values != expected)
    if len(differing) == 0:
        return ""
    index = int(differing[0])
    return f"element {index} is {float(values[index])} instead of {float(expected[index])}"


def _median_time_s(data: Communicator, tensor: torch.Tensor) -> float:
    _times_s(data, tensor, 1)  # opens connections
    once_s = _times_s(data, tensor, 1)[0]
    # All ranks must use the same number of calls, chosen to take about MEASURING_S also on a busy machine.
    calls = torch.tensor([min(MOST_CALLS, max(FEWEST_CALLS, int(MEASURING_S / once_s)))], device=tensor.device)
    data.all_reduce(calls, "min")
    return statistics.median(_times_s(data, tensor, int(calls[0])))


def _times_s(data: Communicator, tensor: torch.Tensor, calls: int) -> list[float]:
    times_s = []
    for _ in range(calls):
        started_s = time.perf_counter()
        data.all_reduce(tensor)
        if tensor.is_cuda:
            torch.cuda.synchronize(tensor.device)
        times_s.append(time.perf_counter() - started_s)
    return times_s


def probe_ddp_step(ranks: Ranks, probe: ProbeGroup) -> str:
    """Run one backward pass through DistributedDataParallel; return the error in the gradient, or "". Collective."""
    from torch.nn.parallel import DistributedDataParallel

    inputs = torch.full((4, 7), 1.0 + ranks.rank, device=probe.device)
    own_gradient = _gradient(_same_model(probe.device), inputs).cpu().double()
    model = DistributedDataParallel(_same_model(probe.device), process_group=probe.group)
    shared = _gradient(model, inputs).cpu().double()
    ranks.cpu.all_reduce(own_gradient)
    difference = float((shared - own_gradient / ranks.world_size).abs().max())
    return "" if difference <= _DDP_TOLERANCE else f"gradient differs from the ranks' mean by {difference:.2g}"


def _same_model(device: torch.device | Device) -> torch.nn.Module:
    model = torch.nn.Linear(7, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.01)
    return model.to(device)


def _gradient(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    model(inputs).square().mean().backward()
    return torch.cat([parameter.grad.reshape(-1) for parameter in model.parameters() if parameter.grad is not None])


def measure_clocks(communicator: Communicator) -> list[ClockReading]:
    """Compare every rank's clock with rank 0's by ping-pong, as NTP does; the same list on all ranks. Collective."""
    readings = [ClockReading(0.0, 0.0)]
    for other in range(1, communicator.size):
        if communicator.rank == 0:
            rounds = [_ask_clock(communicator, other) for _ in range(CLOCK_ROUNDS)]
            readings.append(min(rounds, key=lambda reading: reading.uncertainty_s))
        elif communicator.rank == other:
            for _ in range(CLOCK_ROUNDS):
                communicator.exchange(torch.zeros(1, dtype=torch.float64), 0)
                communicator.exchange(torch.tensor([time.time()], dtype=torch.float64), 0)
    result: list[ClockReading] = communicator.broadcast_object(readings)
    return result


def _ask_clock(communicator: Communicator, other: int) -> ClockReading:
    before_s = time.time()
    communicator.exchange(torch.zeros(1, dtype=torch.float64), other)
    # The other rank reads its clock between the two exchanges, and so between the two readings here.
    there_s = float(communicator.exchange(torch.zeros(1, dtype=torch.float64), other)[0])
    after_s = time.time()
    return ClockReading(there_s - (before_s + after_s) / 2, (after_s - before_s) / 2)


def mpi_thread_level(ranks: Ranks) -> str | None:
    """Return the name of the thread level provided by MPI; None if the ranks do not use MPI."""
    if ranks.transport != "mpi":
        return None
    from mpi4py import MPI

    names = ("SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE")
    levels = {getattr(MPI, f"THREAD_{name}"): name for name in names}
    return levels.get(MPI.Query_thread(), "unknown")


def leave_world(ranks: Ranks) -> None:
    """Wait for all ranks, then destroy torch's process group. Collective."""
    ranks.cpu.barrier()
    if dist.is_initialized():
        dist.destroy_process_group()
