// What a training step knows, the partial sums of its slices, and their sum over the ranks of a node.
//
//   n parameters      k slices of a rank      b rows a slice      P ranks      R rows that they contribute
#pragma once

#include "dense_batch.hpp"
#include "digest.hpp"
#include "shared_sum.hpp"

namespace {

/// Of which numbers dropout draws; the fields are those of `KernelDraws` in structs.py, in their order.
struct Draws {
    std::uint64_t epoch_key;
    std::int64_t step_in_epoch, first_microbatch;  // the first one of this rank
};

/// What a training step needs, set up once; the fields are those of `KernelStep` in structs.py, in their order.
struct Step {
    Workspace* work;
    Real* parameters;                  // [n]
    const Real* statistics;            // see Statistics
    const SampleAddresses* addresses;  // [k], of the slices' samples
    Real* partials;  // [k][n + m + 3]: gradient of the summed weighted loss, m sums of batch norm, loss, weight, stop
                     // flag
    double* epoch_sums;     // [k][2]: losses and weights of the epoch so far
    double* loss_and_stop;  // [2]: the batch's mean loss, the number of ranks that ask to stop
    Real* first_moment;     // [n]: Adam's m, or the velocity of gradient descent
    Real* second_moment;    // [n]: Adam's v
    float* step_count;
    volatile std::int64_t* steps_done;  // of the call that is running, for a thread that watches
    Digest* digest;                     // of the parameters that each step finds; null: none is asked for
    Draws* draws;                       // of dropout
    Real* running;                      // of batch norm: mean and variance of each hidden layer, one after the other
    std::int64_t slice_stride, num_slices, slice_rows;
    std::int64_t combination;  // of the k partials: 0 none, 1 into row 0 in the pairwise tree
    std::int64_t optimizer;    // 0 Adam, 1 AdamW, 2 gradient descent
    double clip_norm, beta1, beta2, epsilon, weight_decay, momentum;
};

/// Slices that follow one another: the number of the first, and the keys of their dropout.
struct Slices {
    std::int64_t first;
    int count;
    const std::uint64_t* keys;
};

/// The partial of one slice, whose b rows are `order` [b]; adds its loss and weight to the epoch's.
void write_partial(Workspace& work, const Step& step, Slices slice, const std::int64_t* order, Real* partial) {
    const Statistics statistics{step.statistics};
    const SampleAddresses& rows = step.addresses[slice.first];
    Real sums[2] = {};
    work.gradient = partial;
    for (std::int64_t first = 0; first < step.slice_rows; first += tile_rows) {
        const int R = static_cast<int>(step.slice_rows - first < tile_rows ? step.slice_rows - first : tile_rows);
        gather_inputs(work, 0, R, rows, order + first);
        forward_layer<0>(work, R, {true, slice.keys, tile_rows, first});
        start_backward(work, 0, R, rows, order + first, statistics, sums[0], sums[1]);
        backward_layer<num_layers - 1>(work, R, 1, first == 0);
    }
    gather_gradients(work);
    for (int i = 0; i < 2; ++i) {
        step.epoch_sums[2 * slice.first + i] += static_cast<double>(sums[i]);
        partial[loss_entry + i] = sums[i];
    }
}

/// The sum of the partials of several slices in the tree, all of them one tile: the bits of one partial after the
/// other, of which none goes through memory. Their orders lie `slice_stride` numbers apart.
void write_sum_of_partials(Workspace& work, const Step& step, Slices slices, const std::int64_t* order, Real* partial) {
    const Statistics statistics{step.statistics};
    const int b = static_cast<int>(step.slice_rows), R = slices.count * b;
    const SampleAddresses* rows = step.addresses + slices.first;
    for (int s = 0; s < slices.count; ++s) gather_inputs(work, s * b, b, rows[s], order + s * step.slice_stride);
    forward_layer<0>(work, R, {true, slices.keys, b, 0});
    Real sums[tile_rows][2] = {};
    work.gradient = partial;
    for (int s = 0; s < slices.count; ++s) {
        start_backward(work, s * b, b, rows[s], order + s * step.slice_stride, statistics, sums[s][0], sums[s][1]);
        for (int i = 0; i < 2; ++i) step.epoch_sums[2 * (slices.first + s) + i] += static_cast<double>(sums[s][i]);
    }
    backward_layer<num_layers - 1>(work, R, slices.count, true);
    gather_gradients(work);
    for (int distance = 1; distance < slices.count; distance *= 2)
        for (int s = 0; s < slices.count; s += 2 * distance)
            for (int i = 0; i < 2; ++i) sums[s][i] += sums[s + distance][i];
    for (int i = 0; i < 2; ++i) partial[loss_entry + i] = sums[0][i];
}

/// How many slices are computed at once: as many as a tile holds, of a number that makes whole subtrees of the tree.
int slices_at_once(const Step& step) {
    if (has_norm || step.combination != 1) return 1;
    int count = 1;
    while (step.num_slices % (2 * count) == 0 && 2 * count * step.slice_rows <= tile_rows) count *= 2;
    return count;
}

constexpr int partial_length = loss_entry + extra_entries;

void add_partial(Real* partials, std::int64_t to, std::int64_t from) {
    Real* target = partials + to * partial_length;
    const Real* source = partials + from * partial_length;
    for (int i = 0; i < partial_length; ++i) target[i] += source[i];
}

/// Adds partial number s, the last one of `num_held` that follow one another, to those before it as far as its
/// subtree is complete; returns how many are left: one, after k partials, if k is a power of two.
std::int64_t add_in_tree_so_far(const Step& step, std::int64_t s, std::int64_t num_held) {
    for (; s % 2 == 1; s /= 2, --num_held) add_partial(step.partials, num_held - 2, num_held - 1);
    return num_held;
}

/// What this rank's sums among the ranks took so far, in ticks; the fields are those of `KernelSumTimes` in structs.py.
struct SumTimes {
    std::uint64_t waited;               // for later ranks, in all sums
    std::uint64_t worked;               // copying and adding, in those sums of which it was measured
    std::uint64_t num_timed, num_sums;  // how many those are, of how many
    std::uint64_t exchanged;            // among the nodes: work and waiting together, in all sums
};
constexpr std::uint64_t timed_every = 16;  // two more looks at the clock in each step would be one part in a hundred

struct NodeExchange;

/// Where the ranks of one node add up; the fields are those of `KernelSharedSum` in structs.py, in their order.
struct SharedSum {
    Meeting* meeting;
    std::int64_t num_ranks, num_rows;      // P, and R rows of all ranks, at most largest_tree_rows
    std::int64_t first_row, num_own_rows;  // which of the rows are this rank's
    std::int64_t shares_cores;             // whether the ranks outnumber them, see wait_for_end()
    SumTimes* times;
    NodeExchange* exchange;  // among several nodes, see nodes_sum.hpp; null: there is one
};

constexpr int largest_tree_rows = 64;

/// rows [R][n + m + 3], which others read too, into total [n + 3], in the tree ((0,1),(2,3)),...; where a level has an
/// odd number of rows, the last one waits for the next level.
void add_in_tree(const Real* rows, std::int64_t num_rows, Real* total) {
    constexpr int block = 128;
    alignas(64) Real level[largest_tree_rows][block];
    for (int first = 0; first < partial_length; first += block) {
        const int count = partial_length - first < block ? partial_length - first : block;
        for (std::int64_t r = 0; r < num_rows; ++r)
            std::memcpy(level[r], rows + r * partial_length + first, sizeof(Real) * static_cast<std::size_t>(count));
        for (std::int64_t distance = 1; distance < num_rows; distance *= 2)
            for (std::int64_t r = 0; r + distance < num_rows; r += 2 * distance)
                for (int i = 0; i < count; ++i) level[r][i] += level[r + distance][i];
        std::memcpy(total + first, level[0], sizeof(Real) * static_cast<std::size_t>(count));
    }
}

/// Replaces row 0 of this rank's partials by the sum over all ranks. Collective over the ranks of `shared`.
void add_among_ranks(const Step& step, const SharedSum& shared) {
    SumTimes& times = *shared.times;
    const bool is_timed = times.num_sums++ % timed_every == 0;
    const std::uint64_t start = is_timed ? ticks() : 0;
    const std::uint32_t buffer = shared.meeting->round.load(std::memory_order_acquire) % 2;
    Real* rows = reinterpret_cast<Real*>(shared.meeting->rows) + buffer * shared.num_rows * partial_length;
    std::memcpy(rows + shared.first_row * partial_length, step.partials,
                sizeof(Real) * static_cast<std::size_t>(shared.num_own_rows * partial_length));
    const std::uint64_t waited =
        meet(*shared.meeting, static_cast<std::uint32_t>(shared.num_ranks), shared.shares_cores != 0);
    add_in_tree(rows, shared.num_rows, step.partials);
    times.waited += waited;
    if (!is_timed) return;
    times.worked += ticks_between(start + waited, ticks());
    ++times.num_timed;
}

}  // namespace
