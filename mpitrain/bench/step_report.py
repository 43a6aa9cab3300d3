"""Tables and JSON of `mpitrain bench step` and `scaling`."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from typing import Any

from mpitrain.bench.output import render_table
from mpitrain.bench.step_cases import EXCHANGE
from mpitrain.bench.step_results import ScalingResult, StepResult, grouped
from mpitrain.cluster import detect_cpu, detect_usable_core_count, package_versions

# Time that a step on several nodes may take longer than on one, in units of one exchange of its message.
_EXCHANGES = 1.2


def machine_record(threads_per_rank: int | None = 1) -> dict[str, Any]:
    """Return processor, cores, threads and versions of packages, on which the measured times depend.

    `threads_per_rank`: None if a user's settings decide.
    """
    return {
        "processor": detect_cpu().brand or platform.machine(),
        "cores": detect_usable_core_count(),
        "threads_per_rank": threads_per_rank,
        "versions": package_versions() | package_versions(("jax",)),
    }


def render_steps(results: Sequence[StepResult], baselines: Mapping[str, str]) -> str:
    """Return a table for each network, batch and number of ranks, then a line for each case that was not measured."""
    groups = grouped(results, lambda result: result.case.key[:3])
    columns = ("engine", "us a step", "p10", "p90", "rounds' spread", "steps/s", "of peak")
    tables = [
        render_table(
            f"{network}, batch {batch}, {ranks_text(num_ranks)}",
            (*columns, f"time / {baselines[network]}"),
            [_step_row(result) for result in group],
        )
        + _bound_lines(group)
        for (network, batch, num_ranks), group in groups.items()
    ]
    opponent = {result.case.engine.name for result in results} & {"jax-scan"}
    return "\n".join([*tables, _machine_line(shows_jax=bool(opponent)), *_error_lines(results)]) + "\n"


def _bound_lines(group: Sequence[StepResult]) -> str:
    """Return a line with the expected upper bound of each step on several nodes, if all its parts were measured."""
    medians = {result.case.name: result.median_us for result in group}
    return "".join(
        f"{result.case.name}: {result.median_us:.1f} us; one node {one_node_us:.1f} + {_EXCHANGES} x exchange "
        f"{exchange_us:.1f} = {one_node_us + _EXCHANGES * exchange_us:.1f} us\n"
        for result in group
        if result.case.num_nodes > 1
        and result.median_us is not None
        and (one_node_us := medians.get(result.case.engine.name)) is not None
        and (exchange_us := medians.get(f"{EXCHANGE.name}, {result.case.num_nodes} nodes")) is not None
    )


def _step_row(result: StepResult) -> list[str]:
    median_us = result.median_us
    return [
        result.case.name,
        *(_text(time_us) for time_us in (median_us, result.p10_us, result.p90_us)),
        _text(result.spread, ".0%"),
        _text(1e6 / median_us if median_us else None),
        _text(result.share_of_peak, ".0%"),
        _text(result.ratio, ".2f"),
    ]


def render_scaling(results: Sequence[ScalingResult]) -> str:
    """Return a table for each network, engine and kind of scaling."""
    groups = grouped(results, lambda one: (one.step.case.network.name, one.step.case.engine.name, one.scaling))
    columns = ("ranks", "batch", "us a step", "rounds' spread", "communication", "speed-up", "efficiency")
    tables = [
        render_table(
            f"{network}, {engine}, {SCALING_TITLES[scaling]}", columns, [_scaling_row(result) for result in group]
        )
        for (network, engine, scaling), group in groups.items()
    ]
    steps = [result.step for result in results]
    return "\n".join([*tables, _machine_line(threads_of(steps)), *_error_lines(steps)]) + "\n"


SCALING_TITLES = {"strong": "strong scaling: one batch on all ranks", "weak": "weak scaling: a batch on each rank"}


def _scaling_row(result: ScalingResult) -> list[str]:
    step = result.step
    return [
        str(step.case.num_ranks),
        str(step.case.global_batch_size),
        _text(step.median_us),
        _text(step.spread, ".0%"),
        # Messages, additions and waiting for later ranks; unknown for other programs.
        _text(step.spent["communicating"] + step.spent["waiting"] if step.spent else None, ".0%"),
        _text(result.speedup, ".2f"),
        _text(result.efficiency, ".2f"),
    ]


def threads_of(results: Sequence[StepResult]) -> int | None:
    """Return the number of threads of a rank; None if a user's settings decide."""
    return None if any(result.case.network.is_users for result in results) else 1


def _machine_line(threads_per_rank: int | None = 1, shows_jax: bool = False) -> str:
    machine = machine_record()
    threads = "threads from the settings" if threads_per_rank is None else "one thread a rank"
    jax = f", jax {machine['versions']['jax'] or 'not installed'}" if shows_jax else ""
    return f"{machine['cores']} cores, {machine['processor']}, torch {machine['versions']['torch']}{jax}; {threads}"


def _error_lines(results: Sequence[StepResult]) -> list[str]:
    """Return a line for each error, with all engines that it affected."""
    groups = grouped((one for one in results if one.error), lambda one: (one.case.key[:3], one.error))
    return [
        f"not measured: {network}, batch {batch}, {ranks_text(num_ranks)}, "
        f"{', '.join(dict.fromkeys(one.case.name for one in group))}: {error}"
        for ((network, batch, num_ranks), error), group in groups.items()
    ]


def ranks_text(num_ranks: int) -> str:
    """Return `1 rank`, `2 ranks`."""
    return f"{num_ranks} rank{'s' if num_ranks > 1 else ''}"


def _text(value: float | None, form: str = "") -> str:
    """Return a number in Python's format `form`, by default with one decimal below 1000; `-` for None."""
    if value is None:
        return "-"
    return format(value, form or (".1f" if value < 1000 else ".0f"))
