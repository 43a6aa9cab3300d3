#include "moments.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "errors.hpp"
#include "virtual_ranks.hpp"

namespace {

void check_std(std::size_t f, double std) {
    if (std > 0 && std::isfinite(std)) return;
    throw UserError(std::string(input_names[f]) + ": its variance over the selected samples is zero or not a number; " +
                    "reference semantics cannot scale it, --semantics standard can");
}

/// Returns the sum of n values in numpy's order of addition: eight partial sums over blocks of up to 128 values, and
/// the blocks in a tree. In float64 any other order gives other bits of the standard deviation.
double pairwise_sum(const double* values, std::size_t n) {
    constexpr std::size_t lanes = 8, block = 128;
    if (n < lanes) return std::accumulate(values, values + n, 0.0);
    if (n > block) {
        const std::size_t half = n / 2 - n / 2 % lanes;
        return pairwise_sum(values, half) + pairwise_sum(values + half, n - half);
    }
    double sums[lanes];
    std::copy_n(values, lanes, sums);
    const std::size_t whole = n - n % lanes;
    for (std::size_t i = lanes; i < whole; ++i) sums[i % lanes] += values[i];
    const double total = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    return std::accumulate(values + whole, values + n, total);
}

double sum(const std::vector<double>& values) { return pairwise_sum(values.data(), values.size()); }

}  // namespace

template <typename Real>
Moments moments_of(const std::vector<Real>& x) {
    Moments moments;
    const std::size_t n = x.size() / num_features;
    if (n == 0) return moments;
    moments.count = static_cast<double>(n);
    std::vector<double> values(n), squares(n);
    for (std::size_t f = 0; f < num_features; ++f) {
        for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<double>(x[i * num_features + f]);
        const auto [lowest, highest] = std::minmax_element(values.begin(), values.end());
        moments.minimum[f] = *lowest;
        moments.maximum[f] = *highest;
        moments.mean[f] = sum(values) / moments.count;
        for (double& value : values) value -= moments.mean[f];
        std::transform(values.begin(), values.end(), squares.begin(), [](double value) { return value * value; });
        // The second term corrects the squares for the rounding error of the mean.
        const double deviations = sum(values);
        moments.m2[f] = std::max(sum(squares) - deviations * deviations / moments.count, 0.0);
    }
    return moments;
}

Moments merge(const Moments& a, const Moments& b) {
    if (a.count == 0) return b;
    if (b.count == 0) return a;
    Moments both;
    both.count = a.count + b.count;
    const double share = b.count / both.count;
    for (std::size_t f = 0; f < num_features; ++f) {
        const double delta = b.mean[f] - a.mean[f];
        both.mean[f] = a.mean[f] + delta * share;
        both.m2[f] = a.m2[f] + b.m2[f] + delta * delta * (a.count * share);
        both.minimum[f] = std::min(a.minimum[f], b.minimum[f]);
        both.maximum[f] = std::max(a.maximum[f], b.maximum[f]);
    }
    return both;
}

Moments all_reduce_moments(const MpiSession& mpi, const std::vector<Moments>& parts, std::int64_t num_virtual_ranks) {
    constexpr int width = 1 + 4 * static_cast<int>(num_features);
    static_assert(sizeof(Moments) == width * sizeof(double), "Moments travel as plain doubles");
    std::vector<Moments> all(static_cast<std::size_t>(num_virtual_ranks));
    const OwnedCounts owned = owned_counts(num_virtual_ranks, mpi.world_size(), width);
    MPI_Allgatherv(parts.data(), static_cast<int>(parts.size()) * width, MPI_DOUBLE, all.data(), owned.counts.data(),
                   owned.starts.data(), MPI_DOUBLE, mpi.comm());
    for (std::size_t stride = 1; stride < all.size(); stride *= 2) {
        for (std::size_t v = 0; v + stride < all.size(); v += 2 * stride) all[v] = merge(all[v], all[v + stride]);
    }
    return all[0];
}

Normalization normalization_of(const Moments& moments, std::vector<std::size_t>& constant) {
    Normalization normalization;
    for (std::size_t f = 0; f < num_features; ++f) {
        const bool is_constant = moments.minimum[f] == moments.maximum[f];
        if (is_constant) constant.push_back(f);
        normalization.mean.push_back(moments.mean[f]);
        normalization.std.push_back(is_constant ? 1 : std::sqrt(moments.m2[f] / moments.count));
    }
    return normalization;
}

template <typename Real>
OnePassMoments<Real> plain_one_pass_moments(const ColumnSums<Real>& sums, Real num_samples) {
    OnePassMoments<Real> moments;
    for (std::size_t f = 0; f < num_features; ++f) {
        const Real mean = sums.x[f] / num_samples;
        moments.mean.push_back(mean);
        moments.std.push_back(std::sqrt(sums.x_squared[f] / num_samples - mean * mean));
    }
    return moments;
}

template <typename Real>
Normalization reference_normalization(const MpiSession& mpi, ColumnSums<Real> sums, std::size_t num_samples,
                                      OnePassMoments<Real> (*one_pass_moments)(const ColumnSums<Real>&, Real)) {
    constexpr int count = static_cast<int>(num_features);
    MPI_Allreduce(MPI_IN_PLACE, sums.x.data(), count, mpi_type<Real>(), MPI_SUM, mpi.comm());
    MPI_Allreduce(MPI_IN_PLACE, sums.x_squared.data(), count, mpi_type<Real>(), MPI_SUM, mpi.comm());
    const Real total = static_cast<Real>(num_samples) * static_cast<Real>(mpi.world_size());
    return mpi.together([&] {
        const OnePassMoments<Real> moments = one_pass_moments(sums, total);
        for (std::size_t f = 0; f < num_features; ++f) check_std(f, static_cast<double>(moments.std[f]));
        return Normalization{{moments.mean.begin(), moments.mean.end()}, {moments.std.begin(), moments.std.end()}};
    });
}

template Moments moments_of(const std::vector<float>&);
template Moments moments_of(const std::vector<double>&);
template OnePassMoments<float> plain_one_pass_moments(const ColumnSums<float>&, float);
template OnePassMoments<double> plain_one_pass_moments(const ColumnSums<double>&, double);
template Normalization reference_normalization(const MpiSession&, ColumnSums<float>, std::size_t,
                                               OnePassMoments<float> (*)(const ColumnSums<float>&, float));
template Normalization reference_normalization(const MpiSession&, ColumnSums<double>, std::size_t,
                                               OnePassMoments<double> (*)(const ColumnSums<double>&, double));
