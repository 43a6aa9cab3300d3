// Batch norm before the activation of a hidden layer, and dropout after it.
//
//   R rows of a microbatch      C units of a layer
#pragma once

#include "arithmetic.hpp"

namespace {

/// A hash of 64 bits (Steele, Lea and Flood, 2014: the finaliser of SplitMix).
inline std::uint64_t mixed(std::uint64_t bits) {
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    return bits ^ (bits >> 31);
}

/// The key number `index` that is derived from `key`.
inline std::uint64_t key_of(std::uint64_t key, std::int64_t index) {
    return mixed(key + 0x9e3779b97f4a7c15u * static_cast<std::uint64_t>(index + 1));
}

/// Sets kept[c], for C units of a row, to 0 with `probability`, otherwise to 1 / (1 - probability). The draw of a unit
/// depends only on `key` and on its number among the units of all rows, so that it is the same in any tile and on any
/// rank.
inline void draw_kept(std::uint64_t key, std::int64_t row, int C, double probability, Real* kept) {
    const auto low = static_cast<std::uint32_t>(key), high = static_cast<std::uint32_t>(key >> 32);
    const auto first = static_cast<std::uint32_t>(row) * static_cast<std::uint32_t>(C);
    const auto threshold = static_cast<std::uint32_t>(probability * 16777216);  // of 24 bits
    const Real scale = static_cast<Real>(1 / (1 - probability));
    for (int c = 0; c < C; ++c) {
        // MurmurHash3's finaliser (A. Appleby), with the key added between its products.
        std::uint32_t bits = (first + static_cast<std::uint32_t>(c)) * 0x9e3779b1u + low;
        bits = (bits ^ (bits >> 16)) * 0x85ebca6bu + high;
        bits = (bits ^ (bits >> 13)) * 0xc2b2ae35u;
        bits ^= bits >> 16;
        kept[c] = (bits >> 8) >= threshold ? scale : 0;
    }
}

constexpr double norm_epsilon = 1e-5, norm_momentum = 0.1;  // torch's defaults

/// How many sums a layer has: one for the number of rows, two for each unit (of z - shift and of its square). The shift
/// is the running mean, which is near the mean, so that cancellation is small, and is the same on all ranks.
constexpr int num_norm_sums(int C) { return 1 + 2 * C; }

/// Normalises z [R][C] by the moments of the rows with row_counts 1 (Ioffe and Szegedy, 2015). Sets `normalised` [R][C]
/// and reciprocal_std [C] for the backward pass, and sums [1 + 2 C]. `running` [2][C] holds mean and variance.
template <int C, int stride>
void normalise_batch(Real (*z)[stride], const Real* row_counts, int R, const Real* scale, const Real* offset,
                     const Real* running, Real (*normalised)[stride], Real* reciprocal_std, Real* sums) {
    Real total = 0, mean[C] = {}, variance[C] = {};
    for (int i = 0; i < num_norm_sums(C); ++i) sums[i] = 0;
    for (int r = 0; r < R; ++r) {
        total += row_counts[r];
        for (int c = 0; c < C; ++c) {
            const Real shifted = z[r][c] - running[c], weighted = row_counts[r] * shifted;
            mean[c] += row_counts[r] * z[r][c];
            sums[1 + c] += weighted;
            sums[1 + C + c] += weighted * shifted;
        }
    }
    sums[0] = total;
    const Real divisor = total < 1 ? 1 : total;  // any finite number if all rows are padding
    for (int c = 0; c < C; ++c) mean[c] /= divisor;
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) {
            const Real deviation = z[r][c] - mean[c];
            variance[c] += row_counts[r] * (deviation * deviation);
        }
    for (int c = 0; c < C; ++c)
        reciprocal_std[c] = 1 / std::sqrt(variance[c] / divisor + static_cast<Real>(norm_epsilon));
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) {
            normalised[r][c] = (z[r][c] - mean[c]) * reciprocal_std[c];
            z[r][c] = normalised[r][c] * scale[c] + offset[c];
        }
}

/// Normalises z [R][C] by the running statistics [2][C], as in predictions.
template <int C, int stride>
void normalise_by(const Real* running, Real (*z)[stride], int R, const Real* scale, const Real* offset) {
    Real reciprocal_std[C];
    for (int c = 0; c < C; ++c) reciprocal_std[c] = 1 / std::sqrt(running[C + c] + static_cast<Real>(norm_epsilon));
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) z[r][c] = (z[r][c] - running[c]) * reciprocal_std[c] * scale[c] + offset[c];
}

/// Replaces delta [R][C], the derivatives of the loss by the normalised and scaled units, with those by z; sets the
/// gradients [C] of scale and offset.
template <int C, int stride>
void normalise_backward(Real (*delta)[stride], const Real* row_counts, int R, const Real* scale,
                        const Real (*normalised)[stride], const Real* reciprocal_std, Real total, Real* scale_gradient,
                        Real* offset_gradient) {
    const Real divisor = total < 1 ? 1 : total;
    for (int c = 0; c < C; ++c) scale_gradient[c] = offset_gradient[c] = 0;
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) {
            scale_gradient[c] += delta[r][c] * normalised[r][c];
            offset_gradient[c] += delta[r][c];
        }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) {
            // Each row with row_counts 1 affects mean and variance, and thereby all rows.
            const Real shared = (offset_gradient[c] + normalised[r][c] * scale_gradient[c]) / divisor;
            delta[r][c] = without_tiny(reciprocal_std[c] * scale[c] * (delta[r][c] - row_counts[r] * shared));
        }
}

/// Updates the running statistics [2][C] with the sums of all microbatches, as torch does.
inline void update_running(Real* running, const Real* sums, int C) {
    const double count = static_cast<double>(sums[0]), divisor = count < 1 ? 1 : count;
    const double unbias = count / (count - 1 < 1 ? 1 : count - 1);
    const Real kept = static_cast<Real>(1 - norm_momentum), fraction = static_cast<Real>(norm_momentum);
    for (int c = 0; c < C; ++c) {
        const double offset = static_cast<double>(sums[1 + c]) / divisor;
        const double spread_of = static_cast<double>(sums[1 + C + c]) / divisor - offset * offset;
        const double mean = static_cast<double>(running[c]) + offset;
        const double variance = spread_of < 0 ? 0 : spread_of * unbias;
        running[c] = without_tiny(kept * running[c] + fraction * static_cast<Real>(mean));
        running[C + c] = without_tiny(kept * running[C + c] + fraction * static_cast<Real>(variance));
    }
}

}  // namespace
