"""Times of the steps: measured on each rank at negligible cost, gathered about once a second, described as text.

Each rank counts the seconds of its steps, of reading, of messages and of waiting. Waiting in the compiled engine's own
sums is measured directly. In a library's collective one rank cannot separate communication from waiting: the shortest
time over the ranks counts as communication, the excess of the other ranks as waiting for that rank.
"""

from __future__ import annotations

import functools
import resource
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from mpitrain.comm import Device, Ranks

_GATHER_EVERY_S = 1.0
_MOST_RANKS_LISTED = 64
KINDS = ("computing", "reading", "communicating")
"""Kinds of work of a step; the rest of its time is waiting for other ranks."""


@dataclass(frozen=True)
class RankTimes:
    """One rank's seconds so far; `messages`: collectives, with waiting; `waiting`, `adding`: the engine's own sums."""

    steps: int = 0
    total: float = 0.0
    reading: float = 0.0
    waiting: float = 0.0
    adding: float = 0.0
    messages: float = 0.0

    def since(self, before: RankTimes) -> RankTimes:
        """Return the times after `before`: the difference."""
        pairs = zip(astuple(self), astuple(before), strict=True)
        return RankTimes(*(now - then for now, then in pairs))

    def plus(self, more: RankTimes) -> RankTimes:
        """Return the sum of both."""
        return RankTimes(*map(sum, zip(astuple(self), astuple(more), strict=True)))

    @staticmethod
    def now(ranks: Ranks, spent: Any, steps: int) -> RankTimes:
        """Return this rank's clock readings after `steps` steps (only differences count); `spent` are the engine's."""
        notes = {id(it): it for it in (ranks.cpu.notes, ranks.tensors.notes)}.values()
        messages_s = sum(one.seconds for one in notes) + spent.messages
        return RankTimes(steps, time.perf_counter(), spent.reading, spent.waiting, spent.adding, messages_s)


@dataclass(frozen=True)
class Slowest:
    """The slowest rank: its work takes `behind_s` seconds per step more than the other ranks' median.

    `cause`: the kind of work with the largest excess.
    """

    rank: int
    host: str
    node: int
    cause: str
    behind_s: float
    share: float
    """`behind_s` as a share of the step's time."""


@dataclass(frozen=True)
class StepTiming:
    """Seconds per step of each rank, in rank order, by kind: `KINDS` and waiting.

    `memory_mib`: the most memory of each rank so far.
    """

    num_steps: int
    step_s: float
    samples_per_s: float
    seconds: Mapping[str, tuple[float, ...]]
    memory_mib: tuple[float, ...]
    gpus: tuple[dict[str, float] | None, ...]
    hosts: tuple[str, ...]
    nodes: tuple[int, ...]

    def share(self, kind: str) -> float:
        """Return the mean over the ranks of a kind's share of the step, 0 to 1."""
        return statistics.fmean(self.seconds[kind]) / self.step_s if self.step_s else 0.0

    @property
    def slowest(self) -> Slowest | None:
        """The rank that waits least, None if there is only one."""
        if len(self.hosts) == 1:
            return None
        busy = [self.step_s - waiting for waiting in self.seconds["waiting"]]
        rank = max(range(len(busy)), key=busy.__getitem__)
        behind = {kind: _above_others(self.seconds[kind], rank) for kind in KINDS}
        cause = max(KINDS, key=behind.__getitem__)
        behind_s = _above_others(busy, rank)
        share = behind_s / self.step_s if self.step_s else 0.0
        return Slowest(rank, self.hosts[rank], self.nodes[rank], cause, behind_s, share)

    @property
    def slowest_node(self) -> int | None:
        """The node whose ranks wait least on average, None if there is only one."""
        nodes = sorted(set(self.nodes))
        if len(nodes) == 1:
            return None
        of_ranks = list(zip(self.seconds["waiting"], self.nodes, strict=True))
        waiting = {node: [seconds for seconds, own in of_ranks if own == node] for node in nodes}
        return min(nodes, key=lambda node: statistics.fmean(waiting[node]))


