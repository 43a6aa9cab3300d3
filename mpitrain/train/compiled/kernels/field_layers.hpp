// The layers of a network on fields, forward and backward, one sample at a time.
//
//   C, O channels of a layer's source and target      x, y column and row of a point
#pragma once

#include "field_convolutions.hpp"

namespace {

template <int l>
void forward_pool(Workspace& work) {
    constexpr int from = layers[l].from, to = layers[l].to, level = values[to].level, O = width(outputs_of(l));
    constexpr int fine = pixel_of(from), coarse = pixel_of(to);
    for (int y = 0; y < rows_at(level); ++y) {
        const Real *upper = value_at<from>(work, 2 * y, 0), *lower = value_at<from>(work, 2 * y + 1, 0);
        Real* row = value_at<to>(work, y, 0) + layers[l].part * O;
        for (int x = 0; x < columns_at(level); ++x)
            for (int c = 0; c < O; ++c) {
                const int left = 2 * x * fine + c, right = left + fine;
                row[x * coarse + c] = Real(0.25) * ((upper[left] + upper[right]) + (lower[left] + lower[right]));
            }
        fill_margins(row, columns_at(level), coarse, O);
    }
}

template <int l>
void backward_pool(Workspace& work) {
    constexpr int from = layers[l].from, to = layers[l].to, level = values[to].level, O = width(outputs_of(l));
    constexpr int fine = pixel_of(from), coarse = pixel_of(to);
    for (int y = 0; y < rows_at(values[from].level); ++y) {
        const Real* row = gradient_at<to>(work, y / 2, 0) + layers[l].part * O;
        Real* finer = gradient_at<from>(work, y, 0);
        for (int x = 0; x < 2 * columns_at(level); ++x)
            for (int c = 0; c < O; ++c) {
                const Real share = Real(0.25) * row[x / 2 * coarse + c];
                finer[x * fine + c] = adds_to_later(l) ? finer[x * fine + c] + share : share;
            }
    }
}

template <int l>
void forward_widen(Workspace& work) {
    constexpr int from = layers[l].from, to = layers[l].to, level = values[from].level, O = width(outputs_of(l));
    for (int y = 0; y < rows_at(level); ++y)
        for (int i = 0; i < 2; ++i) {
            Real* row = value_at<to>(work, 2 * y + i, 0) + layers[l].part * O;
            for (int j = 0; j < 2; ++j)
                convolve_row<tile_at(level), 1, pixel_of(from), Store::as_it_is>(
                    {value_at<from>(work, y, 0), 0, 1, source_channels(l), channel_tiles(l) * channel_tile(l)},
                    forward_weights<l>(work) + (2 * i + j) * channel_tiles(l) * channel_tile(l) * O, O,
                    part_of<l>(work, bias), {row + j * pixel_of(to), 2 * pixel_of(to)}, tiles_at(level));
            fill_margins(row, columns_at(level - 1), pixel_of(to), O);
        }
}

template <int l>
void backward_widen(Workspace& work) {
    constexpr int from = layers[l].from, to = layers[l].to, level = values[from].level, O = width(outputs_of(l));
    constexpr int columns = columns_at(level), pixel = pixel_of(to), C = pixel_of(from);
    constexpr int square = channel_tiles(l) * channel_tile(l) * O;
    for (int y = 0; y < rows_at(level); ++y)
        for (int k = 0; k < 4; ++k) {
            const Real* fine = gradient_at<to>(work, 2 * y + k / 2, k % 2) + layers[l].part * O;
            for (int x = 0; x < columns; ++x)
                for (int c = 0; c < O; ++c) work.row[x * O + c] = fine[2 * x * pixel + c];
            add_bias_row<O>(work.row, columns, part_of<l>(work, bias_total));
            add_gradient_row<channel_tile(l), 1, C>({value_at<from>(work, y, 0), 0, 1, source_channels(l), 0}, work.row,
                                                    O, columns, channel_tiles(l), weight_totals<l>(work) + k * square);
            const SourceRows source{fine, 0, 1, outputs_of(l), outputs_of(l)};
            const Real* weights = backward_weights<l>(work) + k * outputs_of(l) * C;
            const TargetRow target{gradient_at<from>(work, y, 0), C};
            constexpr int T = tile_at(level);
            if (k == 0 && !adds_to_later(l)) {
                convolve_row<T, 1, 2 * pixel, Store::as_it_is>(source, weights, C, nullptr, target, tiles_at(level));
            } else {
                convolve_row<T, 1, 2 * pixel, Store::added>(source, weights, C, nullptr, target, tiles_at(level));
            }
        }
}

template <int l>
void forward_answer(Workspace& work) {
    constexpr int from = layers[l].from, C = pixel_of(from);
    for (int y = 0; y < H; ++y)
        for (int o = 0; o < num_outputs; ++o) {
            Real* before = work.before[o][y];
            for (int x = 0; x < W; x += register_lanes)
                dots(value_at<from>(work, y, x), C, forward_weights<l>(work) + o * C, C, part_of<l>(work, bias)[o],
                     before + x);
            for (int x = 0; x < W; ++x) work.after[o][y][x] = activate<output_activation>(before[x]);
        }
}

/// The sum of a row: `lanes` interleaved partial sums, which are then added by halves.
inline Real sum_of(const Real* row, int count) {
    Real sums[lanes] = {};
    const int whole_count = count / lanes * lanes;
    for (int first = 0; first < whole_count; first += lanes)
        for (int i = 0; i < lanes; ++i) sums[i] += row[first + i];
    for (int i = 0; i < count - whole_count; ++i) sums[i] += row[whole_count + i];
    for (int half = lanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
    return sums[0];
}

/// The backward pass of the last layer. Its derivatives `delta` are planes, which are 0 in the padding of the data.
template <int l>
void backward_answer(Workspace& work) {
    constexpr int from = layers[l].from, C = pixel_of(from);
    for (int y = 0; y < rows_at(0); ++y) {
        const Real* source = value_at<from>(work, y, 0);
        Real* gradient = gradient_at<from>(work, y, 0);
        for (int v = 0; v < C; v += register_lanes)
            for (int x = 0; x < columns_at(0); ++x) {
                Vector sum{};
                for (int o = 0; o < num_outputs; ++o)
                    sum = fused(spread(work.delta[o][y][x]), load(forward_weights<l>(work) + o * C + v), sum);
                store(gradient + x * C + v, sum);
            }
        for (int o = 0; o < num_outputs && y < H; ++o) {
            const Real* delta = work.delta[o][y];
            part_of<l>(work, bias_total)[o] += sum_of(delta, W);
            for (int v = 0; v < C; v += register_lanes) {
                constexpr int at_once = 4;  // independent sums, which hide the latency of the products
                Vector sum[at_once] = {};
                int x = 0;
                for (; x + at_once <= W; x += at_once)
                    for (int i = 0; i < at_once; ++i)
                        sum[i] = fused(spread(delta[x + i]), load(source + (x + i) * C + v), sum[i]);
                for (; x < W; ++x) sum[0] = fused(spread(delta[x]), load(source + x * C + v), sum[0]);
                Real* total = weight_totals<l>(work) + o * C + v;
                store(total, load(total) + ((sum[0] + sum[1]) + (sum[2] + sum[3])));
            }
        }
    }
}

template <int l = 0>
void forward_layers(Workspace& work, const Pass& pass) {
    if constexpr (layers[l].kind == convolve) forward_convolution<l>(work, pass);
    if constexpr (layers[l].kind == pool) forward_pool<l>(work);
    if constexpr (layers[l].kind == widen) forward_widen<l>(work);
    if constexpr (layers[l].kind == answer) forward_answer<l>(work);
    if constexpr (l + 1 < num_layers) forward_layers<l + 1>(work, pass);
}

template <int l = num_layers - 1>
void backward_layers(Workspace& work) {
    if constexpr (layers[l].kind == convolve) backward_convolution<l>(work);
    if constexpr (layers[l].kind == pool) backward_pool<l>(work);
    if constexpr (layers[l].kind == widen) backward_widen<l>(work);
    if constexpr (layers[l].kind == answer) backward_answer<l>(work);
    if constexpr (l > 0) backward_layers<l - 1>(work);
}

}  // namespace
