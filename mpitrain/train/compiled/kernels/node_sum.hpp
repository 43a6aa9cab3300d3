// The sum of the partials of all ranks of a node, by a plan, through memory that they share.
//
//   n parameters      P ranks      R rows that they contribute
#pragma once

#include "dense_step.hpp"
#include "shared_rows.hpp"
#include "shared_sum.hpp"

namespace {

/// What this rank's sums among the ranks took so far, in ticks; the fields are those of `KernelSumTimes` in structs.py.
struct SumTimes {
    std::uint64_t waited;               // for later ranks, in all sums
    std::uint64_t worked;               // copying and adding, in those sums of which it was measured
    std::uint64_t num_timed, num_sums;  // how many those are, of how many
    std::uint64_t exchanged;            // among the nodes: work and waiting together, in all sums
};
constexpr std::uint64_t timed_every = 16;  // two more looks at the clock in each step would be one part in a hundred

struct NodeExchange;

/// Which rows are added, in this order, and which then hold results; the fields are those of `KernelSumPlan` in
/// structs.py, in their order.
struct SumPlan {
    const std::int64_t* additions;  // [num_additions][2]: to which row, and which
    const std::int64_t* results;    // [num_results]
    std::int64_t num_rows, num_additions, num_results;
};

/// Where the ranks of one node add up; the fields are those of `KernelSharedSum` in structs.py, in their order.
struct SharedSum {
    Meeting* meeting;
    std::int64_t num_ranks, num_rows;      // P, and R rows of all ranks, at most largest_tree_rows
    std::int64_t first_row, num_own_rows;  // which of the rows are this rank's
    std::int64_t shares_cores;             // whether the ranks outnumber them, see wait_for_end()
    SumTimes* times;
    NodeExchange* exchange;  // among several nodes, see nodes_sum.hpp; null: there is one
    MeetingCounts* counts;
    SumPlan plan;  // from the rows of one node's ranks to the total; of several nodes, see `exchange`
};

/// How a sum over the ranks has ended; what is below 0 goes to the engine.
enum class SumResult : std::int64_t {
    done = 0,
    mpi_failed = -1,
    damaged = -2,  // a row in the node's shared memory is no longer what was written
};

/// rows [num_rows] into results [num_results], which lie elsewhere, by the plan. False where a row is no longer what
/// was written.
template <class From, class To>
bool add_by_plan(const SumPlan& plan, const From& rows, const To& results) {
    constexpr int least = 128, most = 512;  // numbers of a row at once: as many as a cache holds of all rows
    alignas(64) Real levels[largest_tree_rows * least];
    const int fitting = static_cast<int>(largest_tree_rows * least / plan.num_rows) / 16 * 16;
    const int block = fitting < most ? fitting : most;
    const auto level = [&](std::int64_t r) { return levels + r * block; };
    Check read[largest_tree_rows], written[largest_tree_rows];
    for (std::int64_t r = 0; r < plan.num_rows; ++r) read[r] = Check{};
    for (std::int64_t r = 0; r < plan.num_results; ++r) written[r] = Check{};
    for (int first = 0; first < partial_length; first += block) {
        const int count = partial_length - first < block ? partial_length - first : block;
        for (std::int64_t r = 0; r < plan.num_rows; ++r) rows.copy(level(r), rows.row(r) + first, count, read[r]);
        for (std::int64_t a = 0; a < plan.num_additions; ++a) {
            Real* target = level(plan.additions[2 * a]);
            const Real* source = level(plan.additions[2 * a + 1]);
            for (int i = 0; i < count; ++i) target[i] += source[i];
        }
        for (std::int64_t r = 0; r < plan.num_results; ++r)
            results.copy(results.row(r) + first, level(plan.results[r]), count, written[r]);
    }
    bool is_intact = true;
    for (std::int64_t r = 0; r < plan.num_rows; ++r) is_intact &= rows.has_check(r, read[r]);
    for (std::int64_t r = 0; r < plan.num_results; ++r) results.set_check(r, written[r]);
    return is_intact;
}

/// Replaces row 0 of this rank's partials by the sum of all ranks' rows. Collective over the ranks of `shared`.
SumResult add_among_ranks(const Step& step, const SharedSum& shared) {
    SumTimes& times = *shared.times;
    const bool is_timed = times.num_sums++ % timed_every == 0;
    const std::uint64_t start = is_timed ? ticks() : 0;
    const std::uint32_t buffer = shared.meeting->round.load(std::memory_order_acquire) % 2;
    const OwnRows own{step.partials};
    const SharedRows rows = SharedRows{shared.meeting->rows}.from(buffer * shared.num_rows);
    write_rows(own, rows.from(shared.first_row), shared.num_own_rows);
    const std::uint64_t waited =
        meet(*shared.meeting, static_cast<std::uint32_t>(shared.num_ranks), shared.shares_cores != 0, *shared.counts);
    const SumResult result = add_by_plan(shared.plan, rows, own) ? SumResult::done : SumResult::damaged;
    times.waited += waited;
    if (!is_timed) return result;
    times.worked += ticks_between(start + waited, ticks());
    ++times.num_timed;
    return result;
}

}  // namespace