class StepMeter:
    """Counter of this rank's steps that gathers all ranks' times about once a second, at the same steps on all."""

    def __init__(self, ranks: Ranks, spent: Any, samples_per_step: int) -> None:
        """Prepare the meter. `spent` returns the engine's `Spent`; `samples_per_step`: of all ranks together."""
        self._ranks, self._spent, self._samples_per_step = ranks, spent, samples_per_step
        self._times = self._before = RankTimes()
        self._next_step, self._counted = 1, 0
        self._gathered: list[tuple[Any, ...]] = []
        self.latest: StepTiming | None = None
        """The times gathered last, since the gathering before; None after `take_record` was called."""
        self._last_gather = self._last_record = [RankTimes()] * ranks.world_size

    def begin(self) -> None:
        """Start the clock at the beginning of an epoch's steps. Not collective."""
        self._counted = 0
        self._before = RankTimes.now(self._ranks, self._spent(), 0)

    def count(self, num_steps: int) -> None:
        """Count `num_steps` finished steps, the same number on all ranks; gather if it is due. Collective."""
        self._counted += num_steps
        if self._times.steps + self._counted >= self._next_step:
            self._add()
            self.gather()
            self.begin()

    def end(self, is_last: bool) -> None:
        """Stop the clock at the end of an epoch's steps; gather if `is_last`, the same on all ranks. Collective."""
        self._add()
        if is_last:
            self.gather()

    def _add(self) -> None:
        now = RankTimes.now(self._ranks, self._spent(), self._counted)
        self._times = self._times.plus(now.since(self._before))

    def gather(self) -> StepTiming:
        """Return the times of the steps since the last call, the same on all ranks. Collective."""
        before, self._last_gather = self._last_gather, self._gather()
        timing = self._timing(before)
        # Computed from values that are equal on all ranks, so that all gather next at the same step.
        self._next_step = self._last_gather[0].steps + max(1, int(_GATHER_EVERY_S / max(timing.step_s, 1e-9)))
        # The first steps are slow, so their rate limits the next interval only loosely.
        self._next_step = min(self._next_step, self._last_gather[0].steps + 100 * max(timing.num_steps, 1))
        self.latest = timing
        return timing

    def take_record(self) -> StepTiming | None:
        """Return the times of the steps since the last record; None if none were gathered since. Not collective."""
        if self.latest is None:
            return None
        self.latest = None
        before, self._last_record = self._last_record, self._last_gather
        return self._timing(before)

    def whole(self) -> StepTiming | None:
        """Return the times of all steps so far; None if there were no steps. Collective."""
        self._last_gather = self._gather()
        if self._last_gather[0].steps == 0:
            return None
        return self._timing([RankTimes()] * self._ranks.world_size)

    def _gather(self) -> list[RankTimes]:
        ranks = self._ranks
        mine = (astuple(self._times), memory_mib(), gpu_use(ranks.device), ranks.host, ranks.node_rank)
        self._gathered = ranks.gather_object(mine)
        return [RankTimes(*times) for times, *_ in self._gathered]

    def _timing(self, before: Sequence[RankTimes]) -> StepTiming:
        spent = [now.since(then) for now, then in zip(self._last_gather, before, strict=True)]
        _, memory, gpus, hosts, nodes = zip(*self._gathered, strict=True)
        return timing_of(spent, self._samples_per_step, memory, gpus, hosts, nodes)


def timing_of(
    spent: Sequence[RankTimes], samples_per_step: int, memory_mib: Sequence[float], gpus: Sequence[Any],
    hosts: Sequence[str], nodes: Sequence[int],
) -> StepTiming:  # fmt: skip
    """Return the ranks' seconds per step, computed from their gathered times. Not collective."""
    steps = max(spent[0].steps, 1)
    # All ranks take each step together; their total times differ by less than one step.
    step_s = max(one.total for one in spent) / steps
    message_s = min(one.messages for one in spent) / steps
    communicating = [message_s + one.adding / steps for one in spent]
    waiting = [one.waiting / steps + one.messages / steps - message_s for one in spent]
    reading = [one.reading / steps for one in spent]
    computing = [
        max(step_s - of_messages - of_waiting - of_reading, 0.0)
        for of_messages, of_waiting, of_reading in zip(communicating, waiting, reading, strict=True)
    ]
    seconds = dict(zip((*KINDS, "waiting"), map(tuple, (computing, reading, communicating, waiting)), strict=True))
    samples_per_s = samples_per_step / step_s if step_s else 0.0
    return StepTiming(
        spent[0].steps, step_s, samples_per_s, seconds, tuple(memory_mib), tuple(gpus), tuple(hosts), tuple(nodes)
    )


