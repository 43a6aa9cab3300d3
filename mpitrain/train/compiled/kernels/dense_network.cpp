// The functions that the engine calls: sums over microbatches, updates, whole steps, and losses of held-out samples.
//
//   n parameters      k microbatches      b rows a microbatch
#include "nodes_sum.hpp"
#include "whole_steps.hpp"

namespace {

/// Replaces row 0 of this rank's partials with the sum over all ranks. Collective.
SumResult add_among_all(const Step& step, const SharedSum& shared) {
    return shared.exchange ? add_among_nodes(step, shared) : add_among_ranks(step, shared);
}

}  // namespace

extern "C" {

std::int64_t sizeof_Step() { return sizeof(Step); }
std::int64_t sizeof_Draws() { return sizeof(Draws); }
std::int64_t sizeof_SharedSum() { return sizeof(SharedSum); }
std::int64_t sizeof_SumTimes() { return sizeof(SumTimes); }
std::int64_t sizeof_NodeExchange() { return sizeof(NodeExchange); }
std::uint64_t clock_ticks() { return ticks(); }

std::int64_t workspace_bytes() { return sizeof(Workspace); }

void add_parameters_to_digest(const Step* step) { digest_parameters(*step); }

/// Computes the partials of the k microbatches of a batch and combines them. order [k][b] holds their rows; the orders
/// of the microbatches are `microbatch_stride` numbers apart.
void sum_microbatches(const Step* step, const std::int64_t* order, double stop_flag) {
    const IeeeArithmetic here;
    write_partials(*step, order, stop_flag);
}

/// Replaces row 0 of this rank's partials with the sum over the ranks of `shared`. Collective over them. Returns a
/// `SumResult`.
std::int64_t add_shared(const Step* step, const SharedSum* shared) {
    const IeeeArithmetic here;
    return static_cast<std::int64_t>(add_among_all(*step, *shared));
}

/// Updates the parameters with total [n + m + 3], the sum over all ranks.
void apply_sum(const Step* step, Real* total, double learning_rate) {
    const IeeeArithmetic here;
    update(*step, total, learning_rate);
}

std::int64_t most_shared_rows() { return largest_tree_rows; }
std::int64_t shared_bytes(std::int64_t num_rows) {
    return static_cast<std::int64_t>(sizeof(Meeting)) + num_rows * SharedRows::row_bytes;
}

/// Takes up to `num_steps` steps with orders that are `step_stride` numbers apart, and sets their mean losses. Returns
/// the number of steps; it ends early after a loss that is not finite, and after a stop request of any rank. If a sum
/// over the ranks fails, returns its `SumResult`. `shared` is null for one rank that has all microbatches; otherwise
/// the call is collective over its ranks.
std::int64_t take_steps(const Step* step, const SharedSum* shared, const std::int64_t* order, std::int64_t step_stride,
                        std::int64_t num_steps, double stop_flag, double learning_rate, double* losses) {
    const IeeeArithmetic here;
    for (std::int64_t taken = 0; taken < num_steps;) {
        write_partials(*step, order + taken * step_stride, stop_flag);
        const SumResult result = shared ? add_among_all(*step, *shared) : SumResult::done;
        if (result != SumResult::done) return static_cast<std::int64_t>(result);
        update(*step, step->partials, learning_rate);
        losses[taken] = step->loss_and_stop[0];
        *step->steps_done = ++taken;
        if (!std::isfinite(step->loss_and_stop[0]) || step->loss_and_stop[1] > 0) return taken;
    }
    return num_steps;
}

/// Adds the losses, with the present parameters, and the weights of the first `num_rows` rows to sums [2].
void add_losses(const Step* step, const SampleAddresses* rows, std::int64_t num_rows, double* sums) {
    const IeeeArithmetic here;
    add_losses_of(*step, *rows, num_rows, sums);
}
}
