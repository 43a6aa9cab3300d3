"""exp, tanh, erf and the activations, from + - * / and integer operations on bits: one definition for all languages.

The arguments are numpy arrays, or `statements.Value`s, which record the operations as statements of C or Fortran, one
operation each. Each operation is one correctly rounded IEEE operation: products are rounded before an addition, never
fused. The training kernels use other functions, with fused multiply-adds, because Fortran and plain C have no portable
way to write these, and a model may run on a CPU without them.

No operation overflows, divides by zero or is invalid for finite arguments, so models can run with floating-point traps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# A numpy array or a `Value`; both have the operators + - * / and < >.
Number = Any
Arithmetic = Any


@dataclass(frozen=True)
class Coefficients:
    """Constants of a floating-point type; polynomial coefficients from the highest power down to the constant.

    The polynomials are least-squares fits at Chebyshev nodes, reweighted to minimise the largest error, then rounded.
    """

    mantissa_bits: int
    exponent_bias: int
    largest_exponent: float  # e to this power, and to minus this power, is a normal number
    round_to_integer: float  # 1.5 * 2^mantissa_bits: adding it leaves an integer in the lowest bits
    ln2_high: float  # few enough bits that its products with integers are exact
    ln2_low: float
    exponential: tuple[float, ...]  # (e^r - 1 - r) / r^2
    tanh: tuple[float, ...]  # (tanh(x) / x - 1) / x^2 of x^2, for |x| < 0.625
    erf_near: tuple[float, ...]  # erf(x) / x - 1 of x^2, for |x| < 1
    erf_far: tuple[float, ...]  # -log(1 - erf(x)) of x, for x from 1 to erf_largest, where erf rounds to 1
    erf_largest: float
    gelu_largest: float  # beyond it the normal density is negligible beside the distribution function


SINGLE = Coefficients(
    mantissa_bits=23,
    exponent_bias=127,
    largest_exponent=87.0,
    round_to_integer=12582912.0,
    ln2_high=0.693359375,
    ln2_low=-2.12194440e-4,
    exponential=(0.001395245548337698, 0.008369553834199905, 0.0416661761701107, 0.16666513681411743, 0.5),
    tanh=(
        -0.005660982336848974, 0.020602159202098846, -0.053729262202978134, 0.13331328332424164, -0.33333277702331543,
    ),
    erf_near=(
        7.823605847079307e-05, -0.0008002679096534848, 0.005187663249671459, -0.026853565126657486, 0.11283581703901291,
        -0.3761262595653534, 0.12837916612625122,
    ),
    erf_far=(
        2.1684645616915077e-05, -0.00044130493188276887, 0.00420437753200531, -0.025207679718732834,
        0.10841753333806992, 0.6332209706306458, 1.1295777559280396, -0.0001878969051176682,
    ),
    erf_largest=4.1,
    gelu_largest=13.0,
)  # fmt: skip

DOUBLE = Coefficients(
    mantissa_bits=52,
    exponent_bias=1023,
    largest_exponent=708.0,
    round_to_integer=6755399441055744.0,
    ln2_high=6.93145751953125e-1,
    ln2_low=1.42860682030941723212e-6,
    exponential=(
        2.092785548305913e-09, 2.5113440372051452e-08, 2.755723018117177e-07, 2.7557230807653044e-06,
        2.4801587377837994e-05, 0.00019841269900471676, 0.001388888888885607, 0.008333333333315372,
        0.041666666666666734, 0.16666666666666685, 0.5,
    ),
    tanh=(
        -2.2235982729028946e-06, 1.1676544091131141e-05, -3.649791569617751e-05, 9.567099962002957e-05,
        -0.00023873852660215143, 0.0005899404697259687, -0.0014558206710826894, 0.00359212652657334,
        -0.008863235417249109, 0.021869488530742536, -0.05396825396810032, 0.13333333333333114, -0.3333333333333333,
    ),
    erf_near=(
        -4.194626281270892e-12, 8.686173287602819e-11, -1.2158200686506184e-09, 1.47913737174151e-08,
        -1.6364535320286991e-07, 1.6462037961776082e-06, -1.4925647209083334e-05, 0.0001205533289117019,
        -0.0008548327021679017, 0.005223977625419728, -0.026866170645129545, 0.11283791670955119, -0.37612638903183754,
        0.1283791670955126,
    ),
    erf_far=(
        1.8376759675577485e-13, -9.17275108087961e-12, 2.1569492194489914e-10, -3.176199840103905e-09,
        3.2817968237454873e-08, -2.523633590767141e-07, 1.491667827044033e-06, -6.873772114067113e-06,
        2.4571573557197517e-05, -6.552198394678546e-05, 0.00011238711991562281, -2.4734852601159098e-05,
        -0.0005486335563786422, 0.0016709054306143, -0.00019883183153553228, -0.0191303247483963, 0.10277192358560361,
        0.6366203591494852, 1.1283789946282674, 2.0037835056137837e-08,
    ),
    erf_largest=6.1,
    gelu_largest=37.0,
)  # fmt: skip

COEFFICIENTS = {"float32": SINGLE, "float64": DOUBLE}


def exponential(a: Arithmetic, x: Number) -> Number:
    """Return e^x, with x limited to the range without overflow and underflow."""
    return _exponential_within(a, _within(a, x, a.coefficients.largest_exponent))


def _exponential_within(a: Arithmetic, x: Number) -> Number:
    """Return e^x for |x| <= largest_exponent; a quarter faster than `exponential`, as it does not limit x.

    x = n ln 2 + r with an integer n and |r| <= 0.35 (Cody and Waite 1980), e^x = 2^n e^r. `shifted` holds n in its
    lowest bits.
    """
    c = a.coefficients
    shifted = x * 1.4426950408889634 + c.round_to_integer
    n = shifted - c.round_to_integer
    r = (x - n * c.ln2_high) - n * c.ln2_low
    power = _polynomial(c.exponential, r) * (r * r) + r + 1.0
    return power * a.power_of_two(shifted)


def tanh(a: Arithmetic, x: Number) -> Number:
    """Return x + x^3 P(x^2) near 0, and +-(1 - 2 / (e^(2 |x|) + 1)) elsewhere: an odd function, computed for |x|."""
    size = a.absolute(x)
    bounded = a.select(size > 40.0, 40.0, size)
    far = 1.0 - 2.0 / (_exponential_within(a, bounded + bounded) + 1.0)
    square = bounded * bounded  # at most 1600, whose powers do not overflow
    near = bounded + bounded * (square * _polynomial(a.coefficients.tanh, square))
    return a.with_sign(a.select(size < 0.625, near, far), x)


def erf(a: Arithmetic, x: Number) -> Number:
    """Return x + x P(x^2) for |x| < 1, and +-(1 - e^-Q(|x|)) elsewhere: an odd function, computed for |x|."""
    c = a.coefficients
    size = a.absolute(x)
    bounded = a.select(size > c.erf_largest, c.erf_largest, size)
    far = 1.0 - _exponential_within(a, 0.0 - _polynomial(c.erf_far, bounded))  # from -40 to 0.001
    near = bounded + bounded * _polynomial(c.erf_near, bounded * bounded)
    return a.with_sign(a.select(size < 1.0, near, far), x)


def _polynomial(coefficients: Sequence[float], x: Number) -> Number:
    value: Number = coefficients[0]
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def _sigmoid(a: Arithmetic, z: Number) -> Number:
    return 1.0 / (exponential(a, 0.0 - z) + 1.0)


def _distribution(a: Arithmetic, z: Number) -> Number:
    """Return half of 1 + erf(z / sqrt(2)): the normal distribution function."""
    return (erf(a, z * 0.7071067811865476) + 1.0) * 0.5


def _within(a: Arithmetic, z: Number, largest: float) -> Number:
    z = a.select(z > largest, largest, z)
    return a.select(z < -largest, -largest, z)


def _silu_slope(a: Arithmetic, z: Number, y: Number) -> Number:
    s = _sigmoid(a, z)
    return s + y * (1.0 - s)


def _not_below(a: Arithmetic, z: Number) -> Number:
    """Return z, limited from below to minus the largest exponent: below it e^z is constant, so z e^z would grow."""
    least = -a.coefficients.largest_exponent
    return a.select(z < least, least, z)


def _gelu_slope(a: Arithmetic, z: Number, y: Number) -> Number:
    within = _within(a, z, a.coefficients.gelu_largest)
    density = _exponential_within(a, (within * within) * -0.5) * 0.3989422804014327  # -13^2 / 2 > -87
    return _distribution(a, z) + within * density


@dataclass(frozen=True)
class Activation:
    """An activation y = value(z), and its derivative slope(z, y); no functions for y = z."""

    value: Callable[[Arithmetic, Number], Number]
    slope: Callable[[Arithmetic, Number, Number], Number]


# By their names in the settings, without `none` (y = z).
ACTIVATIONS = {
    "sigmoid": Activation(_sigmoid, lambda a, z, y: y * (1.0 - y)),
    "tanh": Activation(tanh, lambda a, z, y: 1.0 - y * y),
    "relu": Activation(lambda a, z: a.select(z < 0.0, 0.0, z), lambda a, z, y: a.select(z > 0.0, 1.0, 0.0)),
    "gelu": Activation(lambda a, z: z * _distribution(a, z), _gelu_slope),
    "silu": Activation(lambda a, z: _not_below(a, z) * _sigmoid(a, z), _silu_slope),
}


class NumpyArithmetic:
    """Operations for which numpy has no operator, on arrays of one floating-point type."""

    def __init__(self, dtype: str) -> None:
        self.coefficients = COEFFICIENTS[dtype]
        self.real: Any = np.dtype(dtype).type
        self._integer: Any = np.uint32 if dtype == "float32" else np.uint64

    def select(self, condition: Number, yes: Number, no: Number) -> Number:
        """Return yes where the condition holds, no elsewhere."""
        return np.where(condition, self._array(yes), self._array(no))

    def absolute(self, x: Number) -> Number:
        """Return the absolute value of x."""
        return np.abs(x)

    def with_sign(self, size: Number, x: Number) -> Number:
        """Return the absolute value `size` with the sign of x."""
        return np.copysign(size, x)

    def power_of_two(self, shifted: Number) -> Number:
        """Return 2^n for the integer n in the lowest bits of `shifted`; see `exponential`."""
        c = self.coefficients
        bits = np.asarray(shifted).view(self._integer) << self._integer(c.mantissa_bits)
        return (bits + self._integer(c.exponent_bias << c.mantissa_bits)).view(self.real)

    def _array(self, x: Number) -> Number:
        return self.real(x) if isinstance(x, float) else x
