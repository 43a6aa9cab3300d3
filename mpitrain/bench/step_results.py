"""Results of `mpitrain bench step` and `scaling`: medians, spread, ratios, efficiencies. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from mpitrain.bench.step_cases import StepCase
from mpitrain.train.compiled.peak import operations_of

Item = TypeVar("Item")
Key = TypeVar("Key")


@dataclass(frozen=True)
class StepResult:
    """One case's times in microseconds per step: the median of each round; 10th and 90th percentile of all steps.

    `num_steps`: number of timed steps in the shortest round.
    `ratio`: step time divided by the baseline's, the median of the rounds' ratios; None without the baseline.
    `share_of_peak`: floating-point operations of the matrix products per second and rank, divided by the measured peak
    of one core; None for networks that are not chains of dense layers. `error`: why there are no times, or fewer.
    `spent`: see `EngineLoop.spent`, medians over the rounds; `facts`: see `EngineLoop.facts`; both empty for engines
    that are not of this package.
    """

    case: StepCase
    round_medians_us: tuple[float, ...]
    p10_us: float | None
    p90_us: float | None
    num_steps: int
    error: str | None = None
    ratio: float | None = None
    share_of_peak: float | None = None
    spent: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def median_us(self) -> float | None:
        """The median over the rounds; None without any."""
        return statistics.median(self.round_medians_us) if self.round_medians_us else None

    @property
    def spread(self) -> float | None:
        """(largest - least) / median of the rounds' medians."""
        median_us = self.median_us
        return (max(self.round_medians_us) - min(self.round_medians_us)) / median_us if median_us else None

    def as_json(self) -> dict[str, object]:
        """Return one row of the JSON output."""
        median_us = self.median_us
        facts = {"engine_used": self.facts["engine"], "nodes": self.facts["nodes"]} if self.facts else {}
        return {
            "network": self.case.network.name,
            "global_batch_size": self.case.global_batch_size,
            "ranks": self.case.num_ranks,
            "engine": self.case.engine.name,
            "nodes": self.case.num_nodes,
            "median_us": median_us,
            "round_medians_us": list(self.round_medians_us),
            "spread": self.spread,
            "p10_us": self.p10_us,
            "p90_us": self.p90_us,
            "steps_per_second": 1e6 / median_us if median_us else None,
            "ratio": self.ratio,
            "share_of_peak": self.share_of_peak,
            "steps_a_round": self.num_steps,
            "warmup_steps": self.case.num_warmup_steps,
            "samples": self.case.num_samples,
            "spent": dict(self.spent),
            **facts,
            "error": self.error,
        }


def summarise(
    case: StepCase, rounds_us: Sequence[Sequence[float]], error: str | None,
    spent: Sequence[Mapping[str, float]] = (), facts: Mapping[str, Any] | None = None,
) -> StepResult:  # fmt: skip
    """Return the result of one case from its step times in microseconds and its `EngineLoop.spent`, one per round."""
    medians = tuple(statistics.median(step_us) for step_us in rounds_us)
    pooled = [one_us for step_us in rounds_us for one_us in step_us]
    p10_us, p90_us = (float(np.percentile(pooled, percent)) if pooled else None for percent in (10, 90))
    middle = {kind: statistics.median(one[kind] for one in spent) for kind in (spent[0] if spent else ())}
    num_steps = min(map(len, rounds_us), default=0)
    return StepResult(case, medians, p10_us, p90_us, num_steps, error, spent=middle, facts=facts or {})


def with_ratios(results: Sequence[StepResult], baselines: Mapping[str, str]) -> list[StepResult]:
    """Return the results with their ratios to the baseline of their network, on the same batch and ranks.

    `baselines` maps a network's name to a case's name.
    """
    base = {
        result.case.key[:3]: result.round_medians_us
        for result in results
        if result.case.name == baselines[result.case.network.name]
    }
    return [replace(result, ratio=_ratio(result.round_medians_us, base.get(result.case.key[:3]))) for result in results]


def with_shares_of_peak(results: Sequence[StepResult], peak: float) -> list[StepResult]:
    """Return the results with their shares of `peak`: operations a second of one core, 0 if unknown."""
    return [replace(result, share_of_peak=_share_of_peak(result, peak)) for result in results]


def _share_of_peak(result: StepResult, peak: float) -> float | None:
    case, median_us = result.case, result.median_us
    if not case.network.is_chain or not median_us or not peak:
        return None
    batch = case.num_samples if case.global_batch_size == "full" else int(case.global_batch_size)
    return operations_of(case.network.sizes, batch) / (median_us * 1e-6 * case.num_ranks * peak)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items of each key; keys and items keep their order of first occurrence."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _ratio(medians_us: Sequence[float], base_us: Sequence[float] | None) -> float | None:
    # Ratios of the same round, because other load on the machine affects both times of a round.
    if not base_us or len(base_us) != len(medians_us):
        return None
    return statistics.median(own / base for own, base in zip(medians_us, base_us, strict=True))


@dataclass(frozen=True)
class ScalingResult:
    """Speed-up and efficiency of one engine's step, relative to its step on the fewest ranks, round by round.

    t: step time on p ranks; t1, p1: on the fewest ranks. Strong scaling (the same batch for all ranks together):
    efficiency t1 p1 / (t p). Weak scaling (the same batch on each rank): efficiency t1 / t.
    """

    step: StepResult
    scaling: str
    speedup: float | None
    efficiency: float | None

    def as_json(self) -> dict[str, object]:
        """Return one row of the JSON output."""
        row = {key: value for key, value in self.step.as_json().items() if key != "ratio"}
        return {"scaling": self.scaling, **row, "speedup": self.speedup, "efficiency": self.efficiency}


def scaling_of(results: Sequence[StepResult], scaling: str) -> list[ScalingResult]:
    """Return each result's speed-up (samples per second divided by that on the fewest ranks) and efficiency."""
    groups = grouped(results, lambda result: (result.case.network.name, result.case.engine.name))
    return [_scaled(result, group, scaling) for group in groups.values() for result in group]


def _scaled(result: StepResult, group: Sequence[StepResult], scaling: str) -> ScalingResult:
    first = min(group, key=lambda other: other.case.num_ranks)
    times = _ratio(result.round_medians_us, first.round_medians_us)
    if not times:
        return ScalingResult(result, scaling, None, None)
    growth = result.case.num_ranks / first.case.num_ranks
    speedup = (growth if scaling == "weak" else 1.0) / times
    return ScalingResult(result, scaling, speedup, speedup / growth)
