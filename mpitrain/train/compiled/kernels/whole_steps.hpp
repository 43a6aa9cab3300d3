// Whole steps: a rank's partial sums over its microbatches, and the update with the sum over all ranks. Also losses of
// held-out samples.
//
//   n parameters      k microbatches      b rows a microbatch
#pragma once

#include "optimizer_updates.hpp"

namespace {

/// Adds the present parameters to the digest, if there is one.
void digest_parameters(const Step& step) {
    if (step.digest) add_to_digest(*step.digest, step.parameters, std::int64_t{num_parameters()} * (sizeof(Real) / 4));
}

/// A block of consecutive microbatches, and the row where its sum is written; the rows after it hold partial sums
/// while the block is computed.
struct Block {
    std::int64_t first, num_microbatches;
    Real* sum;
};

/// Computes the sum of a block's microbatches in the tree; `order` has the rows of all microbatches. The sum of an
/// empty block is -0 (except for the stop flag), which changes no other sum.
void write_block(const Step& step, const Block& block, const std::int64_t* order, std::uint64_t step_key, Real stop) {
    if (block.num_microbatches == 0) {
        for (int i = 0; i < partial_length; ++i) block.sum[i] = static_cast<Real>(-0.0);
        if (stop > 0) block.sum[loss_entry + 2] = stop;
    }
    const int at_once = microbatches_at_once(step, block.num_microbatches);
    std::int64_t num_held = 0;
    for (std::int64_t s = 0; s < block.num_microbatches; s += at_once) {
        Real* partial = block.sum + num_held * partial_length;
        const std::int64_t microbatch = block.first + s;
        std::uint64_t keys[tile_rows] = {};
        for (int i = 0; i < at_once && has_dropout; ++i)
            keys[i] = key_of(step_key, step.draws->first_microbatch + microbatch + i);
        const auto write = at_once > 1 ? write_sum_of_partials : write_partial;
        write(*step.work, step, {microbatch, at_once, keys}, order + microbatch * step.microbatch_stride, partial);
        partial[loss_entry + 2] = stop * static_cast<Real>(at_once);  // 0 or 1 for each microbatch
        num_held = add_in_tree_so_far(block.sum, s / at_once, num_held + 1);
    }
    for (; num_held > 1; --num_held) add_partial(block.sum, num_held - 2, num_held - 1);  // not a power of two
}

/// Computes the sums of a batch's blocks. order [k][b] holds the rows of the microbatches, `microbatch_stride` numbers
/// apart.
void write_partials(const Step& step, const std::int64_t* order, double stop_flag) {
    digest_parameters(step);
    spread_weights(*step.work, step.parameters);
    spread_statistics(*step.work, {step.statistics});
    step.work->running = step.running;
    const std::uint64_t step_key = has_dropout ? key_of(step.draws->epoch_key, step.draws->step_in_epoch) : 0;
    std::int64_t first = 0;
    for (std::int64_t b = 0; b < step.num_blocks; first += step.block_microbatches[b++])
        write_block(step, {first, step.block_microbatches[b], step.partials + b * partial_length}, order, step_key,
                    static_cast<Real>(stop_flag));
}

/// Updates the state, of the parameters only those in `range`, with total [n + m + 3], the sum over all ranks.
void update(const Step& step, Real* total, double learning_rate, ParameterRange range = all_parameters) {
    const Real divisor = divisor_of_gradient(step, total);
    if constexpr (has_batch_norm) update_running_statistics(step, total + num_parameters());
    if constexpr (has_dropout) ++step.draws->step_in_epoch;
    with_division_by(divisor, [&](const auto& divided) {
        if (step.optimizer == 2) {
            descent_step(step, total, divided, learning_rate, range);
        } else {
            adam_step(step, total, divided, learning_rate, range);
        }
    });
    if (step.average != nullptr) average_parameters(step, range);
}

/// Adds the losses, with the present parameters, and the weights of the first `num_rows` rows to sums [2].
void add_losses_of(const Step& step, const SampleAddresses& rows, std::int64_t num_rows, double* sums) {
    const Statistics statistics{step.statistics};
    Workspace& work = *step.work;
    spread_weights(work, step.parameters);
    spread_statistics(work, statistics);
    work.running = step.running;
    add_losses_of_rows(work, rows, num_rows, statistics, sums);
}

}  // namespace
