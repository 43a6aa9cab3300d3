// The data of a training step, and the partial sums of its microbatches.
//
//   n parameters      k microbatches of a rank      b rows a microbatch
#pragma once

#ifndef FIELD_SIZE  // otherwise field_network.cpp has included a network on fields
#include "dense_batch.hpp"
#endif
#include "digest.hpp"

namespace {

/// The keys of dropout's random numbers; the same fields in the same order as `KernelDraws` in structs.py.
struct Draws {
    std::uint64_t epoch_key;
    std::int64_t step_in_epoch, first_microbatch;  // the first one of this rank
};

/// The data of a training step, set up once; the same fields in the same order as `KernelStep` in structs.py.
struct Step {
    Workspace* work;
    Real* parameters;                  // [n]
    const Real* statistics;            // see Statistics
    const SampleAddresses* addresses;  // [k], of the microbatches' samples
    Real* partials;  // [k][n + m + 3]: gradient of the summed weighted loss, m sums of batch norm, loss, weight, stop
                     // flag; the first rows become the sums of the blocks
    double* epoch_sums;     // [k][2]: losses and weights of the epoch so far
    double* loss_and_stop;  // [2]: the batch's mean loss, the number of ranks that request a stop
    Real* first_moment;     // [n]: Adam's m, or the velocity of gradient descent
    Real* second_moment;    // [n]: Adam's v
    float* step_count;
    Real* average;                      // [n + 1]: of the parameters over the steps, then the number of steps; or null
    volatile std::int64_t* steps_done;  // in the call that is running, for a thread that watches it
    Digest* digest;                     // of the parameters at the start of each step; or null
    Draws* draws;                       // of dropout
    Real* running;                      // of batch norm: mean and variance of each hidden layer in turn
    const std::int64_t* block_microbatches;  // [num_blocks]: the number of consecutive microbatches in each block
    std::int64_t microbatch_stride, num_blocks, microbatch_rows;
    std::int64_t optimizer;  // 0 Adam, 1 AdamW, 2 gradient descent
    double clip_norm, beta1, beta2, epsilon, weight_decay, momentum, average_decay;
};

/// Consecutive microbatches: the number of the first, and the keys of their dropout.
struct Microbatches {
    std::int64_t first;
    int count;
    const std::uint64_t* keys;
};

/// Computes the partial sum of one microbatch with the rows `order` [b], and adds its loss and weight to the epoch's.
void write_partial(Workspace& work, const Step& step, Microbatches microbatch, const std::int64_t* order,
                   Real* partial) {
    const Statistics statistics{step.statistics};
    const SampleAddresses& rows = step.addresses[microbatch.first];
    Real sums[2] = {};
    work.gradient = partial;
    compute_microbatch(work, rows, order, step.microbatch_rows, statistics, microbatch.keys, sums);
    for (int i = 0; i < 2; ++i) {
        step.epoch_sums[2 * microbatch.first + i] += static_cast<double>(sums[i]);
        partial[loss_entry + i] = sums[i];
    }
}

#ifdef FIELD_SIZE
constexpr auto write_sum_of_partials = write_partial;  // one at a time, since a field fills the caches
#else
/// Computes the sum in the tree of the partials of several microbatches, which together are one tile. The bits are
/// those of separate partials, which are not written to memory. Their orders are `microbatch_stride` numbers apart.
void write_sum_of_partials(Workspace& work, const Step& step, Microbatches microbatches, const std::int64_t* order,
                           Real* partial) {
    const Statistics statistics{step.statistics};
    const int b = static_cast<int>(step.microbatch_rows), R = microbatches.count * b;
    const SampleAddresses* rows = step.addresses + microbatches.first;
    for (int s = 0; s < microbatches.count; ++s)
        gather_inputs(work, s * b, b, rows[s], order + s * step.microbatch_stride);
    forward_layer<0>(work, R, {true, microbatches.keys, b, 0});
    Real sums[tile_rows][2] = {};
    work.gradient = partial;
    for (int s = 0; s < microbatches.count; ++s) {
        start_backward(work, s * b, b, rows[s], order + s * step.microbatch_stride, statistics, sums[s][0], sums[s][1]);
        for (int i = 0; i < 2; ++i)
            step.epoch_sums[2 * (microbatches.first + s) + i] += static_cast<double>(sums[s][i]);
    }
    backward_layer<num_layers - 1>(work, R, microbatches.count, true);
    gather_gradients(work);
    for (int distance = 1; distance < microbatches.count; distance *= 2)
        for (int s = 0; s < microbatches.count; s += 2 * distance)
            for (int i = 0; i < 2; ++i) sums[s][i] += sums[s + distance][i];
    for (int i = 0; i < 2; ++i) partial[loss_entry + i] = sums[0][i];
}
#endif

/// The number of microbatches of a block that are computed at once: as many as fit in a tile and are a whole subtree of
/// the tree.
int microbatches_at_once(const Step& step, std::int64_t num_microbatches) {
    if (has_norm) return 1;
    int count = 1;
    while (num_microbatches % (2 * count) == 0 && 2 * count * step.microbatch_rows <= tile_rows) count *= 2;
    return count;
}

constexpr int partial_length = loss_entry + extra_entries;
constexpr int largest_tree_rows = 128;  // most partials that a plan can add

void add_partial(Real* partials, std::int64_t to, std::int64_t from) {
    Real* target = partials + to * partial_length;
    const Real* source = partials + from * partial_length;
    for (int i = 0; i < partial_length; ++i) target[i] += source[i];
}

/// Adds partial number s, the last of `num_held` consecutive ones, to those before it as long as it completes a
/// subtree. Returns the number of partials that are left: one if s + 1 is a power of two.
std::int64_t add_in_tree_so_far(Real* partials, std::int64_t s, std::int64_t num_held) {
    for (; s % 2 == 1; s /= 2, --num_held) add_partial(partials, num_held - 2, num_held - 1);
    return num_held;
}

}  // namespace
