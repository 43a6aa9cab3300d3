"""Whether the ranks of a run are on CPUs of several kinds, which may round differently."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mpitrain.cluster.cpu.identity import CpuIdentity


def describe_mixture(of_ranks: Sequence[CpuIdentity]) -> str | None:
    """Return which of the ranks are on which kind of CPU; None where all are on one kind.

    A kind is what a library chooses its instructions by: the brand, which names a frequency too, is not part of it.
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
    """Write whole numbers, rising, as ranges: `0-2,5`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)
