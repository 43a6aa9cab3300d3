// Mean and standard deviation of each input and target over the training samples, with the same order of additions as
// mpitrain/data/moments.py, so that the bits are those of `mpitrain train`.
//
//   N samples of a microbatch      V microbatches
#pragma once

namespace {

/// Statistics of one column; the range is empty if there are no values.
struct Moments {
    double count = 0, mean = 0, m2 = 0;
    double minimum = HUGE_VAL, maximum = -HUGE_VAL;

    bool is_constant() const { return minimum >= maximum; }
    double std() const { return std::sqrt(m2 / (count > 0 ? count : 2.2250738585072014e-308)); }
};

/// Returns the sum of N numbers in numpy's order: pairwise, over blocks of at most 128 numbers with eight partial sums.
double pairwise_sum(const double* numbers, std::int64_t count) {
    if (count < 8) {
        double sum = 0;
        for (std::int64_t i = 0; i < count; ++i) sum += numbers[i];
        return sum;
    }
    if (count > 128) {
        std::int64_t half = count / 2;
        half -= half % 8;
        return pairwise_sum(numbers, half) + pairwise_sum(numbers + half, count - half);
    }
    double sums[8];
    for (int j = 0; j < 8; ++j) sums[j] = numbers[j];
    std::int64_t i = 8;
    for (; i < count - count % 8; i += 8)
        for (int j = 0; j < 8; ++j) sums[j] += numbers[i + j];
    double sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    for (; i < count; ++i) sum += numbers[i];
    return sum;
}

/// Returns the moments of `values`, which are overwritten.
Moments moments_of(std::vector<double>& values) {
    Moments found;
    if (values.empty()) return found;
    const std::int64_t count = static_cast<std::int64_t>(values.size());
    found.count = static_cast<double>(count);
    found.mean = pairwise_sum(values.data(), count) / found.count;
    for (double& value : values) {
        found.minimum = std::min(found.minimum, value);
        found.maximum = std::max(found.maximum, value);
        value -= found.mean;
    }
    const double rest = pairwise_sum(values.data(), count);
    for (double& value : values) value *= value;
    const double m2 = pairwise_sum(values.data(), count) - rest * rest / found.count;
    found.m2 = m2 > 0 ? m2 : 0;
    return found;
}

/// Returns the moments of both parts together (Chan, Golub and LeVeque, 1983).
Moments merged(const Moments& lower, const Moments& upper) {
    Moments both;
    both.count = lower.count + upper.count;
    const double share = upper.count / (both.count > 0 ? both.count : 1.0), delta = upper.mean - lower.mean;
    both.mean = lower.mean + delta * share;
    both.m2 = lower.m2 + upper.m2 + delta * delta * (lower.count * share);
    both.minimum = std::min(lower.minimum, upper.minimum);
    both.maximum = std::max(lower.maximum, upper.maximum);
    return both;
}

/// Combines the V parts pairwise, neighbours first, in place and without allocation; V is a power of two.
template <class Part, class Combine>
Part combined_in_tree(std::vector<Part>& parts, const Combine& combine) {
    for (std::size_t distance = 1; distance < parts.size(); distance *= 2)
        for (std::size_t i = 0; i < parts.size(); i += 2 * distance) parts[i] = combine(parts[i], parts[i + distance]);
    return parts[0];
}

}  // namespace
