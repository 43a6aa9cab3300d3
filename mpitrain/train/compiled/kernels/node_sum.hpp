// The sum of the partials of all ranks of a node through shared memory, in the order of a plan.
//
//   n parameters      P ranks      R rows that they contribute
#pragma once

#include "dense_step.hpp"
#include "shared_rows.hpp"
#include "shared_sum.hpp"

namespace {

/// The times of this rank's sums so far, in ticks; the same fields in the same order as `KernelSumTimes` in structs.py.
struct SumTimes {
    std::uint64_t waited;               // for other ranks, in all sums
    std::uint64_t worked;               // copying and adding, in the sums that were timed
    std::uint64_t num_timed, num_sums;  // the number of sums that were timed, and of all sums
    std::uint64_t exchanged;            // exchange between nodes, with waiting, in all sums
};
constexpr std::uint64_t timed_every = 16;  // reading the clock twice in each sum would take 1% of a step

struct NodeExchange;

/// The additions of rows in order, and the rows that hold the results afterwards; the same fields in the same order as
/// `KernelSumPlan` in structs.py.
struct SumPlan {
    const std::int64_t* additions;  // [num_additions][2]: target row, source row
    const std::int64_t* results;    // [num_results]
    std::int64_t num_rows, num_additions, num_results;
};

/// A sum in one node's shared memory; the same fields in the same order as `KernelSharedSum` in structs.py.
struct SharedSum {
    Meeting* meeting;
    std::int64_t num_ranks, num_rows;      // P, and R rows of all ranks, at most largest_tree_rows
    std::int64_t rank;                     // of this rank among the ranks of the node
    std::int64_t first_row, num_own_rows;  // the rows of this rank
    std::int64_t shares_cores;             // whether there are more ranks than cores, see wait_for_end()
    SumTimes* times;
    NodeExchange* exchange;  // between several nodes, see nodes_sum.hpp; null for one node
    MeetingCounts* counts;
    SumPlan plan;  // from the rows of one node's ranks to the total; not used with several nodes, see `exchange`
};

/// The result of a sum over the ranks; values below 0 are returned to the engine.
enum class SumResult : std::int64_t {
    done = 0,
    mpi_failed = -1,
    damaged = -2,  // a row in the node's shared memory differs from what was written
};

/// Adds a span of rows [num_rows] by the plan into results [num_results], in other memory or in that of the first
/// rows: a block of all rows is read before its results are written. Returns false if a row differs from what was
/// written.
template <class From, class To>
bool add_by_plan(const SumPlan& plan, const From& rows, const To& results, Span span = whole_row) {
    constexpr int least = 128,
                  most = 512;  // numbers of a row in a block, so that the block of all rows fits in a cache
    alignas(64) Real levels[largest_tree_rows * least];
    const int fitting = static_cast<int>(largest_tree_rows * least / plan.num_rows) / 16 * 16;
    const int block = fitting < most ? fitting : most;
    const auto level = [&](std::int64_t r) { return levels + r * block; };
    Check read[largest_tree_rows], written[largest_tree_rows];
    for (std::int64_t r = 0; r < plan.num_rows; ++r) read[r] = Check{};
    for (std::int64_t r = 0; r < plan.num_results; ++r) written[r] = Check{};
    for (int first = span.first; first < span.last; first += block) {
        const int count = span.last - first < block ? span.last - first : block;
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
    for (std::int64_t r = 0; r < plan.num_rows; ++r) is_intact &= rows.has_check(r, read[r], span.check);
    for (std::int64_t r = 0; r < plan.num_results; ++r) results.set_check(r, written[r], span.check);
    return is_intact;
}

/// Replaces row 0 of this rank's partials with the sum of the rows of all ranks. Collective over the ranks of `shared`.
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
