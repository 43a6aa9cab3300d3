// How far the kernels' functions are from the true values: argument N takes every N-th float32, and as many float64.
// Prints a line a function: its name and its largest error in units in the last place; then the mismatches of the
// emulated fused product and sum, of those tried, with the library's, which is exact.
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "functions.hpp"

namespace {

// Enough digits that their own error does not count.
using Wide = std::conditional_t<is_float, double, long double>;

double units_off(Real value, Wide truth) {
    const Real nearest = std::fabs(static_cast<Real>(truth));
    const Real unit = std::nextafter(nearest, std::numeric_limits<Real>::infinity()) - nearest;
    return static_cast<double>(std::fabs(static_cast<Wide>(value) - truth) / static_cast<Wide>(unit));
}

std::uint64_t random_state = 1;
std::uint64_t random_bits() {
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return random_state;
}

Real from_bits(std::uint64_t bits) {
    Real number;
    const auto own = static_cast<typename Numbers::Bits>(bits);
    std::memcpy(&number, &own, sizeof(number));
    return number;
}

/// Every float from 2^-40 to `end` and below 0, one of `stride`; or as many float64 spread in the same way.
template <typename Own, typename Truth>
void measure(const char* name, Own own, Truth truth, Real end, std::uint64_t stride) {
    double worst = 0;
    const double first = std::ldexp(1.0, -40);
    const auto visit = [&](Real x) {
        for (const Real signed_x : {x, -x})
            worst = std::max(worst, units_off(own(signed_x), truth(static_cast<Wide>(signed_x))));
    };
    typename Numbers::Bits low, high;
    const Real start = static_cast<Real>(first);
    std::memcpy(&low, &start, sizeof(low)), std::memcpy(&high, &end, sizeof(high));
    const std::uint64_t step = is_float ? stride : std::max<std::uint64_t>(1, (high - low) / (400000000 / stride));
    for (std::uint64_t bits = low; bits <= high; bits += step)
        visit(from_bits(is_float ? bits : std::min<std::uint64_t>(high, bits + random_bits() % step)));
    visit(end);
    std::printf("%s %.3f\n", name, worst);
}

/// Numbers of all sizes: their products and sums overflow, cancel, fall between tiny numbers, and are ties.
Real any_number(bool is_narrow) {
    const std::uint64_t bits = random_bits();
    if (!is_narrow) return from_bits(bits);
    return std::ldexp(static_cast<Real>(static_cast<std::int64_t>(bits % 4097) - 2048),
                      static_cast<int>(bits >> 60) - 8);
}

}  // namespace

int main(int, char** argv) {
    const auto stride = static_cast<std::uint64_t>(std::atoll(argv[1]));
    measure(
        "exponential", exponential, [](Wide x) { return std::exp(x); }, Numbers::largest_exponent, stride);
    measure(
        "tanh", hyperbolic_tangent, [](Wide x) { return std::tanh(x); }, 25, stride);
    measure(
        "erf", error_function, [](Wide x) { return std::erf(x); }, 7, stride);
    long mismatches = 0, tried = 0;
    for (; tried < 40000000 / static_cast<long>(stride); ++tried) {
        const bool is_narrow = tried % 2 == 0;
        const Real a = any_number(is_narrow), b = any_number(is_narrow);
        const Real c = tried % 3 == 0 ? -a * b : any_number(is_narrow);  // cancelling all but the product's last digits
        const Real own = emulated_fused(a, b, c), exact = std::fma(a, b, c);
        mismatches += std::memcmp(&own, &exact, sizeof(own)) != 0 && !(own != own && exact != exact);
    }
    std::printf("fused %ld %ld\n", mismatches, tried);
}
