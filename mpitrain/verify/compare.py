"""Comparison of two traces: each variable of either one, and the first difference."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mpitrain.verify.trace import Trace, in_order, stage_of

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class VariableResult:
    """Comparison of one variable: largest relative difference (see `Tolerance`), and largest difference in ulps."""

    name: str
    passed: bool
    num_different: int
    largest: float
    largest_ulps: int
    note: str = ""


@dataclass(frozen=True)
class FirstDifference:
    """The first number that violates the claim, in the order in which a run computes them."""

    stage: str
    name: str
    index: tuple[int, ...]
    expected: float
    found: float
    ulps: int
    note: str = ""

    def __str__(self) -> str:
        if self.note:
            return f"{self.stage}: {self.name}: {self.note}"
        location = f"{self.stage}: {self.name}{list(self.index)}"
        return f"{location}: C++ {self.expected!r}, Python {self.found!r} ({self.ulps} ulp)"


@dataclass(frozen=True)
class Comparison:
    """The verdict on two traces."""

    results: tuple[VariableResult, ...]
    first_difference: FirstDifference | None

    @property
    def passed(self) -> bool:
        """True if every variable satisfies the claim and none is missing on either side."""
        return self.first_difference is None


def compare_traces(expected: Trace, found: Trace, claim: str) -> Comparison:
    """Compare `found` (Python's) with `expected` (the C++ program's) under the tolerances of `claim`.

    A variable that only one side has is a failure, and so are two traces without variables.
    """
    names = in_order(set(expected.arrays) | set(found.arrays))
    if not names:
        return Comparison((), FirstDifference("traces", "both", (), math.nan, math.nan, 0, "nothing to compare"))
    results, first = [], None
    for name in names:
        scale = _scale_of(name, expected)
        result, difference = _compare_variable(name, expected.arrays.get(name), found.arrays.get(name), scale, claim)
        results.append(result)
        first = first or difference
    return Comparison(tuple(results), first)


def _scale_of(name: str, expected: Trace) -> float:
    # A gradient is a sum that nearly cancels once training converges: its rounding error stays that of step 1.
    reference = re.sub(r"gradient_step\d+", "gradient_step1", name)
    values = expected.arrays.get(reference, expected.arrays.get(name, np.zeros(1)))
    return float(np.max(np.abs(values), initial=0.0)) or 1.0


def _compare_variable(
    name: str, expected: Array | None, found: Array | None, scale: float, claim: str
) -> tuple[VariableResult, FirstDifference | None]:
    mismatch = _mismatch(expected, found)
    if mismatch or expected is None or found is None:
        difference = FirstDifference(stage_of(name)[1], name, (), math.nan, math.nan, 0, mismatch)
        return VariableResult(name, False, 0, math.nan, 0, mismatch), difference
    different = bits_of(expected) != bits_of(found)
    ulps = ulp_distance(expected, found)
    with np.errstate(all="ignore"):  # infinity minus infinity is NaN, which fails below
        errors = np.abs(expected.astype(np.float64) - found.astype(np.float64)) / scale
    tolerance = tolerance_of(name, claim)
    # Written so that a NaN on either side is a failure.
    bad = different if tolerance.relative is None else ~(errors <= tolerance.relative)
    largest = float(np.max(errors, initial=0.0))
    result = VariableResult(name, not bad.any(), int(different.sum()), largest, int(np.max(ulps, initial=0)))
    if not bad.any():
        return result, None
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    return result, FirstDifference(
        stage_of(name)[1], name, index, expected[index].item(), found[index].item(), int(ulps[index])
    )


def _mismatch(expected: Array | None, found: Array | None) -> str:
    if expected is None or found is None:
        return f"only in the {'Python' if expected is None else 'C++'} trace"
    if expected.shape != found.shape:
        return f"shape {expected.shape} in C++, {found.shape} in Python"
    if expected.dtype != found.dtype:
        return f"type {expected.dtype} in C++, {found.dtype} in Python"
    return ""


def bits_of(values: Array) -> Array:
    """Return the bits of numbers as integers of the same size."""
    return np.asarray(values, order="C").view(f"i{values.dtype.itemsize}")


def ulp_distance(expected: Array, found: Array) -> Array:
    """Return the distance in ulps of two arrays of one type: the difference of their ordered bit patterns."""
    is_real = expected.dtype.kind == "f"
    a, b = (_ordered(values) if is_real else values.astype(np.int64) for values in (expected, found))
    # Unsigned: the distance of two float64 of opposite sign can exceed the range of int64.
    with np.errstate(over="ignore"):
        distance: Array = np.maximum(a, b).astype(np.uint64) - np.minimum(a, b).astype(np.uint64)
    return distance


def _ordered(values: Array) -> Array:
    bits = bits_of(values).astype(np.int64)
    lowest = np.int64(-(2 ** (8 * values.dtype.itemsize - 1)))
    # Bit patterns of negative numbers are in reverse order; mirrored, -0.0 and 0.0 are both 0.
    return np.where(bits < 0, lowest - bits, bits)


@dataclass(frozen=True)
class Tolerance:
    """The largest difference that a claim allows a variable: `relative`; None requires the same bits.

    `relative` is |a - b| divided by the largest |a| of the variable; for a gradient, by its largest |a| at step 1.
    """

    pattern: str
    relative: float | None
    reason: str


EXACT = (Tolerance(".*", None, "the same libtorch kernels, the same MPI library and the same order of operations"),)

_INTEGERS = Tolerance(r"(selected|partition)_.*", None, "numbers and positions of samples: integers")
_GIVEN = Tolerance(r"initial\..*", None, "both sides read them from one file")

# An independent implementation adds in another order: rounding grows with the length of the sums and, in training,
# with the number of steps; the tolerances are about ten times the differences seen for several ranks and seeds.
CLOSE_FLOAT64 = (
    _INTEGERS,
    _GIVEN,
    Tolerance(".*", 1e-12, "float64 rounding of sums in another order; Adam does not amplify it over 1000 steps"),
)
CLOSE_FLOAT32 = (
    _INTEGERS,
    _GIVEN,
    Tolerance(r"gradient_.*", 2e-4, "float32 rounding of sums over all samples in another order"),
    Tolerance(".*", 2e-5, "float32 rounding, grown over 1000 steps of Adam"),
)

TABLES = {"exact": EXACT, "close float64": CLOSE_FLOAT64, "close float32": CLOSE_FLOAT32}


def tolerance_of(name: str, claim: str) -> Tolerance:
    """Return the first tolerance of `claim` ("exact", "close float64", "close float32") for the variable `name`."""
    return next(entry for entry in TABLES[claim] if re.fullmatch(entry.pattern, name))
