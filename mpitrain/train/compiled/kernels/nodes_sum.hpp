// The sum over the ranks of several nodes: the ranks of a node write their rows to shared memory; the first rank of
// each node adds the blocks of its node, and exchanges the sums with the first ranks of the other nodes.
//
//   N nodes      R rows of this node's ranks      B blocks: groups of rows that are added on one node
#pragma once

#include "node_messages.hpp"
#include "node_sum.hpp"

namespace {

/// A sum over several nodes; the same fields in the same order as `KernelNodeExchange` in structs.py.
struct NodeExchange {
    NodeMessages messages;
    SumPlan within, across;           // from this node's R rows to its blocks, and from all B blocks to the total
    const std::int64_t* first_block;  // [N + 1]: each node's first block; blocks are in the order of the nodes
    std::int64_t is_first;            // whether this rank is the first of its node
    std::int64_t doubles;             // whether sums are exchanged by recursive doubling: each node has one block, and
                                      // the 2^m blocks are added in the tree
};

/// Sets total to lower [n + m + 3] + upper [n + m + 3]; total may be one of the two. Both partners execute the same
/// instructions, so that of two NaNs both keep the same one.
void add_halves(const Real* lower, const Real* upper, Real* total) {
    for (int i = 0; i < partial_length; ++i) total[i] = lower[i] + upper[i];
}

constexpr std::int64_t row_bytes = partial_length * static_cast<std::int64_t>(sizeof(Real));

/// Replaces `total` [n + m + 3], this node's sum, with the sum of all nodes by recursive doubling: at distance d, nodes
/// i and i XOR d hold the halves of one subtree. `received` is memory for a row. Returns false after an error.
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

/// Sends this node's `blocks` to all other nodes, and receives theirs, with their checks, into `blocks` [B]. Returns
/// false after an error.
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

/// The part of the first rank of a node: adds the node's `rows` [R] and exchanges the sums. With recursive doubling the
/// total is then in this rank's partials and in row 0 of `blocks`; otherwise all blocks are in `blocks` [B].
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

/// Replaces row 0 of this rank's partials with the sum over all ranks of all nodes. Collective over them. After an MPI
/// error, which is in `messages`, or damage, the ranks that wait for this one stay blocked.
SumResult add_among_nodes(const Step& step, const SharedSum& shared) {
    const NodeExchange& exchange = *shared.exchange;
    SumTimes& times = *shared.times;
    const bool is_alone = shared.num_ranks == 1;
    const auto num_ranks = static_cast<std::uint32_t>(shared.num_ranks);
    const OwnRows own{step.partials};
    // One buffer is enough: a rank writes to it only after a meeting that all ranks reach after reading it.
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
        is_intact = read_span(blocks, 0, own.row(0), whole_row);
    }
    times.waited += waited;
    times.exchanged += ticks_between(met, exchanged);
    times.worked += ticks_between(start + waited, met) + ticks_between(exchanged, ticks());
    times.num_timed = ++times.num_sums;
    return is_intact ? SumResult::done : SumResult::damaged;
}

}  // namespace
