// The sum over the ranks of several nodes: the ranks of a node lay their rows into memory that they share; the first of
// them adds what its node has alone, and exchanges the sums with the first ranks of the other nodes.
//
//   N nodes      R rows of this node's ranks      B blocks: rows of one node that are added there
#pragma once

#include "node_messages.hpp"
#include "node_sum.hpp"

namespace {

/// How several nodes add up; the fields are those of `KernelNodeExchange` in structs.py, in their order.
struct NodeExchange {
    NodeMessages messages;
    SumPlan within, across;           // from this node's R rows to its blocks, and from all B blocks to the total
    const std::int64_t* first_block;  // [N + 1]: of each node; the blocks are in the order of their nodes
    std::int64_t is_first;            // whether this rank is its node's first
    std::int64_t doubles;             // whether a block a node, and their tree, let the sums double in each round
};

/// lower [n + m + 3] + upper [n + m + 3] into total, which may be either: the same instructions on both sides, so that
/// of two NaNs both keep the same one.
void add_halves(const Real* lower, const Real* upper, Real* total) {
    for (int i = 0; i < partial_length; ++i) total[i] = lower[i] + upper[i];
}

constexpr std::int64_t row_bytes = partial_length * static_cast<std::int64_t>(sizeof(Real));

/// `total` [n + m + 3], this node's sum, becomes that of all: at distance d, nodes i and i XOR d hold the halves of one
/// subtree. `received` is room for a row. False after an error.
template <class Handle>
bool double_among_nodes(NodeMessages& messages, Real* total, Real* received, bool shares_cores) {
    for (std::int64_t distance = 1; distance < messages.num_nodes; distance *= 2) {
        const std::int64_t partner = messages.node ^ distance;
        Outstanding<Handle> both(messages);
        both.receive(received, row_bytes, partner);
        both.send(total, row_bytes, partner);
        if (!both.wait(shares_cores)) return false;
        messages.node < partner ? add_halves(total, received, total) : add_halves(received, total, total);
    }
    return true;
}

/// Gives this node's `blocks` [B] to all other nodes, and takes theirs, with their checks. False after an error.
template <class Handle>
bool gather_blocks(const NodeExchange& exchange, NodeMessages& messages, const SharedRows& blocks, bool shares_cores) {
    const auto start_of = [&](std::int64_t node) { return blocks.row(exchange.first_block[node]); };
    const auto bytes_of = [&](std::int64_t node) {
        return (exchange.first_block[node + 1] - exchange.first_block[node]) * SharedRows::row_bytes;
    };
    const std::int64_t own = messages.node;
    Outstanding<Handle> all(messages);
    for (std::int64_t k = 1; k < messages.num_nodes; ++k) {
        const std::int64_t other = (own + k) % messages.num_nodes;
        all.receive(start_of(other), bytes_of(other), other);
        all.send(start_of(own), bytes_of(own), other);
    }
    return all.wait(shares_cores);
}

/// What the first rank of a node does: from the node's `rows` [R] to the total, where the sums double, in this rank's
/// partials and in row 0 of `blocks`; else to all rows of `blocks` [B].
template <class Handle, class Rows>
SumResult exchange_sums(const Step& step, const SharedSum& shared, const Rows& rows, const SharedRows& blocks) {
    NodeExchange& exchange = *shared.exchange;
    NodeMessages& messages = exchange.messages;
    const OwnRows own{step.partials};
    if (!exchange.doubles) {
        if (!add_by_plan(exchange.within, rows, blocks.from(exchange.first_block[messages.node])))
            return SumResult::damaged;
        return gather_blocks<Handle>(exchange, messages, blocks, shared.shares_cores) ? SumResult::done
                                                                                      : SumResult::mpi_failed;
    }
    if (shared.num_ranks > 1 && !add_by_plan(exchange.within, rows, own)) return SumResult::damaged;
    if (!double_among_nodes<Handle>(messages, step.partials, blocks.row(1), shared.shares_cores))
        return SumResult::mpi_failed;
    if (shared.num_ranks > 1) write_rows(own, blocks, 1);
    return SumResult::done;
}

template <class Rows>
SumResult exchange_sums(const Step& step, const SharedSum& shared, const Rows& rows, const SharedRows& blocks) {
    return shared.exchange->messages.handle_bytes == sizeof(int) ? exchange_sums<int>(step, shared, rows, blocks)
                                                                 : exchange_sums<void*>(step, shared, rows, blocks);
}

/// Replaces row 0 of this rank's partials by the sum over all ranks of all nodes. Collective over them. After an error
/// of MPI, which is in `messages`, or damage, the ranks that wait for this one wait for ever.
SumResult add_among_nodes(const Step& step, const SharedSum& shared) {
    const NodeExchange& exchange = *shared.exchange;
    SumTimes& times = *shared.times;
    const bool is_alone = shared.num_ranks == 1;
    const auto num_ranks = static_cast<std::uint32_t>(shared.num_ranks);
    const OwnRows own{step.partials};
    // One buffer is enough: whoever writes to it has seen all ranks come to a meeting after they have read it.
    const SharedRows rows{shared.meeting->rows}, blocks = rows.from(shared.num_rows);
    const std::uint64_t start = ticks();
    std::uint64_t waited = 0;
    if (!is_alone) {
        write_rows(own, rows.from(shared.first_row), shared.num_own_rows);
        waited = meet(*shared.meeting, num_ranks, shared.shares_cores, *shared.counts);
    }
    const std::uint64_t met = ticks();
    if (exchange.is_first) {
        const SumResult result =
            is_alone ? exchange_sums(step, shared, own, blocks) : exchange_sums(step, shared, rows, blocks);
        if (result != SumResult::done) return result;
    }
    if (!is_alone) meet(*shared.meeting, num_ranks, shared.shares_cores, *shared.counts);
    const std::uint64_t exchanged = ticks();
    bool is_intact = true;
    if (!exchange.doubles) {
        is_intact = add_by_plan(exchange.across, blocks, own);
    } else if (!exchange.is_first) {
        is_intact = read_row(blocks, own);
    }
    times.waited += waited;
    times.exchanged += ticks_between(met, exchanged);
    times.worked += ticks_between(start + waited, met) + ticks_between(exchanged, ticks());
    times.num_timed = ++times.num_sums;
    return is_intact ? SumResult::done : SumResult::damaged;
}

}  // namespace
