// e^x, tanh and erf computed with + - * / only: the same bits on every CPU, in a form that compilers vectorise.
//
// The polynomials minimise the largest relative error on their range (Remez, in 50 digits); coefficients were rounded
// one after the other. Largest errors, in units in the last place, of all float32 and of ten million float64 arguments
// (checked by tests/train/test_train_compiled_bits.py): exponential 1.0, tanh 1.4, erf 1.7.
#pragma once

#include "arithmetic.hpp"

namespace {

/// The sum of coefficients[k] x^k.
template <int count>
Real polynomial(const Real (&coefficients)[count], Real x) {
    Real sum = coefficients[count - 1];
    for (int k = count - 2; k >= 0; --k) sum = sum * x + coefficients[k];
    return sum;
}

template <typename Number>
struct Coefficients;

template <>
struct Coefficients<float> {
    using Bits = std::uint32_t;
    static constexpr int mantissa_bits = 23, exponent_bias = 127;
    static constexpr float rounds_to_whole = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    static constexpr float log2_e = 1.44269504f, log_2_high = 0.693359375f, log_2_low = -2.12194440e-4f;
    static constexpr float largest_exponent = 87.33f;
    static constexpr float exponential[] = {0.5f,           0.166666478f,   0.0416664779f,
                                            0.00833777431f, 0.00139339431f, 0.000174413522f};
    static constexpr float tanh[] = {-0.333332986f, 0.133319363f, -0.0537847206f, 0.0207986478f, -0.00589799741f};
    static constexpr float erf_near_0[] = {0.128379166f,   -0.376126289f,    0.112836257f,   -0.0268557314f,
                                           0.00519240508f, -0.000804976909f, 7.99664194e-05f};
    static constexpr float erf_far[] = {1.12851441f,   0.635718167f,   0.105262019f,
                                        -0.022890063f, 0.00321498141f, -0.000213987252f};
    static constexpr float erf_middle = 0, erf_is_1 = 3.93f;
};

template <>
struct Coefficients<double> {
    using Bits = std::uint64_t;
    static constexpr int mantissa_bits = 52, exponent_bias = 1023;
    static constexpr double rounds_to_whole = 6755399441055744.0;  // 1.5 * 2^52
    static constexpr double log2_e = 1.4426950408889634, log_2_high = 6.93147180369123816490e-01;
    static constexpr double log_2_low = 1.90821492927058770002e-10;
    static constexpr double largest_exponent = 708;
    static constexpr double exponential[] = {
        0.5,
        0.16666666666666669,
        0.041666666666666685,
        0.0083333333333316904,
        0.001388888888887241,
        0.00019841269846336714,
        2.4801587352633092e-05,
        2.7557312158482891e-06,
        2.7557247672127561e-07,
        2.5056666870997028e-08,
        2.092324729313784e-09,
        1.49639894467279e-10,
    };
    static constexpr double tanh[] = {
        -0.33333333333333126,    0.13333333333299768,    -0.05396825394933575,    0.021869488003350705,
        -0.0088632267866011576,  0.003592037446097172,   -0.0014552156782096774,  0.0005871893640401844,
        -0.00023039862269801271, 7.9315884719921979e-05, -1.7179614591658791e-05,
    };
    static constexpr double erf_near_0[] = {
        0.12837916709551256,    -0.37612638903183321,    0.11283791670934949,    -0.026866170641432298,
        0.0052239775904155319,  -0.00085483250699375647, 0.00012055264156162359, -1.4924063508970509e-05,
        1.6437920544427905e-06, -1.6125005930781531e-07, 1.3305160933016157e-08, -6.9048394047133522e-10,
    };
    static constexpr double erf_far[] = {
        3.1227261090909111,      0.89198185675818853,     0.020764750705898973,    -0.003962671188461166,
        0.00071887771870505449,  -0.00011917804567753965, 1.685890733777133e-05,   -1.6412705116726487e-06,
        -5.1154065904853474e-08, 8.2862314436401266e-08,  -2.8006174721131673e-08, 6.8771615060303728e-09,
        -1.3869051036445781e-09, 1.7391425881642076e-10,  -5.9239031296823972e-12, 5.8087559216223902e-12,
        2.2620655201846312e-12,  -1.7271205201912613e-12,
    };
    static constexpr double erf_middle = 2.5, erf_is_1 = 5.95;
};

using Numbers = Coefficients<Real>;

/// e^x for x between -87.33 and 87.33 (708 in float64); 0 for smaller x, and the value at the upper end for larger x. A
/// NaN stays one.
inline Real exponential(Real x) {
    constexpr Real end = Numbers::largest_exponent;
    const Real inside = x < -end ? -end : (x > end ? end : x);
    const Real shifted = inside * Numbers::log2_e + Numbers::rounds_to_whole;
    const Real n = shifted - Numbers::rounds_to_whole;
    const Real r = (inside - n * Numbers::log_2_high) - n * Numbers::log_2_low;
    const Real mantissa = polynomial(Numbers::exponential, r) * (r * r) + r + 1;
    typename Numbers::Bits bits;  // the lowest bits of `shifted` are n
    std::memcpy(&bits, &shifted, sizeof(bits));
    bits = (bits + Numbers::exponent_bias) << Numbers::mantissa_bits;
    Real power;
    std::memcpy(&power, &bits, sizeof(power));
    return x < -end ? 0 : mantissa * power;
}

inline Real hyperbolic_tangent(Real x) {
    const Real size = std::fabs(x), square = x * x;
    const Real near_0 = size + size * square * polynomial(Numbers::tanh, square);
    const Real far = 1 - 2 / (exponential(2 * size) + 1);
    const Real value = size < Real(0.6) ? near_0 : far;
    return x < 0 ? -value : value;
}

inline Real error_function(Real x) {
    const Real size = std::fabs(x), square = x * x;
    const Real near_0 = size + size * polynomial(Numbers::erf_near_0, square);
    const Real t = size > Numbers::erf_is_1 ? Numbers::erf_is_1 : size;
    const Real far = 1 - exponential(-t * polynomial(Numbers::erf_far, t - Numbers::erf_middle));
    const Real value = size < Real(0.93) ? near_0 : far;
    return x < 0 ? -value : value;
}

/// 1 - base^exponent for a whole exponent and a base from 0 to 1, by products, since the rounding of pow differs
/// between libraries.
inline double one_less_power(double base, std::int64_t exponent) {
    constexpr double vanishes = 1e-60;  // compared with 1; smaller products could become subnormal, which is slow
    double power = 1;
    for (; exponent > 0; exponent /= 2) {
        power *= exponent % 2 == 1 ? base : 1;  // no branch, which would be mispredicted in every other step
        base = base * base < vanishes ? vanishes : base * base;
    }
    return 1 - power;
}

}  // namespace
