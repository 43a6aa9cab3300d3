"""Detection of runs whose ranks have CPUs of different kinds, which may round differently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mpitrain.cluster.cpu.identity import CpuIdentity


def describe_mixture(of_ranks: Sequence[CpuIdentity]) -> str | None:
    """Return a text with the ranks on each kind of CPU; None if all ranks are on one kind.

    Libraries choose their instructions by the kind of CPU. The brand, which includes the frequency, is not part of it.
    """
    ranks: dict[object, list[int]] = {}
    for rank, cpu in enumerate(of_ranks):
        ranks.setdefault((cpu.architecture, cpu.vendor, cpu.family, cpu.model, cpu.instruction_sets), []).append(rank)
    if len(ranks) < 2:
        return None
    return ", ".join(
        f"rank{'s' if len(numbers) > 1 else ''} {as_ranges(numbers)} on {of_ranks[numbers[0]].name}"
        for numbers in ranks.values()
    )


def as_ranges(numbers: Iterable[int]) -> str:
    """Return integers as text, sorted and combined into ranges: `0-2,5`.

    Parameters
    ----------
    numbers : iterable of int
        Distinct integers of at least 0, in any order.

    Returns
    -------
    str
        Ranges, separated by commas; empty for no numbers.
    """
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)
