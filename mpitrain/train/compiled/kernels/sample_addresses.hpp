// Where a step finds its samples and their statistics; the same for dense networks and for those of fields.
//
//   F, O inputs and targets of a sample
#pragma once

#include "arithmetic.hpp"

namespace {

/// Where the samples of one virtual rank lie, in physical units: inputs [rows][F], targets [rows][O], weights [rows], 0
/// for padding; of fields, each of these is a field [H][W], and so are the weights of each target [rows][O][H][W].
struct SampleAddresses {
    const Real* inputs;
    const Real* targets;
    const Real* weights;
};

/// What normalises inputs and targets: input mean [F], input std [F], target mean [O], target std [O]; after them how
/// much each target counts in the loss [O], and the sum of that [1].
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
