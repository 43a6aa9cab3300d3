// Convolutions of 3 x 3 points by Winograd's minimal filtering (Lavin and Gray, 2016): a tile of 2 x 2 points of the
// target takes 16 products for each pair of channels, instead of 36. Along a row
//
//   source d     d0 - d2,  d1 + d2,  d2 - d1,  d3 - d1                               4 points become 4 terms
//   weights g    g0,  (g0 + g2 + g1) / 2,  (g0 + g2 - g1) / 2,  g2                   3 weights become 4 terms
//   target       m0 + m1 + m2,  m1 - m2 + m3                                         4 products m become 2 points
//
// and the same along a column. The products of a term are summed over the channels in order. The gradient by the
// weights is linear in the terms, too, so that it is summed over tiles before it is converted to that of the 9 weights.
//
//   T adjacent tiles of a segment      C, O channels of source and target, padded to whole vectors
//
// Terms are stored as [4 x 4][T][channels], with an additional cache line after each of the 16: otherwise their
// addresses could differ by a power of two.
#pragma once

#include "convolutions.hpp"
#include "products.hpp"

namespace {

constexpr int num_terms = 16, most_tiles_of_segment = 24;

/// The number of tiles in a segment of a row with `columns` columns; the gradient's order of addition depends on it.
constexpr int tiles_of_segment(int columns) { return even_part((columns + 1) / 2, most_tiles_of_segment); }
constexpr int segments_of(int columns) {
    return ((columns + 1) / 2 + tiles_of_segment(columns) - 1) / tiles_of_segment(columns);
}
/// The distance, in numbers, between two terms of a segment in rows with `columns` columns.
constexpr int term_size(int columns, int channels) { return tiles_of_segment(columns) * channels + lanes; }

/// The terms of 4 points of a source, the terms of 2 points of the derivatives by a target, and 2 points of a target
/// from 4 products.
__attribute__((always_inline)) inline void source_terms(const Vector* d, Vector* terms) {
    terms[0] = d[0] - d[2], terms[1] = d[1] + d[2], terms[2] = d[2] - d[1], terms[3] = d[3] - d[1];
}
__attribute__((always_inline)) inline void target_terms(const Vector* points, Vector* terms) {
    terms[0] = points[0], terms[1] = points[0] + points[1], terms[2] = points[0] - points[1], terms[3] = points[1];
}
__attribute__((always_inline)) inline void target_points(const Vector* m, Vector* points) {
    points[0] = (m[0] + m[1]) + m[2], points[1] = (m[1] - m[2]) + m[3];
}

/// The terms of 3 weights, and of 3 x 3 weights. If the weights are rotated by 180 degrees, the first and the last term
/// change places.
inline void weight_terms_of_row(const Real* g, int step, Real* terms, int term_step) {
    const Real outer = g[0] + g[2 * step];
    terms[0] = g[0], terms[3 * term_step] = g[2 * step];
    terms[term_step] = (outer + g[step]) * Real(0.5), terms[2 * term_step] = (outer - g[step]) * Real(0.5);
}
inline void weight_terms(const Real* weights, Real* terms) {
    Real rows[3][4];
    for (int i = 0; i < 3; ++i) weight_terms_of_row(weights + 3 * i, 1, rows[i], 1);
    for (int j = 0; j < 4; ++j) weight_terms_of_row(&rows[0][j], 4, terms + j, 4);
}
/// The term of the original weights that is term number `term` of the rotated weights.
constexpr int turned_term(int term) {
    constexpr int other[] = {3, 1, 2, 0};
    return 4 * other[term / 4] + other[term % 4];
}

/// The derivatives by 3 weights, and by 3 x 3 weights, from the derivatives by their terms.
inline void weights_of_row(const Real* terms, int term_step, Real* g, int step) {
    const Real sum = (terms[term_step] + terms[2 * term_step]) * Real(0.5);
    const Real difference = (terms[term_step] - terms[2 * term_step]) * Real(0.5);
    g[0] = terms[0] + sum, g[step] = difference, g[2 * step] = sum + terms[3 * term_step];
}
inline void weights_of_terms(const Real* terms, Real* weights) {
    Real columns[3][4];
    for (int j = 0; j < 4; ++j) weights_of_row(terms + j, 4, &columns[0][j], 4);
    for (int i = 0; i < 3; ++i) weights_of_row(columns[i], 1, weights + 3 * i, 1);
}

/// Sets the terms [4 x 4][T][C] of T tiles of a source. `rows` are its 4 rows from the column left of the tiles on; the
/// first `readable` columns are read, and zeros are used for the others.
template <int T, int C, int pixel>
__attribute__((noinline)) void expand_source(const Real* const (&rows)[4], int readable, Real* terms) {
    constexpr int size = T * C + lanes;
    for (int c = 0; c < C; c += register_lanes) {
        const auto read = [&](int x, Vector* column) __attribute__((always_inline)) {
            Vector points[4] = {};
            if (x < readable) unrolled<4>([&](auto r) { points[r] = load(rows[r] + x * pixel + c); });
            source_terms(points, column);
        };
        Vector columns[4][4];
        read(0, columns[0]), read(1, columns[1]);
        for (int t = 0; t < T; ++t) {
            read(2 * t + 2, columns[2]), read(2 * t + 3, columns[3]);
            unrolled<4>([&](auto k) __attribute__((always_inline)) {
                const Vector points[4] = {columns[0][k], columns[1][k], columns[2][k], columns[3][k]};
                Vector along[4];
                source_terms(points, along);
                unrolled<4>([&](auto j) __attribute__((always_inline)) {
                    store(terms + (4 * k + j) * size + t * C + c, along[j]);
                });
            });
            unrolled<4>([&](auto k) __attribute__((always_inline)) {
                columns[0][k] = columns[2][k], columns[1][k] = columns[3][k];
            });
        }
    }
}

/// Sets the terms [4 x 4][T][O] of the derivatives by T tiles of a target. Of its 2 rows, the second of which may be
/// null, the first `readable` columns are read, and zeros are used for the others.
template <int T, int O, int pixel>
__attribute__((noinline)) void expand_delta(const Real* const (&rows)[2], int readable, Real* terms) {
    constexpr int size = T * O + lanes;
    for (int t = 0; t < T; ++t)
        for (int o = 0; o < O; o += register_lanes) {
            Vector columns[2][4];
            unrolled<2>([&](auto x) __attribute__((always_inline)) {
                Vector points[2] = {};
                if (2 * t + x < readable) {
                    points[0] = load(rows[0] + (2 * t + x) * pixel + o);
                    if (rows[1]) points[1] = load(rows[1] + (2 * t + x) * pixel + o);
                }
                target_terms(points, columns[x]);
            });
            unrolled<4>([&](auto k) __attribute__((always_inline)) {
                const Vector points[2] = {columns[0][k], columns[1][k]};
                Vector along[4];
                target_terms(points, along);
                unrolled<4>([&](auto j) __attribute__((always_inline)) {
                    store(terms + (4 * k + j) * size + t * O + o, along[j]);
                });
            });
        }
}

/// Computes T tiles of a target from products [4 x 4][T][O] plus a bias (0 if null) and stores them in `rows`; the
/// second row may be null.
template <int T, int O, int pixel, Store store_kind>
__attribute__((noinline)) void collect_target(const Real* products, const Real* bias, Real* const (&rows)[2]) {
    constexpr int size = T * O + lanes;
    for (int t = 0; t < T; ++t)
        for (int o = 0; o < O; o += register_lanes) {
            Vector across[2][4];
            unrolled<4>([&](auto k) __attribute__((always_inline)) {
                Vector along[4], points[2];
                unrolled<4>([&](auto j) __attribute__((always_inline)) {
                    along[j] = load(products + (4 * k + j) * size + t * O + o);
                });
                target_points(along, points);
                across[0][k] = points[0], across[1][k] = points[1];
            });
            const Vector start = bias ? load(bias + o) : Vector{};
            unrolled<2>([&](auto x) __attribute__((always_inline)) {
                Vector points[2];
                target_points(across[x], points);
                unrolled<2>([&](auto y) __attribute__((always_inline)) {
                    if (!rows[y]) return;
                    Real* place = rows[y] + (2 * t + x) * pixel + o;
                    const Vector sum = start + points[y];
                    if constexpr (store_kind == Store::added) {
                        store(place, load(place) + sum);
                    } else {
                        store(place, store_kind == Store::rectified ? rectified(sum) : sum);
                    }
                });
            });
        }
}

/// products [4 x 4][T][O] = terms [4 x 4][T][C] times weights [4 x 4][channels][O], a matrix product for each term.
template <int T, int C, int O, int channels>
__attribute__((noinline)) void multiply_terms(const Real* terms, const Real* weights, Real* products) {
    for (int term = 0; term < num_terms; ++term)
        multiply<channels, T>(T, O, channels, terms + term * (T * C + lanes), C, 1, weights + term * channels * O, O,
                              nullptr, 0, products + term * (T * O + lanes), O);
}

/// Adds to totals [4 x 4][channels][O] the products of a source's terms [4 x 4][T][C] and the terms of the derivatives
/// [4 x 4][T][O], summed over the tiles, starting at 0.
template <int T, int C, int O, int channels>
__attribute__((noinline)) void add_gradient_terms(const Real* terms, const Real* delta, Real* totals) {
    for (int term = 0; term < num_terms; ++term) {
        Real* total = totals + term * channels * O;
        multiply<T, channels>(channels, O, T, terms + term * (T * C + lanes), 1, C, delta + term * (T * O + lanes), O,
                              nullptr, 0, total, O,
                              [&](Vector sum, int c, int o) { return load(total + c * O + o) + sum; });
    }
}

}  // namespace
