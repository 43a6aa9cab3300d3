// Matrix products in blocks that keep their sums in registers; the order of each sum does not depend on the blocks.
//
//   M, N rows and columns of a product      k the index that is summed over
#pragma once

#include <type_traits>

#include "arithmetic.hpp"

namespace {

/// The largest number of subtree sums that are held at a time while the leaves of the pairwise tree are added in turn.
constexpr int tree_depth(int leaves) { return leaves > 1 ? 1 + tree_depth(leaves / 2) : 1; }

/// Transposes a square of `register_lanes` rows of one vector each. Each step distributes the even and the odd lanes of
/// two rows to two rows: it rotates the bits of the number (row, lane) by one. After half of the bits, rows are lanes.
template <int rest = register_lanes>
__attribute__((always_inline)) inline void transpose_square(Vector* rows) {
    if constexpr (rest > 1) {
        constexpr auto lane = std::make_index_sequence<register_lanes>();
        constexpr int half = register_lanes / 2;
        Vector dealt[register_lanes];
        for (int r = 0; r < half; ++r) {
            dealt[r] = halves<2, 0>(rows[2 * r], rows[2 * r + 1], lane);
            dealt[r + half] = halves<2, 1>(rows[2 * r], rows[2 * r + 1], lane);
        }
        for (int r = 0; r < register_lanes; ++r) rows[r] = dealt[r];
        transpose_square<rest / 2>(rows);
    }
}

/// to[c][r] = from[r][c] for R x C numbers, both multiples of register_lanes.
inline void transpose_squares(int R, int C, const Real* from, std::ptrdiff_t from_row, Real* to,
                              std::ptrdiff_t to_row) {
    constexpr int side = register_lanes;
    for (int r = 0; r < R; r += side)
        for (int c = 0; c < C; c += side) {
            Vector rows[side];
            for (int i = 0; i < side; ++i) rows[i] = load(from + (r + i) * from_row + c);
            transpose_square(rows);
            for (int i = 0; i < side; ++i) store(to + (c + i) * to_row + r, rows[i]);
        }
}

/// to[i][j] = from[j][i] for J x I numbers; rows of `from` are contiguous, without padding.
template <int J, int I, int stride>
void transpose(const Real* from, Real (*to)[stride]) {
    constexpr int side = register_lanes, whole_J = J / side * side, whole_I = I / side * side;
    transpose_squares(whole_J, whole_I, from, I, to[0], stride);
    for (int j = 0; j < J; ++j)
        for (int i = j < whole_J ? whole_I : 0; i < I; ++i) to[i][j] = from[j * I + i];
}

/// to[j][i] = from[i][j] for I x J numbers; rows of `from` are padded to whole vectors, those of `to` are contiguous,
/// without padding.
template <int I, int J, int stride>
void transpose_back(const Real (*from)[stride], Real* to) {
    constexpr int side = register_lanes;
    for (int i = 0; i < I; i += side)
        for (int j = 0; j < J; j += side) {
            Vector rows[side] = {};
            for (int r = 0; r < side; ++r)
                if (i + r < I) rows[r] = load(from[i + r] + j);
            transpose_square(rows);
            const int count = I - i < side ? I - i : side;
            for (int r = 0; r < side; ++r)
                if (j + r < J)
                    std::memcpy(to + (j + r) * I + i, &rows[r], sizeof(Real) * static_cast<std::size_t>(count));
        }
}

// Blocks of 6 x 2 sums, two vectors and a factor fill the 16 registers of 32 bytes; twelve independent sums hide the
// latency of the fused multiply-adds.
constexpr bool is_six_by_two = row_block == 6;

template <int number>
using Constant = std::integral_constant<int, number>;

/// Calls block(rows, vectors, m, n) for the blocks of `rows` rows from row m on; `rows` and `vectors` are constants.
template <int rows, int most_rows, typename Block>
void for_each_column(int m, int N, const Block& block) {
    // Few rows need more vectors, so that enough independent sums hide the latency of a fused multiply-add.
    constexpr int vectors = is_six_by_two && rows == 3 ? 3 : 2 * rows <= most_rows ? 4 : 2;
    int n = 0;
    for (; n + vectors * register_lanes <= N; n += vectors * register_lanes)
        block(Constant<rows>{}, Constant<vectors>{}, m, n);
    for (; n < N; n += register_lanes) block(Constant<rows>{}, Constant<1>{}, m, n);
}

/// Calls block(rows, vectors, m, n) for blocks that cover all M x N outputs and have sums that fit in registers; `rows`
/// and `vectors` are constants. `known_M` is M if it is known at compile time, otherwise 0.
template <int known_M, int most_rows, typename Block>
void for_each_block(int M, int N, const Block& block) {
    constexpr int rest = known_M % most_rows, half = most_rows / 2;
    int m = 0;
    for (; m + most_rows <= M; m += most_rows) for_each_column<most_rows, most_rows>(m, N, block);
    if constexpr (rest > 0) {
        for_each_column<rest, most_rows>(m, N, block);
    } else if constexpr (is_six_by_two && known_M == 0) {
        switch (M - m) {
            case 5:
                return for_each_column<5, most_rows>(m, N, block);
            case 4:
                return for_each_column<4, most_rows>(m, N, block);
            case 3:
                return for_each_column<3, most_rows>(m, N, block);
            case 2:
                return for_each_column<2, most_rows>(m, N, block);
            case 1:
                return for_each_column<1, most_rows>(m, N, block);
        }
    } else {
        for (; m + half <= M; m += half) for_each_column<half, most_rows>(m, N, block);
        for (; m < M; ++m) for_each_column<1, most_rows>(m, N, block);
    }
}

/// The default of `finish` in `multiply`: stores the sums unchanged.
struct AsTheyAre {
    Vector operator()(Vector sums, int, int) const { return sums; }
};

/// c[m][n] = start[m][n] + sum over k of a(m, k) * b[k][n], for M x N outputs; N a multiple of the lanes.
/// Each sum runs over k in order, with one fused multiply-add for each product.
/// a(m, k) is a[m * a_row + k * a_column]. Rows of `start` are `start_row` numbers apart; if it is null, sums start at
/// 0. The stored vectors are finish(sums, m, n). K and `known_M` are num_k and M if known at compile time, otherwise 0.
template <int K, int known_M = 0, typename Finish = AsTheyAre>
void multiply(int M, int N, int num_k, const Real* a, std::ptrdiff_t a_row, std::ptrdiff_t a_column, const Real* b,
              std::ptrdiff_t b_row, const Real* start, std::ptrdiff_t start_row, Real* c, std::ptrdiff_t c_row,
              const Finish& finish = {}) {
    const int depth = K > 0 ? K : num_k;
    const auto block = [&](auto rows_constant, auto vectors_constant, int m, int n) {
        constexpr int rows = decltype(rows_constant)::value, vectors = decltype(vectors_constant)::value;
        Vector sum[rows][vectors];
        for (int r = 0; r < rows; ++r)
            for (int v = 0; v < vectors; ++v)
                sum[r][v] = start ? load(start + (m + r) * start_row + n + v * register_lanes) : Vector{};
        // Addresses of the block without k: for a single index expression GCC would keep an offset for each row in
        // memory. If this loop were a separate function, its sums would be in memory.
        const Real* left = a + m * a_row;
        const Real* right = b + n;
        for (int k = 0; k < depth; ++k) {
            Vector row[vectors];
            for (int v = 0; v < vectors; ++v) row[v] = load(right + k * b_row + v * register_lanes);
            for (int r = 0; r < rows; ++r) {
                const Vector factor = spread(left[r * a_row + k * a_column]);
                for (int v = 0; v < vectors; ++v) sum[r][v] = fused(factor, row[v], sum[r][v]);
            }
        }
        for (int r = 0; r < rows; ++r)
            for (int v = 0; v < vectors; ++v) {
                const int first = n + v * register_lanes;
                store(c + (m + r) * c_row + first, finish(sum[r][v], m + r, first));
            }
    };
    for_each_block<known_M, row_block>(M, N, block);
}

// A panel of a factor is copied to where the first level cache holds it, and used for all rows of the other factor.
constexpr int panel_columns = 2 * lanes, panel_rows = 256;
using Panel = Real[panel_rows][panel_columns];

/// c = c + a b as in `multiply`, for `count` rows of a panel. The strides are known at compile time: otherwise GCC
/// keeps the addresses of the rows of a in memory.
template <int a_row, int c_row>
void multiply_panel(int M, int N, int count, const Real* a, const Panel& panel, Real* c) {
    multiply<0>(M, N, count, a, a_row, 1, panel[0], panel_columns, c, c_row, c, c_row);
}

/// c = c + a b as in `multiply`, for N up to `panel_columns` columns, in blocks of k: the sums are stored after each
/// block and loaded before the next one. pack(panel, k, count) sets the rows of `panel` to rows k to k + count of b.
template <int K, int a_row, int c_row, typename Pack>
void multiply_by_panels(int M, int N, const Real* a, const Pack& pack, Real* c) {
    alignas(64) Panel panel;
    for (int k = 0; k < K; k += panel_rows) {
        const int count = K - k < panel_rows ? K - k : panel_rows;
        pack(panel, k, count);
        multiply_panel<a_row, c_row>(M, N, count, a + k, panel, c);
    }
}

// With small blocks the CPU can begin a run before the sums of the previous one are complete and stored: with blocks of
// 6 rows instead, a run of 8 takes 10 % longer.
constexpr int run_block = 4;

// In products of many columns, runs are added in straight code for this many at a time, without branches that a CPU
// predicts badly; with 16 registers the sums would be in memory.
constexpr int runs_at_once = register_bytes == 64 ? 4 : 1;

/// Sets sum to the sums of the next `runs` runs, added in the pairwise tree; moves left and right to the run after
/// them.
template <int runs, int rows, int vectors>
__attribute__((always_inline)) inline void sum_of_runs(int run_length, const Real*& left, std::ptrdiff_t a_row,
                                                       const Real*& right, std::ptrdiff_t b_row,
                                                       Vector (&sum)[rows][vectors]) {
    if constexpr (runs > 1) {
        Vector lower[rows][vectors];
        sum_of_runs<runs / 2, rows, vectors>(run_length, left, a_row, right, b_row, lower);
        sum_of_runs<runs / 2, rows, vectors>(run_length, left, a_row, right, b_row, sum);
        for (int r = 0; r < rows; ++r)
            for (int v = 0; v < vectors; ++v) sum[r][v] = lower[r][v] + sum[r][v];
    } else {
        for (int r = 0; r < rows; ++r)
            for (int v = 0; v < vectors; ++v) sum[r][v] = Vector{};
        for (int k = 0; k < run_length; ++k, left += a_row, right += b_row) {
            Vector row[vectors];
            for (int v = 0; v < vectors; ++v) row[v] = load(right + v * register_lanes);
            for (int r = 0; r < rows; ++r) {
                const Vector factor = spread(left[r]);
                for (int v = 0; v < vectors; ++v) sum[r][v] = fused(factor, row[v], sum[r][v]);
            }
        }
    }
}

/// c[m][n] = the sum over k of a[k][m] * b[k][n], for M x N outputs, N a multiple of the lanes. k has `num_runs` runs,
/// a power of two and a multiple of `group`, of `run_length` each. The products of a run are summed in order, as in
/// `multiply` from 0, and the sums of the runs in the pairwise tree. The bits are those of one product per run; the
/// runs' sums stay in registers.
template <int most_runs, int known_M, int most_rows = run_block, int group = 1>
void multiply_in_runs(int M, int N, int num_runs, int run_length, const Real* a, std::ptrdiff_t a_row, const Real* b,
                      std::ptrdiff_t b_row, Real* c, std::ptrdiff_t c_row) {
    const auto block = [&](auto rows_constant, auto vectors_constant, int m, int n) {
        constexpr int rows = decltype(rows_constant)::value, vectors = decltype(vectors_constant)::value;
        Vector held[tree_depth(most_runs)][rows][vectors];  // sums of complete subtrees, to be added to the next one
        int num_held = 0;
        const Real* left = a + m;
        const Real* right = b + n;
        for (int run = 0; run < num_runs / group; ++run, ++num_held) {
            Vector sum[rows][vectors];
            sum_of_runs<group, rows, vectors>(run_length, left, a_row, right, b_row, sum);
            for (int subtree = run; subtree % 2 == 1; subtree /= 2) {
                --num_held;
                for (int r = 0; r < rows; ++r)
                    for (int v = 0; v < vectors; ++v) sum[r][v] = held[num_held][r][v] + sum[r][v];
            }
            const bool is_total = run + 1 == num_runs / group;
            for (int r = 0; r < rows; ++r)
                for (int v = 0; v < vectors; ++v)
                    if (is_total) {
                        store(c + (m + r) * c_row + n + v * register_lanes, sum[r][v]);
                    } else {
                        held[num_held][r][v] = sum[r][v];
                    }
        }
    };
    for_each_block<known_M, most_rows>(M, N, block);
}

/// Calls columns(vectors, n) for N columns, a multiple of the lanes; `vectors` is a constant.
template <typename Columns>
void for_each_sum(int N, const Columns& columns) {
    // Enough independent sums to hide the latency of an addition, as far as they fit in registers.
    constexpr int fewest = lanes / register_lanes, most = fewest == 1 ? 4 : 8;
    int n = 0;
    for (; n + most * register_lanes <= N; n += most * register_lanes) columns(Constant<most>{}, n);
    for (; n < N; n += lanes) columns(Constant<fewest>{}, n);
}

/// Adds to sums[n], or to 0 with `starts`, the sum over k of a[k][n] in order of k, for N columns, a multiple of the
/// lanes.
inline void sum_rows(int N, int num_k, const Real* a, std::ptrdiff_t a_row, bool starts, Real* sums) {
    for_each_sum(N, [&](auto vectors_constant, int n) {
        constexpr int vectors = decltype(vectors_constant)::value;
        Vector sum[vectors];
        for (int v = 0; v < vectors; ++v) sum[v] = starts ? Vector{} : load(sums + n + v * register_lanes);
        for (int k = 0; k < num_k; ++k)
            for (int v = 0; v < vectors; ++v) sum[v] += load(a + k * a_row + n + v * register_lanes);
        for (int v = 0; v < vectors; ++v) store(sums + n + v * register_lanes, sum[v]);
    });
}

/// sums[n] = the sum over k of a[k][n], for N columns, a multiple of the lanes, in the order of `multiply_in_runs`.
template <int most_runs>
void sum_in_runs(int N, int num_runs, int run_length, const Real* a, std::ptrdiff_t a_row, Real* sums) {
    for_each_sum(N, [&](auto vectors_constant, int n) {
        constexpr int vectors = decltype(vectors_constant)::value;
        Vector held[tree_depth(most_runs)][vectors];
        int num_held = 0;
        for (int run = 0; run < num_runs; ++run, ++num_held) {
            Vector sum[vectors] = {};
            for (int k = run * run_length; k < (run + 1) * run_length; ++k)
                for (int v = 0; v < vectors; ++v) sum[v] += load(a + k * a_row + n + v * register_lanes);
            for (int subtree = run; subtree % 2 == 1; subtree /= 2) {
                --num_held;
                for (int v = 0; v < vectors; ++v) sum[v] = held[num_held][v] + sum[v];
            }
            const bool is_total = run + 1 == num_runs;
            for (int v = 0; v < vectors; ++v)
                if (is_total) {
                    store(sums + n + v * register_lanes, sum[v]);
                } else {
                    held[num_held][v] = sum[v];
                }
        }
    });
}

/// sums[r] = start + the sum over i of a[r][i] * b[i], for `register_lanes` rows of `count` numbers, a multiple of the
/// lanes: in order within each lane, then over the lanes by halves.
inline void dots(const Real* a, std::ptrdiff_t a_row, const Real* b, int count, Real start, Real* sums) {
    constexpr int vectors = lanes / register_lanes;
    Vector row[register_lanes];
    for (int r = 0; r < register_lanes; ++r, a += a_row) {
        Vector sum[vectors] = {};
        for (int i = 0; i < count; i += lanes)
            for (int v = 0; v < vectors; ++v)
                sum[v] = fused(load(a + i + v * register_lanes), load(b + i + v * register_lanes), sum[v]);
        for (int half = vectors / 2; half > 0; half /= 2)
            for (int v = 0; v < half; ++v) sum[v] += sum[v + half];
        row[r] = sum[0];
    }
    store(sums, spread(start) + sums_of_lanes(row));
}

}  // namespace
