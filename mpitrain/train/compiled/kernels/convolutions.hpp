// Convolutions of rows of a field, in tiles that keep their sums in registers. A vector runs over output channels, so
// that the order of each sum depends on neither the tiles nor the width of the registers.
//
//   K width of the kernel      T columns of a tile      C, O channels of source and target, O padded to whole vectors
//
// The number of channel c and column x of a source is source[x * pixel + c * channel]: channels are contiguous or, with
// pixel = 1, in planes. Weights and their gradients are [K rows][C][K columns][O].
#pragma once

#include "activations.hpp"

namespace {

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int num_registers = 32;
#else
constexpr int num_registers = 16;
#endif

template <typename Body, int... i>
__attribute__((always_inline)) inline void call_for_each(const Body& body, std::integer_sequence<int, i...>) {
    (body(std::integral_constant<int, i>{}), ...);
}

/// Calls body(i) for i from 0 to count - 1, each a constant, so that the compiler keeps arrays indexed by it in
/// registers.
template <int count, typename Body>
__attribute__((always_inline)) inline void unrolled(const Body& body) {
    call_for_each(body, std::make_integer_sequence<int, count>());
}

/// The size of the parts if `whole` is divided into the smallest number of equal parts of at most `most`.
constexpr int even_part(int whole, int most) {
    const int parts = (whole + most - 1) / most;
    return (whole + parts - 1) / parts;
}

/// The number of columns of a tile in a row of `columns`: one sum for each register that K weights and a factor leave
/// free.
constexpr int columns_of_tile(int columns, int K) {
    const int free = num_registers - K - 1, most = free > 24 ? 24 : free;
    return even_part(columns, most < 1 ? 1 : most);
}
/// The number of source channels in a tile of the gradient, with K sums each.
constexpr int channels_of_tile(int channels, int K) {
    const int fitting = (num_registers - K - 1) / K, most = fitting > 16 ? 16 : fitting;
    return even_part(channels, most < 1 ? 1 : most);
}

/// What is done with a sum: it is stored, rectified and stored, or added to the target's value.
enum class Store { as_it_is, rectified, added };

/// K rows of a source, `row` numbers apart; `first` is at column -K / 2. The weights have `weight_channels` channels.
struct SourceRows {
    const Real* first;
    std::ptrdiff_t row, channel;
    int channels, weight_channels;
};

/// The target of a row of sums: the address of the first column, and the distance between columns.
struct TargetRow {
    Real* first;
    std::ptrdiff_t pixel;
};

/// Adds to sum[t] the products of row `source` with its K weights, in the order of the channels, then of the columns.
template <int T, int K, int pixel>
__attribute__((always_inline)) inline void add_products(Vector (&sum)[T], const Real* source, std::ptrdiff_t channel,
                                                        int channels, const Real* weights, int O) {
    for (int c = 0; c < channels; ++c, source += channel, weights += K * O) {
        Vector weight[K];
        unrolled<K>([&](auto k) __attribute__((always_inline)) { weight[k] = load(weights + k * O); });
        unrolled<T + K - 1>([&](auto column) __attribute__((always_inline)) {
            const Vector factor = spread(source[column * pixel]);
            unrolled<K>([&](auto k) __attribute__((always_inline)) {
                constexpr int t = decltype(column)::value - decltype(k)::value;
                if constexpr (t >= 0 && t < T) sum[t] = fused(factor, weight[k], sum[t]);
            });
        });
    }
}

/// Computes a row of `num_tiles` tiles of a convolution: bias (0 if null) plus sums over rows, channels and columns.
template <int T, int K, int pixel, Store store_kind>
__attribute__((noinline)) void convolve_row(SourceRows source, const Real* weights, int O, const Real* bias,
                                            TargetRow target, int num_tiles) {
    for (int o = 0; o < O; o += register_lanes)
        for (int tile = 0; tile < num_tiles; ++tile) {
            Vector sum[T];
            const Vector start = bias ? load(bias + o) : Vector{};
            unrolled<T>([&](auto t) __attribute__((always_inline)) { sum[t] = start; });
            const Real* row = source.first + tile * T * pixel;
            const Real* of_row = weights + o;
            for (int k = 0; k < K; ++k, row += source.row, of_row += source.weight_channels * K * O)
                add_products<T, K, pixel>(sum, row, source.channel, source.channels, of_row, O);
            Real* to = target.first + tile * T * target.pixel + o;
            unrolled<T>([&](auto t) __attribute__((always_inline)) {
                Real* place = to + t * target.pixel;
                if constexpr (store_kind == Store::added) {
                    store(place, load(place) + sum[t]);
                } else {
                    store(place, store_kind == Store::rectified ? rectified(sum[t]) : sum[t]);
                }
            });
        }
}

/// Adds to total [C][K][O], the gradient by the weights of `C` channels for one vector of outputs, the sum over the
/// columns of a row, which starts at 0. `delta` [columns + 2 (K - 1)][O] has K - 1 zeros on either side.
template <int C, int K, int pixel>
__attribute__((always_inline)) inline void add_gradient_tile(const Real* source, std::ptrdiff_t channel,
                                                             const Real* delta, int O, int columns, Real* total) {
    Vector sum[K][C];
    unrolled<K>([&](auto k) __attribute__((always_inline)) {
        unrolled<C>([&](auto c) __attribute__((always_inline)) { sum[k][c] = Vector{}; });
    });
    const Real* last = delta + (K - 1) * O;
    for (int column = 0; column < columns + K - 1; ++column, source += pixel, last += O) {
        Vector along[K];
        unrolled<K>([&](auto k) __attribute__((always_inline)) { along[k] = load(last - k * O); });
        unrolled<C>([&](auto c) __attribute__((always_inline)) {
            const Vector factor = spread(source[c * channel]);
            unrolled<K>([&](auto k) __attribute__((always_inline)) { sum[k][c] = fused(factor, along[k], sum[k][c]); });
        });
    }
    unrolled<C>([&](auto c) __attribute__((always_inline)) {
        unrolled<K>([&](auto k) __attribute__((always_inline)) {
            Real* place = total + (c * K + k) * O;
            store(place, load(place) + sum[k][c]);
        });
    });
}

/// Adds the contribution of a row to the gradient in totals [K rows][num_tiles * C channels][K][O].
template <int C, int K, int pixel>
__attribute__((noinline)) void add_gradient_row(SourceRows source, const Real* delta, int O, int columns, int num_tiles,
                                                Real* totals) {
    for (int k = 0; k < K; ++k)
        for (int tile = 0; tile < num_tiles; ++tile)
            for (int o = 0; o < O; o += register_lanes)
                add_gradient_tile<C, K, pixel>(source.first + k * source.row + tile * C * source.channel,
                                               source.channel, delta + o, O, columns,
                                               totals + ((k * num_tiles + tile) * C * K) * O + o);
}

}  // namespace
