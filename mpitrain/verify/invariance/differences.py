"""The first difference between two runs: the step after which it is there, the tensor, and both values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mpitrain.verify.compare import bits_of, ulp_distance
from mpitrain.verify.invariance.runs import Result
from mpitrain.verify.trace import Array

ResultAt = Callable[[int], tuple[Result, Result]]
# Every probe is two runs; beyond this many the user waits for minutes.
MOST_PROBES = 12


@dataclass(frozen=True)
class Difference:
    """Where two results differ first. `step`: the first one found after which they do."""

    name: str
    index: tuple[int, ...]
    expected: float | str
    found: float | str
    ulps: int | None
    num_tensors: int
    step: int

    def __str__(self) -> str:
        where = f"{self.name}{list(self.index) if self.index else ''}"
        ulps = f" ({self.ulps} ulp)" if self.ulps is not None else ""
        more = f"; {self.num_tensors} tensors in all" if self.num_tensors > 1 else ""
        return f"after step {self.step}: {where}: {self.expected!r}, here {self.found!r}{ulps}{more}"


def compare_results(expected: Result, found: Result) -> Difference | None:
    """Return the first difference: in the tensors, parameters first, else in losses and other numbers."""
    step = min(expected.num_steps, found.num_steps)
    names = sorted(set(expected.tensors) | set(found.tensors), key=_parameters_first)
    different = [name for name in names if not _same_bits(expected.tensors.get(name), found.tensors.get(name))]
    if different:
        return _difference_of(different[0], expected, found, len(different), step)
    for what, one, other in (
        ("state", expected.state, found.state), ("metrics", list(expected.metrics), list(found.metrics)),
    ):  # fmt: skip
        if one != other:
            return Difference(what, (), repr(one), repr(other), None, 1, step)
    return None


def first_difference(result_at: ResultAt, known: Difference, same_at: int) -> Difference:
    """Return the difference at the first step that shows any, after `same_at`; `known` is the one at the end.

    `result_at(step)` runs both ways up to a step. Looks at 1, 2, 4, ... steps, then halves the interval: most
    differences arise in the first steps.
    """
    earliest, stride = known, 1
    for _ in range(MOST_PROBES):
        if earliest.step - same_at <= 1:
            break
        step = min(same_at + stride, earliest.step - 1) if stride else (same_at + earliest.step) // 2
        difference = compare_results(*result_at(step))
        if difference is None:
            same_at, stride = step, 2 * stride
        else:
            earliest, stride = difference, 0
    return earliest


def _parameters_first(name: str) -> tuple[int, str]:
    kinds = ("model.", "optimizer.", "engine.", "average.", "best.")
    return next((number for number, kind in enumerate(kinds) if name.startswith(kind)), len(kinds)), name


def _same_bits(one: Array | None, other: Array | None) -> bool:
    return one is not None and other is not None and _kind(one) == _kind(other) and one.tobytes() == other.tobytes()


def _difference_of(name: str, expected: Result, found: Result, num_tensors: int, step: int) -> Difference:
    one, other = expected.tensors.get(name), found.tensors.get(name)
    if one is None or other is None or _kind(one) != _kind(other):
        return Difference(name, (), _kind(one), _kind(other), None, num_tensors, step)
    index = tuple(int(i) for i in np.argwhere(bits_of(one) != bits_of(other))[0])
    ulps = int(ulp_distance(one, other)[index])
    return Difference(name, index, one[index].item(), other[index].item(), ulps, num_tensors, step)


def _kind(values: Array | None) -> str:
    return "missing" if values is None else f"{values.dtype} of shape {values.shape}"
