"""The two kinds of claim, and every tolerance with its reason: the one place where they are written."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerance:
    """What a claim allows a variable: `relative`, or the same bits where it is None.

    `relative` is |a - b| over the largest |a| of the variable, of a gradient over its largest at step 1.
    """

    pattern: str
    relative: float | None
    reason: str


EXACT = (Tolerance(".*", None, "the same libtorch kernels, the same MPI library and the same order of operations"),)

_INTEGERS = Tolerance(r"(selected|partition)_.*", None, "which samples, and where: whole numbers")
_GIVEN = Tolerance(r"initial\..*", None, "both sides read them from one file")

# An independent derivation adds in another order: rounding grows with the length of the sums and, in training, with
# the number of steps; the figures leave a factor of about ten to what is seen over ranks and seeds.
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
    """Return the first tolerance of `claim` ("exact", "close float64", "close float32") that fits variable `name`."""
    return next(entry for entry in TABLES[claim] if re.fullmatch(entry.pattern, name))