def timing_record(timing: StepTiming) -> dict[str, Any]:
    """Return a timing as a record of `metrics.jsonl`; for more than 64 ranks with least, median and most only."""
    slowest = timing.slowest
    record: dict[str, Any] = {
        "steps": timing.num_steps,
        "step_s": _rounded(timing.step_s),
        "samples_per_s": _rounded(timing.samples_per_s),
        "samples_per_s_per_rank": _rounded(timing.samples_per_s / len(timing.hosts)),
        "shares": {kind: round(timing.share(kind), 4) for kind in timing.seconds},
        "ranks": {
            name: _listed(values) for name, values in (*timing.seconds.items(), ("memory_mib", timing.memory_mib))
        },
    }
    if any(gpu is not None for gpu in timing.gpus):
        record["gpus"] = list(timing.gpus[:_MOST_RANKS_LISTED])
    if slowest is not None:
        record["slowest"] = {"rank": slowest.rank, "host": slowest.host, "node": slowest.node, "cause": slowest.cause,
                             "behind_s": _rounded(slowest.behind_s), "share": round(slowest.share, 4)}  # fmt: skip
    if timing.slowest_node is not None:
        record["slowest_node"] = timing.slowest_node
    return record


NOTABLE_SHARE = 0.1


def describe_slowest(timing: StepTiming) -> str:
    """Return a text on the slowest rank and the cause; "" if it delays the others by less than a tenth of the step."""
    slowest = timing.slowest
    if slowest is None or slowest.share < NOTABLE_SHARE:
        return ""
    node = "" if timing.slowest_node is None else f"; node {timing.slowest_node} is the slowest"
    share = f"{100 * slowest.share:.0f} % of the step"
    return f"rank {slowest.rank} on {slowest.host} is slow in {slowest.cause} ({share}){node}"


def describe_step(seconds: float) -> str:
    """Return a duration with its unit: 2.31 us, 45.1 ms, 1.23 s."""
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 1000:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def describe_timing(timing: StepTiming) -> str:
    """Return a line with the time per step, samples per second and the share of each kind."""
    shares = _shares(timing, list(timing.seconds))
    return f"{describe_step(timing.step_s)} a step, {timing.samples_per_s:,.0f} samples/s: {shares}"


def describe_now(timing: StepTiming) -> str:
    """Return a short text for a line of progress: samples per second, shares other than computing, memory."""
    others = _shares(timing, ("reading", "communicating", "waiting"))
    parts = [f"{timing.samples_per_s:,.0f} samples/s", others, describe_memory(timing)]
    return "  ".join(part for part in parts if part)


def _shares(timing: StepTiming, kinds: Sequence[str]) -> str:
    shares = {kind: timing.share(kind) for kind in kinds}
    return ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in shares.items() if share >= 0.005)


def describe_memory(timing: StepTiming) -> str:
    """Return the most memory of any rank so far, and memory and use of the busiest GPU, if there is one."""
    gpus = [gpu for gpu in timing.gpus if gpu is not None]
    busiest = max(gpus, key=lambda gpu: gpu.get("use_percent", 0.0), default=None)
    text = f"{max(timing.memory_mib):,.0f} MiB a rank"
    return text if busiest is None else f"{text}, GPU {describe_gpu(busiest)}"


def describe_gpu(gpu: Mapping[str, float] | None) -> str:
    """Return a GPU's most and total memory, and its use if NVML reports it; "-" for a CPU."""
    if gpu is None:
        return "-"
    use = f"{gpu['use_percent']:.0f} % busy, " if "use_percent" in gpu else ""
    return f"{use}{gpu['most_memory_mib']:,.0f} of {gpu['total_memory_mib']:,.0f} MiB"


def memory_mib() -> float:
    """Return the largest resident memory of this process so far, in MiB."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(most / 2**20 if sys.platform == "darwin" else most / 2**10, 1)


def _above_others(values: Sequence[float], rank: int) -> float:
    others = [value for number, value in enumerate(values) if number != rank]
    return values[rank] - statistics.median(others)


def _listed(values: Sequence[float]) -> Any:
    if len(values) <= _MOST_RANKS_LISTED:
        return [_rounded(value) for value in values]
    return {
        "least": _rounded(min(values)),
        "median": _rounded(statistics.median(values)),
        "most": _rounded(max(values)),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def gpu_use(device: Device) -> dict[str, float] | None:
    """Return the GPU's memory in MiB (now, most so far, total) and its use in percent; None for a CPU."""
    if device.type != "cuda":
        return None
    import torch

    use = {
        "memory_mib": torch.cuda.memory_allocated(device) / 2**20,
        "most_memory_mib": torch.cuda.max_memory_allocated(device) / 2**20,
        "total_memory_mib": torch.cuda.get_device_properties(device).total_memory / 2**20,
    }
    handle = _nvml_handle(str(torch.cuda.get_device_properties(device).uuid))
    if handle is not None:
        import pynvml

        rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
        use |= {"use_percent": float(rates.gpu), "memory_use_percent": float(rates.memory)}
    return {name: round(value, 1) for name, value in use.items()}


@functools.cache
def _nvml_handle(uuid: str) -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError:  # no driver library, or the device is a part of a GPU (MIG)
        return None
