// Reading of samples into a tile of normalised inputs; losses of its outputs, and their derivatives.
//
//   R rows of a tile      F, O inputs and targets of a sample
#pragma once

#include "dense_layers.hpp"
#include "sample_addresses.hpp"

namespace {

using Statistics = StatisticsOf<sizes[0], sizes[num_layers]>;

/// Stores mean and reciprocal standard deviation of the inputs as vectors padded with zeros beyond F.
void spread_statistics(Workspace& work, const Statistics& statistics) {
    for (int f = 0; f < sizes[0]; ++f) {
        work.input_mean[f] = statistics.input_mean()[f];
        work.input_factor[f] = 1 / statistics.input_std()[f];
    }
}

/// Sets the inputs of R rows of a tile from row `first` on; the padding beyond the F inputs of a row stays zero.
void gather_inputs(Workspace& work, int first, int R, const SampleAddresses& rows, const std::int64_t* order) {
    constexpr int F = sizes[0];
    // Two passes: a vector load directly after the stores of its parts would have to wait for them.
    for (int r = 0; r < R; ++r) std::memcpy(work.after[0][first + r], rows.inputs + order[r] * F, sizeof(Real) * F);
    for (int r = 0; r < R; ++r)
        for (int f = 0; f < width(F); f += register_lanes) {
            Real* x = work.after[0][first + r] + f;
            store(x, (load(x) - load(work.input_mean + f)) * load(work.input_factor + f));
        }
    if constexpr (has_batch_norm)
        for (int r = 0; r < R; ++r) work.row_counts[first + r] = rows.weights[order[r]] > 0 ? 1 : 0;
}

/// Output o of row r of the tile minus the target of row `sample_row` of the samples, both normalised.
Real error_of(const Workspace& work, int r, int o, const SampleAddresses& rows, std::int64_t sample_row,
              const Statistics& statistics) {
    const Real target = rows.targets[sample_row * sizes[num_layers] + o];
    return work.after[num_layers][r][o] - (target - statistics.target_mean()[o]) / statistics.target_std()[o];
}

/// Adds losses and weights of R rows of a tile from row `first` on to the sums, and sets the output layer's delta.
void start_backward(Workspace& work, int first, int R, const SampleAddresses& rows, const std::int64_t* order,
                    const Statistics& statistics, Real& loss_sum, Real& weight_sum) {
    constexpr int O = sizes[num_layers];
    // Local copies stay in registers: the compiler cannot exclude that the stores below change the statistics.
    Real target_weights[O], sum_of_weights = statistics.sum_of_target_weights();
    for (int o = 0; o < O; ++o) target_weights[o] = statistics.target_weights()[o];
    for (int r = 0; r < R; ++r) {
        const Real weight = rows.weights[order[r]];
        weight_sum += weight * sum_of_weights;
        for (int o = 0; o < O; ++o) {
            const int row = first + r;
            const Real y = work.after[num_layers][row][o], error = error_of(work, row, o, rows, order[r], statistics);
            const Real counted = weight * target_weights[o];
            loss_sum += counted * loss_of(error);
            work.delta[(num_layers - 1) % 2][row][o] = without_tiny(
                counted * loss_slope(error) * slope<output_activation>(work.before[num_layers][row][o], y));
        }
    }
}

/// Sets the gradient of one microbatch with the rows `order` [num_rows], and adds its loss and weight to sums [2].
/// `keys` are the keys of its dropout.
void compute_microbatch(Workspace& work, const SampleAddresses& rows, const std::int64_t* order, std::int64_t num_rows,
                        const Statistics& statistics, const std::uint64_t* keys, Real* sums) {
    for (std::int64_t first = 0; first < num_rows; first += tile_rows) {
        const int R = static_cast<int>(num_rows - first < tile_rows ? num_rows - first : tile_rows);
        gather_inputs(work, 0, R, rows, order + first);
        forward_layer<0>(work, R, {true, keys, tile_rows, first});
        start_backward(work, 0, R, rows, order + first, statistics, sums[0], sums[1]);
        backward_layer<num_layers - 1>(work, R, 1, first == 0);
    }
    gather_gradients(work);
}

/// Adds the losses and weights of the first `num_rows` rows to sums [2].
void add_losses_of_rows(Workspace& work, const SampleAddresses& rows, std::int64_t num_rows,
                        const Statistics& statistics, double* sums) {
    std::int64_t order[tile_rows];
    for (std::int64_t first = 0; first < num_rows; first += tile_rows) {
        const int R = static_cast<int>(num_rows - first < tile_rows ? num_rows - first : tile_rows);
        for (int r = 0; r < R; ++r) order[r] = first + r;
        gather_inputs(work, 0, R, rows, order);
        forward_layer<0>(work, R, {false, nullptr, 1, 0});
        for (int r = 0; r < R; ++r)
            for (int o = 0; o < sizes[num_layers]; ++o) {
                const double weight = static_cast<double>(rows.weights[first + r] * statistics.target_weights()[o]);
                sums[0] += weight * static_cast<double>(loss_of(error_of(work, r, o, rows, first + r, statistics)));
                sums[1] += weight;
            }
    }
}

}  // namespace
