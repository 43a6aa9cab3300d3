"""Functions of float64 arrays from + - * / and the square root alone: the same bits on every machine.

The functions of numpy and of the C library choose an implementation by the CPU, and the implementations differ in the
last bit. The C++ program performs the same operations (first_weights.cpp). The polynomials minimise the maximum
relative error (Remez).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

DoubleArray = npt.NDArray[np.float64]

_LOG2_HIGH, _LOG2_LOW, _LOG2_E = 6.93147180369123816490e-01, 1.90821492927058770002e-10, 1.4426950408889634
_SQRT_HALF = 0.7071067811865476
_LOG = (
    0.66666666666667351, 0.39999999999409103, 0.28571428743791477, 0.22222198413212235, 0.18183573441518214,
    0.15313797379076177, 0.1479867747606026,
)  # fmt: skip
_COSINE_OF_TURNS = (
    -19.739208802178716, 64.939394022667486, -85.456817206515538, 60.244641352569204, -26.426255600377914,
    7.903492606511314, -1.7133935280307429, 0.2683185337575188, 0.067412966731605836, -0.33027604999310312,
)  # fmt: skip
_EXPONENTIAL = (
    0.5, 0.16666666666666669, 0.041666666666666685, 0.0083333333333316904, 0.001388888888887241, 0.00019841269846336714,
    2.4801587352633092e-05, 2.7557312158482891e-06, 2.7557247672127561e-07, 2.5056666870997028e-08,
    2.092324729313784e-09, 1.49639894467279e-10,
)  # fmt: skip


def logarithm(x: npt.ArrayLike) -> DoubleArray:
    """Return the natural logarithm of positive normal numbers, within 2 units in the last place."""
    mantissa, exponent = np.frexp(np.asarray(x, dtype=np.float64))  # exact
    is_low = mantissa < _SQRT_HALF
    mantissa, exponent = np.where(is_low, 2 * mantissa, mantissa), np.where(is_low, exponent - 1, exponent)
    s = (mantissa - 1) / (mantissa + 1)
    rest = s * (s * s) * _polynomial(_LOG, s * s)
    logarithms: DoubleArray = exponent * _LOG2_HIGH + (2 * s + (rest + exponent * _LOG2_LOW))
    return logarithms


def cosine_of_turns(turns: npt.ArrayLike) -> DoubleArray:
    """Return cos(2 pi turns) with an error of at most 2^-51, for fewer than 2^50 turns."""
    given = np.asarray(turns, dtype=np.float64)
    halves = np.rint(2 * given)
    square = given - 0.5 * halves  # within a quarter of a turn, and exact
    square *= square
    sign = 1 - 2 * (halves - 2 * np.floor(0.5 * halves))
    cosine = _polynomial(_COSINE_OF_TURNS, square)
    cosine *= square
    cosine += 1
    cosine *= sign
    return cosine


def sine_of_turns(turns: npt.ArrayLike) -> DoubleArray:
    """Return sin(2 pi turns) with an error of at most 2^-50, for fewer than 2^50 turns."""
    given = np.asarray(turns, dtype=np.float64)
    return cosine_of_turns(given - np.rint(given) - 0.25)


def exponential(x: npt.ArrayLike) -> DoubleArray:
    """Return e^x within 1 unit in the last place, for x between -708 and 708."""
    given = np.asarray(x, dtype=np.float64)
    n = np.rint(given * _LOG2_E)
    r = (given - n * _LOG2_HIGH) - n * _LOG2_LOW
    mantissa = _polynomial(_EXPONENTIAL, r) * (r * r) + r + 1
    return np.ldexp(mantissa, n.astype(np.int32))  # exact


def power(base: float, exponent: int) -> float:
    """Return base^exponent for an integer exponent >= 0, by repeated multiplication."""
    result = 1.0
    while exponent > 0:
        if exponent % 2 == 1:
            result *= base
        exponent, base = exponent // 2, base * base
    return result


def _polynomial(coefficients: Sequence[float], x: DoubleArray) -> DoubleArray:
    """Return the sum of coefficients[k] x^k."""
    total: DoubleArray = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total *= x  # in place: twice as fast on large arrays
        total += coefficient
    return total
