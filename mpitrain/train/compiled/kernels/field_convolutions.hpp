// Convolutions of a network on fields, with norm, activation and dropout, forward and backward, one sample at a time.
//
//   C, O channels of a layer's source and target      x, y column and row of a point
//
// The order of every sum is fixed: for kernels of 3 x 3 points see winograd.hpp; for others a sum runs over rows,
// channels and columns of the kernel. A gradient is summed over the columns of a row, starting at 0, then over the
// rows, then over the samples of a microbatch.
#pragma once

#include "field_weights.hpp"

namespace {

/// The mode of a forward pass: in training the key of its dropout, and the number of the sample in its microbatch.
struct Pass {
    bool is_training;
    std::uint64_t key;
    std::int64_t row;
};

/// Fills the margins of a row with `columns` columns of `count` numbers each, which are `pixel` numbers apart.
inline void fill_margins(Real* row, int columns, int pixel, int count) {
    for (int i = 0; i < 2 * margin; ++i) {
        const int x = i < margin ? -1 - i : columns + i - margin;
        Real* to = row + x * pixel;
        const Real* from = row + ((x % columns + columns) % columns) * pixel;
        for (int c = 0; c < count; ++c) to[c] = is_periodic ? from[c] : 0;
    }
}

/// The input of a convolution's activation, computed from the kept sum.
template <int l>
Real sum_before(const Real* scales, const Real* offsets, Real kept_sum, int c) {
    return has_norm ? kept_sum * scales[c] + offsets[c] : kept_sum;
}

/// Finishes row y of a convolution: activation, dropout, margins.
template <int l>
void finish_row(Workspace& work, int y, const Pass& pass) {
    constexpr int to = layers[l].to, O = width(outputs_of(l)), pixel = pixel_of(to);
    constexpr int columns = columns_at(values[to].level);
    Real* row = value_at<to>(work, y, 0) + layers[l].part * O;
    if constexpr (keeps_sums) {
        const Real* before = sums_at<to>(work, y, 0) + layers[l].part * O;
        const Real *scales = part_of<l>(work, scale), *offsets = part_of<l>(work, offset);
        for (int x = 0; x < columns; ++x)
            for (int c = 0; c < O; ++c)
                row[x * pixel + c] =
                    activate<hidden_activation>(sum_before<l>(scales, offsets, before[x * pixel + c], c));
    }
    if (has_dropout && pass.is_training) {
        const Real* factors = part_of<l>(work, kept);
        for (int x = 0; x < columns; ++x)
            for (int c = 0; c < O; ++c) row[x * pixel + c] *= factors[c];
    }
    fill_margins(row, columns, pixel, O);
}

/// Sets totals [O] to the sums of term(y, x, c) over the points of a layer's target: over columns, then over rows.
template <int l, typename Term>
void sum_over_points(const Term& term, Real* totals) {
    constexpr int to = layers[l].to, O = width(outputs_of(l));
    for (int c = 0; c < O; ++c) totals[c] = 0;
    for (int y = 0; y < rows_at(values[to].level); ++y) {
        Real of_row[O] = {};
        for (int x = 0; x < columns_at(values[to].level); ++x)
            for (int c = 0; c < O; ++c) of_row[c] += term(y, x, c);
        for (int c = 0; c < O; ++c) totals[c] += of_row[c];
    }
}

/// Normalises the sums of layer l (Ioffe and Szegedy, 2015): in training by their own moments, otherwise by the running
/// statistics.
template <int l>
void normalise(Workspace& work, const Pass& pass) {
    constexpr int to = layers[l].to, C = outputs_of(l), O = width(C), pixel = pixel_of(to);
    constexpr int rows = rows_at(values[to].level), columns = columns_at(values[to].level);
    constexpr Real count = Real(rows) * columns;
    const auto at = [&](int y, int x, int c) -> Real& {
        return sums_at<to>(work, y, 0)[layers[l].part * O + x * pixel + c];
    };
    Real mean[O] = {}, variance[O] = {}, running[2][O] = {};
    for (int i = 0; i < 2; ++i) std::memcpy(running[i], work.running + running_before(l) + i * C, sizeof(Real) * C);
    if (pass.is_training) {
        Real *moments = work.moments + moments_before(l), shifted[O], squares[O];
        sum_over_points<l>([&](int y, int x, int c) { return at(y, x, c); }, mean);
        sum_over_points<l>([&](int y, int x, int c) { return at(y, x, c) - running[0][c]; }, shifted);
        sum_over_points<l>(
            [&](int y, int x, int c) { return (at(y, x, c) - running[0][c]) * (at(y, x, c) - running[0][c]); },
            squares);
        moments[0] = count;
        std::memcpy(moments + 1, shifted, sizeof(Real) * C);
        std::memcpy(moments + 1 + C, squares, sizeof(Real) * C);
        for (int c = 0; c < O; ++c) mean[c] /= count;
        sum_over_points<l>([&](int y, int x, int c) { return (at(y, x, c) - mean[c]) * (at(y, x, c) - mean[c]); },
                           variance);
        for (int c = 0; c < O; ++c) variance[c] /= count;
    } else {
        std::memcpy(mean, running[0], sizeof(mean));
        std::memcpy(variance, running[1], sizeof(variance));
    }
    Real* factors = part_of<l>(work, reciprocal_std);
    for (int c = 0; c < O; ++c) factors[c] = 1 / std::sqrt(variance[c] + static_cast<Real>(norm_epsilon));
    for (int y = 0; y < rows; ++y)
        for (int x = 0; x < columns; ++x)
            for (int c = 0; c < O; ++c) at(y, x, c) = (at(y, x, c) - mean[c]) * factors[c];
}

/// Calls segment(x, readable) for the segments of a row: the first column, and the number of columns that may be read
/// from column x - 1 on.
template <int level, typename Segment>
void for_each_segment(const Segment& segment) {
    constexpr int columns = 2 * tiles_of_segment(columns_at(level));
    for (int i = 0; i < segments_of(columns_at(level)); ++i) segment(i * columns, columns_at(level) + 2 - i * columns);
}

/// Computes rows y and y + 1 of a convolution of 3 x 3 points: forward, or backward from the derivatives by the sums to
/// those by the source. `source` and `target` return the address of a row and column; a target row beyond the field is
/// null.
template <int level, int C, int source_pixel, int O, int target_pixel, int channels, Store store_kind, typename Source,
          typename Target>
void convolve_rows(Workspace& work, int y, const Source& source, const Target& target, const Real* weights,
                   const Real* bias) {
    constexpr int T = tiles_of_segment(columns_at(level)), H = rows_at(level);
    for_each_segment<level>([&](int x, int readable) {
        // With an odd number of rows, row y + 2 may lie beyond the margin. It affects only target row y + 1, which is
        // then null, so that any row can be read in its place.
        const Real* const rows[] = {source(y - 1, x - 1), source(y, x - 1), source(y + 1, x - 1),
                                    source(y + 2 <= H ? y + 2 : H, x - 1)};
        expand_source<T, C, source_pixel>(rows, readable, work.terms[0]);
        multiply_terms<T, C, O, channels>(work.terms[0], weights, work.terms[1]);
        collect_target<T, O, target_pixel, store_kind>(work.terms[1], bias,
                                                       {target(y, x), y + 1 < H ? target(y + 1, x) : nullptr});
    });
}

template <int l>
void forward_convolution(Workspace& work, const Pass& pass) {
    constexpr int from = layers[l].from, to = layers[l].to, level = values[to].level, O = width(outputs_of(l));
    constexpr Store store_kind = keeps_sums || hidden_activation != relu ? Store::as_it_is : Store::rectified;
    if (has_dropout && pass.is_training)
        draw_kept(key_of(pass.key, l), pass.row, outputs_of(l), dropout, part_of<l>(work, kept));
    const auto target_at = [&](int y, int x) {
        return (keeps_sums ? sums_at<to>(work, y, x) : value_at<to>(work, y, x)) + layers[l].part * O;
    };
    for (int y = 0; has_terms(l) && y < rows_at(level); y += 2) {
        const auto source_at = [&](int row, int x) { return value_at<from>(work, row, x); };
        if constexpr (has_terms(l))
            convolve_rows<level, pixel_of(from), pixel_of(from), O, pixel_of(to), source_channels(l), store_kind>(
                work, y, source_at, target_at, forward_weights<l>(work), part_of<l>(work, bias));
        for (int row = y; !has_norm && row < y + 2 && row < rows_at(level); ++row) finish_row<l>(work, row, pass);
    }
    for (int y = 0; !has_terms(l) && y < rows_at(level); ++y) {
        convolve_row<tile_at(level), K, pixel_of(from), store_kind>(
            {value_at<from>(work, y - margin, -margin), row_of(from), channel_of(from), source_channels(l),
             channel_tiles(l) * channel_tile(l)},
            forward_weights<l>(work), O, part_of<l>(work, bias), {target_at(y, 0), pixel_of(to)}, tiles_at(level));
        if constexpr (!has_norm) finish_row<l>(work, y, pass);
    }
    if constexpr (has_norm) {
        normalise<l>(work, pass);
        for (int y = 0; y < rows_at(level); ++y) finish_row<l>(work, y, pass);
    }
}

/// Adds to the totals of a bias the sum of a row [columns][O] of derivatives, columns `pixel` numbers apart; the sum
/// starts at 0.
template <int O, int pixel = O>
void add_bias_row(const Real* row, int columns, Real* totals) {
    Real sum[O] = {};
    for (int x = 0; x < columns; ++x)
        for (int c = 0; c < O; ++c) sum[c] += row[x * pixel + c];
    for (int c = 0; c < O; ++c) totals[c] += sum[c];
}

/// Replaces row y of the derivatives by a convolution's target with the derivatives by the input of its activation.
template <int l>
void differentiate_row(Workspace& work, int y) {
    constexpr int to = layers[l].to, O = width(outputs_of(l)), pixel = pixel_of(to);
    Real* delta = gradient_at<to>(work, y, 0) + layers[l].part * O;
    const Real* after = value_at<to>(work, y, 0) + layers[l].part * O;
    [[maybe_unused]] const Real *before = nullptr, *factors = part_of<l>(work, kept);
    if constexpr (keeps_sums) before = sums_at<to>(work, y, 0) + layers[l].part * O;
    const Real *scales = part_of<l>(work, scale), *offsets = part_of<l>(work, offset);
    for (int x = 0; x < columns_at(values[to].level); ++x)
        for (int c = 0; c < O; ++c) {
            const int i = x * pixel + c;
            Real by_target = has_dropout ? delta[i] * factors[c] : delta[i];
            if constexpr (keeps_sums) {
                const Real z = sum_before<l>(scales, offsets, before[i], c);
                by_target = without_tiny(by_target * slope<hidden_activation>(z, activate<hidden_activation>(z)));
            } else if constexpr (hidden_activation == relu) {
                by_target = after[i] > 0 ? by_target : 0;
            }
            delta[i] = by_target;
        }
}

/// Replaces the derivatives by a convolution's normalised and scaled sums with the derivatives by its sums.
template <int l>
void normalise_gradient(Workspace& work) {
    constexpr int to = layers[l].to, O = width(outputs_of(l)), pixel = pixel_of(to);
    constexpr int rows = rows_at(values[to].level), columns = columns_at(values[to].level);
    constexpr Real count = Real(rows) * columns;
    const auto delta = [&](int y, int x, int c) -> Real& {
        return gradient_at<to>(work, y, 0)[layers[l].part * O + x * pixel + c];
    };
    const auto normalised = [&](int y, int x, int c) {
        return sums_at<to>(work, y, 0)[layers[l].part * O + x * pixel + c];
    };
    Real *scale_sums = part_of<l>(work, scale_total), *offset_sums = part_of<l>(work, offset_total);
    sum_over_points<l>([&](int y, int x, int c) { return delta(y, x, c) * normalised(y, x, c); }, scale_sums);
    sum_over_points<l>([&](int y, int x, int c) { return delta(y, x, c); }, offset_sums);
    const Real *scales = part_of<l>(work, scale), *factors = part_of<l>(work, reciprocal_std);
    for (int y = 0; y < rows; ++y)
        for (int x = 0; x < columns; ++x)
            for (int c = 0; c < O; ++c) {
                // Each point affects mean and variance, and thereby all points.
                const Real shared = (offset_sums[c] + normalised(y, x, c) * scale_sums[c]) / count;
                delta(y, x, c) = without_tiny(factors[c] * scales[c] * (delta(y, x, c) - shared));
            }
}

/// Adds the contribution of rows y and y + 1 of a convolution's derivatives to the totals of its terms.
template <int l>
void add_gradient_rows(Workspace& work, int y) {
    constexpr int from = layers[l].from, to = layers[l].to, level = values[to].level, O = width(outputs_of(l));
    constexpr int T = tiles_of_segment(columns_at(level)), H = rows_at(level), C = pixel_of(from);
    for_each_segment<level>([&](int x, int readable) {
        const Real* const rows[] = {value_at<from>(work, y - 1, x - 1), value_at<from>(work, y, x - 1),
                                    value_at<from>(work, y + 1, x - 1),
                                    value_at<from>(work, y + 2 <= H ? y + 2 : H, x - 1)};
        const auto delta = [&](int row) { return gradient_at<to>(work, row, x) + layers[l].part * O; };
        expand_source<T, C, C>(rows, readable, work.terms[0]);
        expand_delta<T, O, pixel_of(to)>({delta(y), y + 1 < H ? delta(y + 1) : nullptr}, readable - 2, work.terms[1]);
        add_gradient_terms<T, C, O, source_channels(l)>(work.terms[0], work.terms[1], weight_totals<l>(work));
    });
}

/// Computes the derivatives by a convolution's source from those by its sums.
template <int l>
void pass_back(Workspace& work) {
    constexpr int from = layers[l].from, to = layers[l].to, level = values[to].level, O = width(outputs_of(l));
    constexpr int C = pixel_of(from);
    constexpr Store store_kind = adds_to_later(l) ? Store::added : Store::as_it_is;
    if constexpr (has_terms(l)) {
        const auto delta_at = [&](int y, int x) { return gradient_at<to>(work, y, x) + layers[l].part * O; };
        const auto target_at = [&](int y, int x) { return gradient_at<from>(work, y, x); };
        for (int y = 0; y < rows_at(level); y += 2)
            convolve_rows<level, O, pixel_of(to), C, C, outputs_of(l), store_kind>(work, y, delta_at, target_at,
                                                                                   backward_weights<l>(work), nullptr);
    } else {
        for (int y = 0; y < rows_at(level); ++y)
            convolve_row<tile_at(level), K, pixel_of(to), store_kind>(
                {gradient_at<to>(work, y - margin, -margin) + layers[l].part * O, row_of(to), 1, outputs_of(l),
                 outputs_of(l)},
                backward_weights<l>(work), C, nullptr, {gradient_at<from>(work, y, 0), C}, tiles_at(level));
    }
}

template <int l>
void backward_convolution(Workspace& work) {
    constexpr int from = layers[l].from, to = layers[l].to, level = values[to].level, O = width(outputs_of(l));
    constexpr int columns = columns_at(level), pixel = pixel_of(to), before = (K - 1) * O;
    if constexpr (has_norm) {
        for (int y = 0; y < rows_at(level); ++y) differentiate_row<l>(work, y);
        normalise_gradient<l>(work);
    }
    for (int y = 0; y < rows_at(level); ++y) {
        if constexpr (!has_norm) differentiate_row<l>(work, y);
        Real* delta = gradient_at<to>(work, y, 0) + layers[l].part * O;
        add_bias_row<O, pixel>(delta, columns, part_of<l>(work, bias_total));
        if constexpr (has_terms(l)) {
            if (y % 2 == 1 || y + 1 == rows_at(level)) add_gradient_rows<l>(work, y / 2 * 2);
        } else {
            std::memset(work.row, 0, sizeof(Real) * before);
            std::memset(work.row + before + columns * O, 0, sizeof(Real) * before);
            for (int x = 0; x < columns; ++x)
                std::memcpy(work.row + before + x * O, delta + x * pixel, sizeof(Real) * O);
            add_gradient_row<channel_tile(l), K, pixel_of(from)>(
                {value_at<from>(work, y - margin, -margin), row_of(from), channel_of(from), source_channels(l), 0},
                work.row, O, columns, channel_tiles(l), weight_totals<l>(work));
        }
        fill_margins(delta, columns, pixel, O);
    }
    if constexpr (from > 0) pass_back<l>(work);
}

}  // namespace
