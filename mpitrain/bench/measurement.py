"""Interleaved timing of several candidates in one run, so that other load on the machine affects all of them.

A timing sample is the mean time of several consecutive calls. Each round takes one sample of each candidate, starting
with another candidate each time; the results are the median and the 10th and 90th percentile of the samples.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

Item = TypeVar("Item")
FEWEST_CALLS, MOST_CALLS = 1, 2000
SINGLE_CALLS = 4  # the first opens connections; the others determine the number of calls in a sample


@dataclass(frozen=True)
class Candidate:
    """A timed operation: `run` is one call, `finish` waits for asynchronous work of the calls (on a GPU)."""

    run: Callable[[], object]
    finish: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Timing:
    """Seconds per call: one sample a round, without warm-up rounds; `first_call_s` is the time of the first call."""

    samples_s: tuple[float, ...]
    calls_per_sample: int
    first_call_s: float

    @property
    def median_s(self) -> float:
        """The median of the samples."""
        return statistics.median(self.samples_s)

    @property
    def p10_s(self) -> float:
        """The 10th percentile of the samples."""
        return float(np.percentile(self.samples_s, 10))

    @property
    def p90_s(self) -> float:
        """The 90th percentile of the samples."""
        return float(np.percentile(self.samples_s, 90))


@dataclass(frozen=True)
class Plan:
    """Number of rounds and length of a sample, the same on all ranks."""

    num_rounds: int = 11
    warm_up_rounds: int = 2
    sample_s: float = 0.004  # approximate time of all calls of a sample


@dataclass(frozen=True)
class CollectiveClock:
    """Synchronisation of ranks that measure together; the defaults are for one process.

    `align` is a barrier before a sample; `slowest` returns the element-wise maximum over ranks. Both are collective.
    """

    align: Callable[[], object] = lambda: None
    slowest: Callable[[Sequence[float]], list[float]] = list


def measure_interleaved(candidates: Mapping[str, Candidate], plan: Plan, ranks: CollectiveClock) -> dict[str, Timing]:
    """Return each candidate's times, on all ranks those of the slowest rank. Collective.

    The candidates and their order, and `plan`, must agree on all ranks.
    """
    single_s = [
        ranks.slowest([_sample_s(candidate, 1, ranks) for candidate in candidates.values()])
        for _ in range(SINGLE_CALLS)
    ]
    # The number of calls must be equal on all ranks, otherwise they deadlock: it is computed from the reduced times.
    # The shortest time is used, because a single interrupted call would otherwise reduce each sample to one call.
    calls = {
        name: calls_for(plan.sample_s, min(times[1:]))
        for name, times in zip(candidates, zip(*single_s, strict=True), strict=True)
    }
    samples: dict[str, list[float]] = {name: [] for name in candidates}
    for index in range(plan.warm_up_rounds + plan.num_rounds):
        for name in rotated(list(candidates), index):
            sample_s = _sample_s(candidates[name], calls[name], ranks)
            if index >= plan.warm_up_rounds:
                samples[name].append(sample_s)
    return {
        name: Timing(tuple(ranks.slowest(samples[name])), calls[name], first)
        for name, first in zip(candidates, single_s[0], strict=True)
    }


def _sample_s(candidate: Candidate, num_calls: int, ranks: CollectiveClock) -> float:
    run = candidate.run
    ranks.align()
    started_s = time.perf_counter()
    for _ in range(num_calls):
        run()
    candidate.finish()
    return (time.perf_counter() - started_s) / num_calls


def calls_for(sample_s: float, once_s: float) -> int:
    """Return the number of calls of `once_s` seconds in a sample of `sample_s` seconds."""
    return min(MOST_CALLS, max(FEWEST_CALLS, round(sample_s / max(once_s, 1e-9))))


def rotated(names: Sequence[Item], index: int) -> list[Item]:
    """Return `names` rotated by `index`: over as many rounds as there are names, each is first once."""
    start = index % len(names) if names else 0
    return [*names[start:], *names[:start]]


def timing_record(timing: Timing) -> dict[str, Any]:
    """Return a timing as fields of a JSON file, in microseconds."""
    return {
        "median_us": timing.median_s * 1e6,
        "p10_us": timing.p10_s * 1e6,
        "p90_us": timing.p90_s * 1e6,
        "first_call_us": timing.first_call_s * 1e6,
        "num_samples": len(timing.samples_s),
        "calls_per_sample": timing.calls_per_sample,
    }
