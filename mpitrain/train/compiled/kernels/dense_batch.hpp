// From samples in memory to a tile of normalised inputs, and from its outputs to losses and their derivatives.
//
//   R rows of a tile      F, O inputs and targets of a sample
#pragma once

#include "dense_layers.hpp"

namespace {

/// Where the rows of one virtual rank lie, in physical units: inputs [rows][F], targets [rows][O], weights [rows], 0
/// for padding.
struct SampleAddresses {
    const Real* inputs;
    const Real* targets;
    const Real* weights;
};

/// What normalises inputs and targets: input mean [F], input std [F], target mean [O], target std [O]; after them how
/// much each target counts in the loss [O], and the sum of that [1].
struct Statistics {
    const Real* numbers;
    const Real* input_mean() const { return numbers; }
    const Real* input_std() const { return numbers + sizes[0]; }
    const Real* target_mean() const { return numbers + 2 * sizes[0]; }
    const Real* target_std() const { return numbers + 2 * sizes[0] + sizes[num_layers]; }
    const Real* target_weights() const { return numbers + 2 * sizes[0] + 2 * sizes[num_layers]; }
    Real sum_of_target_weights() const { return numbers[2 * sizes[0] + 3 * sizes[num_layers]]; }
};

/// Lays out what normalises the inputs, as vectors of which what lies beyond F is zero.
void spread_statistics(Workspace& work, const Statistics& statistics) {
    for (int f = 0; f < sizes[0]; ++f) {
        work.input_mean[f] = statistics.input_mean()[f];
        work.input_factor[f] = 1 / statistics.input_std()[f];
    }
}

/// Sets the inputs of R rows of a tile from row `first` on; what lies beyond a row's F inputs stays zero.
void gather_inputs(Workspace& work, int first, int R, const SampleAddresses& rows, const std::int64_t* order) {
    constexpr int F = sizes[0];
    // In two passes: a vector that is read just after the stores of its parts waits for them.
    for (int r = 0; r < R; ++r) std::memcpy(work.after[0][first + r], rows.inputs + order[r] * F, sizeof(Real) * F);
    for (int r = 0; r < R; ++r)
        for (int f = 0; f < width(F); f += register_lanes) {
            Real* x = work.after[0][first + r] + f;
            store(x, (load(x) - load(work.input_mean + f)) * load(work.input_factor + f));
        }
    if constexpr (has_batch_norm)
        for (int r = 0; r < R; ++r) work.row_counts[first + r] = rows.weights[order[r]] > 0 ? 1 : 0;
}

/// Output o of row r of the tile less its target, which is that of row `sample_row` of the samples, both normalised.
Real error_of(const Workspace& work, int r, int o, const SampleAddresses& rows, std::int64_t sample_row,
              const Statistics& statistics) {
    const Real target = rows.targets[sample_row * sizes[num_layers] + o];
    return work.after[num_layers][r][o] - (target - statistics.target_mean()[o]) / statistics.target_std()[o];
}

/// Adds the losses of R rows of a tile from row `first` on to loss_sum, and sets the output layer's delta.
void start_backward(Workspace& work, int first, int R, const SampleAddresses& rows, const std::int64_t* order,
                    const Statistics& statistics, Real& loss_sum, Real& weight_sum) {
    constexpr int O = sizes[num_layers];
    // Apart, so that they stay in registers: what is written below might change them, as far as a compiler knows.
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

}  // namespace
