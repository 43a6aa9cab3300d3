// Addresses of the samples of a step and of their statistics, for dense networks and networks on fields.
//
//   F, O inputs and targets of a sample
#pragma once

#include "arithmetic.hpp"

namespace {

/// Addresses of the samples of one virtual rank, in physical units: inputs [rows][F], targets [rows][O], weights
/// [rows], which are 0 for padding. For fields: inputs [rows][F][H][W], targets and weights [rows][O][H][W].
struct SampleAddresses {
    const Real* inputs;
    const Real* targets;
    const Real* weights;
};

/// Statistics of inputs and targets: input mean [F], input std [F], target mean [O], target std [O]; then the weights
/// of the targets in the loss [O], and their sum [1].
template <int F, int O>
struct StatisticsOf {
    const Real* numbers;
    const Real* input_mean() const { return numbers; }
    const Real* input_std() const { return numbers + F; }
    const Real* target_mean() const { return numbers + 2 * F; }
    const Real* target_std() const { return numbers + 2 * F + O; }
    const Real* target_weights() const { return numbers + 2 * F + 2 * O; }
    Real sum_of_target_weights() const { return numbers[2 * F + 3 * O]; }
};

}  // namespace
