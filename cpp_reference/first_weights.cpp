#include "first_weights.hpp"

#include <cmath>
#include <span>

// Only + - * / and the square root are used, and this file is compiled without fused multiply-add: log and cos round
// differently in different libraries. Random words, operations and their order are those of random_streams.py and
// portable_math.py.
namespace {

constexpr std::uint64_t increment = 0x9E3779B97F4A7C15u;
constexpr std::uint64_t first_weights_stream = 7;

/// splitmix64's finaliser (Steele, Lea and Flood, 2014).
std::uint64_t mix(std::uint64_t word) {
    word += increment;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
}

/// Random 64-bit words, determined by (seed, stream, parameter) and the number of the word.
class KeyedWords {
  public:
    KeyedWords(std::uint64_t seed, std::uint64_t parameter)
        : state_(mix(mix(mix(seed) ^ first_weights_stream) ^ parameter)) {}

    /// Returns the upper 53 bits of word `number`.
    double bits(std::uint64_t number) const { return static_cast<double>(mix(state_ + number * increment) >> 11); }

  private:
    std::uint64_t state_;
};

double polynomial(std::span<const double> coefficients, double x) {
    double sum = coefficients.back();
    for (std::size_t k = coefficients.size() - 1; k-- > 0;) sum = sum * x + coefficients[k];
    return sum;
}

/// Returns the natural logarithm of a positive normal number.
double logarithm(double x) {
    static constexpr double high = 6.93147180369123816490e-01, low = 1.90821492927058770002e-10;
    static constexpr double series[] = {0.66666666666667351, 0.39999999999409103, 0.28571428743791477,
                                        0.22222198413212235, 0.18183573441518214, 0.15313797379076177,
                                        0.1479867747606026};
    int exponent = 0;
    double mantissa = std::frexp(x, &exponent);
    if (mantissa < 0.7071067811865476) mantissa *= 2, --exponent;
    const double s = (mantissa - 1) / (mantissa + 1), e = exponent;
    const double rest = s * (s * s) * polynomial(series, s * s);
    return e * high + (2 * s + (rest + e * low));
}

/// Returns cos(2 pi turns).
double cosine_of_turns(double turns) {
    static constexpr double series[] = {
        -19.739208802178716, 64.939394022667486,  -85.456817206515538, 60.244641352569204,   -26.426255600377914,
        7.903492606511314,   -1.7133935280307429, 0.2683185337575188,  0.067412966731605836, -0.33027604999310312};
    const double halves = std::nearbyint(2 * turns), r = turns - 0.5 * halves, square = r * r;
    const double cosine = polynomial(series, square) * square + 1;
    return static_cast<std::int64_t>(halves) % 2 == 0 ? cosine : -cosine;
}

double uniform(const KeyedWords& words, std::uint64_t number) { return words.bits(number) * 0x1p-53; }

/// Returns a number of the standard normal distribution (Box and Muller, 1958).
double normal(const KeyedWords& words, std::uint64_t number) {
    const double size = std::sqrt(-2 * logarithm((words.bits(2 * number) + 1) * 0x1p-53));
    return size * cosine_of_turns(uniform(words, 2 * number + 1));
}

}  // namespace

Weights first_weights(std::int64_t hidden_size, std::uint64_t seed) {
    Weights weights{{num_features, static_cast<std::size_t>(hidden_size), 1}, {}};
    std::uint64_t number = 0;
    for (const Parameter& parameter : parameters_of(weights.sizes)) {
        const KeyedWords words(seed, number++);
        const bool is_matrix = parameter.shape.size() == 2;  // each bias follows its layer's matrix (O,I)
        const std::size_t fan_in = weights.sizes[(number - 1) / 2], fan_out = parameter.shape[0];
        const double scale =
            is_matrix ? std::sqrt(2 / static_cast<double>(fan_in + fan_out)) : std::sqrt(static_cast<double>(fan_in));
        for (std::size_t i = 0; i < parameter.size; ++i) {
            const double value = is_matrix ? normal(words, i) * scale : (2 * uniform(words, i) - 1) / scale;
            weights.values.push_back(static_cast<double>(static_cast<float>(value)));
        }
    }
    return weights;
}
