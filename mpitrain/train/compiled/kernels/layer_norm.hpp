// Layer norm before the activation of a hidden layer (Ba, Kiros and Hinton, 2016): normalises each row by its moments.
//
//   R rows of a tile      C units of a layer
//
// Rows are padded with zeros to whole vectors, [R][stride]. Sums run along the rows: in order within each lane, then
// over the lanes by halves. Rows beyond R, up to a multiple of register_lanes, are computed too, and not used.
#pragma once

#include "arithmetic.hpp"

namespace {

constexpr double layer_norm_epsilon = 1e-5;  // torch's default

/// Sets sums[r] to the sum over i of a[r][i] * b[r][i], or of a[r][i] if `b` is null, for `register_lanes` rows.
template <int stride, int C>
void sum_rows(const Real (*a)[stride], const Real (*b)[stride], Real* sums) {
    constexpr int vectors = lanes / register_lanes;
    Vector row[register_lanes];
    for (int r = 0; r < register_lanes; ++r) {
        Vector sum[vectors] = {};
        for (int i = 0; i < C; i += lanes)
            for (int v = 0; v < vectors; ++v) {
                const Vector first = load(a[r] + i + v * register_lanes);
                sum[v] = b ? fused(first, load(b[r] + i + v * register_lanes), sum[v]) : sum[v] + first;
            }
        for (int half = vectors / 2; half > 0; half /= 2)
            for (int v = 0; v < half; ++v) sum[v] += sum[v + half];
        row[r] = sum[0];
    }
    store(sums, sums_of_lanes(row));
}

/// Normalises z [R][C]. Sets `normalised` [R][C], with zero padding, and reciprocal_std [R] for the backward pass.
template <int C, int stride>
void normalise_rows(Real (*z)[stride], int R, const Real* scale, const Real* offset, Real (*normalised)[stride],
                    Real* reciprocal_std) {
    for (int first = 0; first < R; first += register_lanes) {
        Real mean[register_lanes], squares[register_lanes];
        sum_rows<stride, C>(z + first, nullptr, mean);
        for (int r = 0; r < register_lanes; ++r) mean[r] /= C;
        for (int r = 0; r < register_lanes; ++r)
            for (int c = 0; c < C; ++c) normalised[first + r][c] = z[first + r][c] - mean[r];
        sum_rows<stride, C>(normalised + first, normalised + first, squares);
        for (int r = 0; r < register_lanes; ++r)
            reciprocal_std[first + r] = 1 / std::sqrt(squares[r] / C + static_cast<Real>(layer_norm_epsilon));
        for (int r = 0; r < register_lanes; ++r)
            for (int c = 0; c < C; ++c) {
                normalised[first + r][c] *= reciprocal_std[first + r];
                z[first + r][c] = normalised[first + r][c] * scale[c] + offset[c];
            }
    }
}

/// Replaces delta [R][C], the derivatives of the loss by the normalised and scaled units, with those by z. The
/// gradients [C] of scale and offset are set by the first tile of a microbatch, and later tiles add to them.
template <int C, int stride>
void normalise_rows_backward(Real (*delta)[stride], int R, bool is_first, const Real* scale,
                             const Real (*normalised)[stride], const Real* reciprocal_std, Real* scale_gradient,
                             Real* offset_gradient) {
    for (int c = 0; c < C && is_first; ++c) scale_gradient[c] = offset_gradient[c] = 0;
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) {
            scale_gradient[c] += delta[r][c] * normalised[r][c];
            offset_gradient[c] += delta[r][c];
        }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) delta[r][c] *= scale[c];
    for (int first = 0; first < R; first += register_lanes) {
        Real mean[register_lanes], along[register_lanes];
        sum_rows<stride, C>(delta + first, nullptr, mean);
        sum_rows<stride, C>(delta + first, normalised + first, along);
        for (int r = 0; r < register_lanes; ++r) mean[r] /= C, along[r] /= C;
        // Each unit affects mean and variance, and thereby all units of its row.
        for (int r = 0; r < register_lanes; ++r)
            for (int c = 0; c < C; ++c) {
                const Real own = delta[first + r][c] - mean[r] - normalised[first + r][c] * along[r];
                delta[first + r][c] = without_tiny(own * reciprocal_std[first + r]);
            }
    }
}

}  // namespace
