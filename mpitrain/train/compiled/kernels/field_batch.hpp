// Reading of a sample into a network's input; losses of its outputs, and their derivatives.
//
//   F, O inputs and targets of a sample      H, W rows and columns
#pragma once

#include "field_layers.hpp"
#include "sample_addresses.hpp"

namespace {

using Statistics = StatisticsOf<num_inputs, num_outputs>;

constexpr std::int64_t input_size = std::int64_t{num_inputs} * H * W, target_size = std::int64_t{num_outputs} * H * W;

/// Stores mean and reciprocal standard deviation of the inputs.
void spread_statistics(Workspace& work, const Statistics& statistics) {
    for (int f = 0; f < num_inputs; ++f) {
        work.input_mean[f] = statistics.input_mean()[f];
        work.input_factor[f] = 1 / statistics.input_std()[f];
    }
}

/// Sets the input to sample number `sample`, normalised. Padding rows are 0; padding columns are 0, or the columns of
/// the other end if the field is periodic.
void load_input(Workspace& work, const SampleAddresses& samples, std::int64_t sample) {
    for (int f = 0; f < num_inputs; ++f)
        for (int y = 0; y < H; ++y) {
            const Real* from = samples.inputs + sample * input_size + (std::int64_t{f} * H + y) * W;
            Real* row = value_at<0>(work, y, 0) + std::ptrdiff_t{f} * plane_of(0);
            for (int x = 0; x < W; ++x) row[x] = (from[x] - work.input_mean[f]) * work.input_factor[f];
            for (int x = W; x < columns_at(0); ++x) row[x] = is_periodic ? row[x % W] : 0;
            fill_margins(row, columns_at(0), 1, 1);
        }
}

/// Whether any point of a sample has a positive weight.
bool counts(const SampleAddresses& samples, std::int64_t sample) {
    const Real* weights = samples.weights + sample * target_size;
    for (std::int64_t i = 0; i < target_size; ++i)
        if (weights[i] > 0) return true;
    return false;
}

/// Sets errors [W] to output o in row y minus its targets, both normalised.
void errors_of(const Workspace& work, int o, int y, const Real* targets, const Statistics& statistics, Real* errors) {
    const Real mean = statistics.target_mean()[o], std = statistics.target_std()[o];
    for (int x = 0; x < W; ++x) errors[x] = work.after[o][y][x] - (targets[x] - mean) / std;
}

/// Adds the losses and weights of a sample to sums [2], a row at a time, and sets the derivatives of the last layer.
void start_backward(Workspace& work, const SampleAddresses& samples, std::int64_t sample, const Statistics& statistics,
                    Real* sums) {
    Real errors[W], weights[W], losses[W];
    for (int o = 0; o < num_outputs; ++o)
        for (int y = 0; y < H; ++y) {
            const std::int64_t first = sample * target_size + (std::int64_t{o} * H + y) * W;
            errors_of(work, o, y, samples.targets + first, statistics, errors);
            for (int x = 0; x < W; ++x) weights[x] = samples.weights[first + x] * statistics.target_weights()[o];
            for (int x = 0; x < W; ++x) losses[x] = weights[x] * loss_of(errors[x]);
            for (int x = 0; x < W; ++x)
                work.delta[o][y][x] = without_tiny(weights[x] * loss_slope(errors[x]) *
                                                   slope<output_activation>(work.before[o][y][x], work.after[o][y][x]));
            sums[0] += sum_of(losses, W);
            sums[1] += sum_of(weights, W);
        }
}

/// Sets the gradient of one microbatch, with the samples `order` [num_samples] computed one by one, and adds its loss
/// and weight to sums [2]; keys [1] is the key of its dropout.
void compute_microbatch(Workspace& work, const SampleAddresses& samples, const std::int64_t* order,
                        std::int64_t num_samples, const Statistics& statistics, const std::uint64_t* keys, Real* sums) {
    clear_totals(work);
    std::memset(work.moments, 0, sizeof(work.moments));
    for (std::int64_t s = 0; s < num_samples; ++s) {
        if (!counts(samples, order[s])) continue;
        load_input(work, samples, order[s]);
        forward_layers(work, {true, keys[0], s});
        start_backward(work, samples, order[s], statistics, sums);
        backward_layers(work);
    }
    gather_gradients(work);
}

/// Adds the losses and weights of the first `num_samples` samples to sums [2].
void add_losses_of_rows(Workspace& work, const SampleAddresses& samples, std::int64_t num_samples,
                        const Statistics& statistics, double* sums) {
    Real errors[W];
    for (std::int64_t sample = 0; sample < num_samples; ++sample) {
        load_input(work, samples, sample);
        forward_layers(work, {false, 0, 0});
        for (int o = 0; o < num_outputs; ++o)
            for (int y = 0; y < H; ++y) {
                const std::int64_t first = sample * target_size + (std::int64_t{o} * H + y) * W;
                errors_of(work, o, y, samples.targets + first, statistics, errors);
                for (int x = 0; x < W; ++x) {
                    const double weight =
                        static_cast<double>(samples.weights[first + x] * statistics.target_weights()[o]);
                    sums[0] += weight * static_cast<double>(loss_of(errors[x]));
                    sums[1] += weight;
                }
            }
    }
}

}  // namespace
