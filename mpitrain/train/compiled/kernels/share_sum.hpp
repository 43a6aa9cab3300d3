// Sums and updates by shares, for many parameters: each rank of a node adds a share of all ranks' rows and updates
// these parameters. The memory holds the R rows, then two rows in which the ranks put their shares of a result.
//
//   n parameters      P ranks of one node      R rows of all ranks
#pragma once

#include "nodes_sum.hpp"
#include "optimizer_updates.hpp"

namespace {

/// The share of rank number `rank` of the node: whole cache lines, about n / P parameters.
Span share_of_rank(const SharedSum& shared, std::int64_t rank) {
    constexpr std::int64_t line = 64 / sizeof(Real), num_lines = (num_parameters() + line - 1) / line;
    const auto start = [&](std::int64_t r) {
        const std::int64_t first = num_lines * r / shared.num_ranks * line;
        return static_cast<int>(first < num_parameters() ? first : num_parameters());
    };
    return {start(rank), start(rank + 1), static_cast<int>(rank)};
}
Span share_of(const SharedSum& shared) { return share_of_rank(shared, shared.rank); }
ParameterRange range_of(Span share) { return {share.first, share.last}; }

/// Whether the ranks update the parameters by shares; clipping needs the whole gradient.
bool updates_by_shares(const Step& step, const SharedSum* shared) {
    return sums_by_shares && shared && !shared->exchange && step.clip_norm <= 0;
}

/// Rows of all ranks: those of this rank in its own memory.
struct RowsOfRanks {
    OwnRows own;
    SharedRows shared;
    std::int64_t first_own, num_own;

    bool is_own(std::int64_t r) const { return r >= first_own && r < first_own + num_own; }
    Real* row(std::int64_t r) const { return is_own(r) ? own.row(r - first_own) : shared.row(r); }
    static void copy(Real* to, const Real* from, int count, Check& check) { SharedRows::copy(to, from, count, check); }
    bool has_check(std::int64_t r, const Check& read, int number) const {
        return is_own(r) || shared.has_check(r, read, number);
    }
};

/// Replaces this rank's share, and all numbers after the gradient, in row 0 of its partials with the sums over all
/// ranks. Collective over the ranks of `shared`.
SumResult add_share(const Step& step, const SharedSum& shared) {
    SumTimes& times = *shared.times;
    const std::uint64_t start = ticks();
    const OwnRows own{step.partials};
    const SharedRows rows{shared.meeting->rows};
    const Span rest{num_parameters(), partial_length, largest_tree_rows};
    for (std::int64_t r = 0; r < shared.num_own_rows; ++r) {
        for (std::int64_t rank = 0; rank < shared.num_ranks; ++rank)
            if (rank != shared.rank) write_span(own.row(r), rows, shared.first_row + r, share_of_rank(shared, rank));
        write_span(own.row(r), rows, shared.first_row + r, rest);
    }
    const std::uint64_t waited =
        meet(*shared.meeting, static_cast<std::uint32_t>(shared.num_ranks), shared.shares_cores != 0, *shared.counts);
    const RowsOfRanks all{own, rows, shared.first_row, shared.num_own_rows};
    bool is_intact = add_by_plan(shared.plan, all, own, share_of(shared));
    is_intact &= add_by_plan(shared.plan, all, own, rest);
    times.waited += waited;
    times.worked += ticks_between(start + waited, ticks());
    times.num_timed = ++times.num_sums;
    return is_intact ? SumResult::done : SumResult::damaged;
}

/// Replaces the other ranks' shares of `numbers` [n] with their values. Returns `damaged` on all ranks if `result`, of
/// what this rank's share is computed from, is that on any of them. If the values themselves are damaged only those who
/// read them know; ranks that wait for them stay blocked until the failing ones end the job. Collective over the ranks.
SumResult gather_shares(const SharedSum& shared, Real* numbers, SumResult result = SumResult::done) {
    SumTimes& times = *shared.times;
    const std::uint64_t start = ticks();
    // Two rows in turn: a slow rank may still read the last result while a fast one already writes the next.
    const std::int64_t row = shared.num_rows + shared.meeting->round.load(std::memory_order_acquire) % 2;
    const SharedRows rows{shared.meeting->rows};
    write_span(numbers, rows, row, share_of(shared), result == SumResult::done);
    const std::uint64_t waited =
        meet(*shared.meeting, static_cast<std::uint32_t>(shared.num_ranks), shared.shares_cores != 0, *shared.counts);
    bool is_intact = result == SumResult::done;
    for (std::int64_t rank = 0; rank < shared.num_ranks; ++rank)
        if (rank != shared.rank) is_intact = is_intact && read_span(rows, row, numbers, share_of_rank(shared, rank));
    times.waited += waited;
    times.worked += ticks_between(start + waited, ticks());
    return is_intact ? SumResult::done : SumResult::damaged;
}

/// Gathers what each rank has updated only in its share besides the parameters: moments and average. Collective.
SumResult gather_state(const Step& step, const SharedSum& shared) {
    SumResult result = SumResult::done;
    for (Real* numbers : {step.first_moment, step.optimizer == 2 ? nullptr : step.second_moment, step.average})
        if (numbers && result == SumResult::done) result = gather_shares(shared, numbers);
    return result;
}

}  // namespace
