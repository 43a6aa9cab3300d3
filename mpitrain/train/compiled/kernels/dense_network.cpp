// The functions that the engine calls: sums over microbatches, updates, whole steps, and losses of held-out samples.
//
//   n parameters      k microbatches      b rows a microbatch
#include "share_sum.hpp"
#include "whole_steps.hpp"

namespace {

/// Replaces row 0 of this rank's partials with the sum over all ranks. Collective.
SumResult add_among_all(const Step& step, const SharedSum& shared) {
    if (shared.exchange) return add_among_nodes(step, shared);
    if (!sums_by_shares) return add_among_ranks(step, shared);
    const SumResult result = add_share(step, shared);
    return gather_shares(shared, step.partials, result);
}

/// Adds the partials of all ranks and updates the state with the sum. Collective.
SumResult add_and_update(const Step& step, const SharedSum* shared, double learning_rate) {
    if (updates_by_shares(step, shared)) {
        const SumResult result = add_share(step, *shared);
        if (result == SumResult::done) update(step, step.partials, learning_rate, range_of(share_of(*shared)));
        return gather_shares(*shared, step.parameters, result);
    }
    const SumResult result = shared ? add_among_all(step, *shared) : SumResult::done;
    if (result == SumResult::done) update(step, step.partials, learning_rate);
    return result;
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
std::int64_t adds_by_shares() { return sums_by_shares; }
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
    std::int64_t taken = 0;
    SumResult result = SumResult::done;
    for (bool goes_on = true; goes_on && taken < num_steps;) {
        write_partials(*step, order + taken * step_stride, stop_flag);
        result = add_and_update(*step, shared, learning_rate);
        if (result != SumResult::done) return static_cast<std::int64_t>(result);
        losses[taken] = step->loss_and_stop[0];
        *step->steps_done = ++taken;
        goes_on = std::isfinite(step->loss_and_stop[0]) && !(step->loss_and_stop[1] > 0);
    }
    if (updates_by_shares(*step, shared)) result = gather_state(*step, *shared);
    return result == SumResult::done ? taken : static_cast<std::int64_t>(result);
}

/// Adds the losses, with the present parameters, and the weights of the first `num_rows` rows to sums [2].
void add_losses(const Step* step, const SampleAddresses* rows, std::int64_t num_rows, double* sums) {
    const IeeeArithmetic here;
    add_losses_of(*step, *rows, num_rows, sums);
}
}
