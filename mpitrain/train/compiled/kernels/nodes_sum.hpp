// The sum over the ranks of several nodes: the ranks of a node lay their rows into memory that they share; the first of
// them adds what its node has alone, and exchanges the sums with the first ranks of the other nodes.
//
//   N nodes      R rows of this node's ranks      B blocks: rows of one node that are added there
#pragma once

#include "dense_step.hpp"
#include "node_messages.hpp"

namespace {

/// Which rows are added, in this order, and which then hold results; the fields are those of `KernelSumPlan` in
/// structs.py, in their order.
struct SumPlan {
    const std::int64_t* additions;  // [num_additions][2]: to which row, and which
    const std::int64_t* results;    // [num_results]
    std::int64_t num_rows, num_additions, num_results;
};

/// How several nodes add up; the fields are those of `KernelNodeExchange` in structs.py, in their order.
struct NodeExchange {
    NodeMessages messages;
    SumPlan within, across;           // from this node's R rows to its blocks, and from all B blocks to the total
    const std::int64_t* first_block;  // [N + 1]: of each node; the blocks are in the order of their nodes
    std::int64_t is_first;            // whether this rank is its node's first
    std::int64_t doubles;             // whether a block a node, and their tree, let the sums double in each round
};

/// rows [num_rows][n + m + 3] into results [num_results][n + m + 3], which lie elsewhere, by the plan.
void add_by_plan(const SumPlan& plan, const Real* rows, Real* results) {
    constexpr int block = 128;
    alignas(64) Real level[largest_tree_rows][block];
    for (int first = 0; first < partial_length; first += block) {
        const int count = partial_length - first < block ? partial_length - first : block;
        const std::size_t num_bytes = sizeof(Real) * static_cast<std::size_t>(count);
        for (std::int64_t r = 0; r < plan.num_rows; ++r)
            std::memcpy(level[r], rows + r * partial_length + first, num_bytes);
        for (std::int64_t a = 0; a < plan.num_additions; ++a) {
            Real* target = level[plan.additions[2 * a]];
            const Real* source = level[plan.additions[2 * a + 1]];
            for (int i = 0; i < count; ++i) target[i] += source[i];
        }
        for (std::int64_t r = 0; r < plan.num_results; ++r)
            std::memcpy(results + r * partial_length + first, level[plan.results[r]], num_bytes);
    }
}

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

/// Gives this node's blocks of `blocks` [B][n + m + 3] to all other nodes, and takes theirs. False after an error.
template <class Handle>
bool gather_blocks(const NodeExchange& exchange, NodeMessages& messages, Real* blocks, bool shares_cores) {
    const auto start_of = [&](std::int64_t node) { return blocks + exchange.first_block[node] * partial_length; };
    const auto bytes_of = [&](std::int64_t node) {
        return (exchange.first_block[node + 1] - exchange.first_block[node]) * row_bytes;
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

/// What the first rank of a node does: from the node's `rows` [R][n + m + 3] to the total, where the sums double, in
/// this rank's partials and in row 0 of `blocks`; else to all rows of `blocks` [B][n + m + 3]. False after an error.
template <class Handle>
bool exchange_sums(const Step& step, const SharedSum& shared, const Real* rows, Real* blocks) {
    NodeExchange& exchange = *shared.exchange;
    NodeMessages& messages = exchange.messages;
    if (!exchange.doubles) {
        add_by_plan(exchange.within, rows, blocks + exchange.first_block[messages.node] * partial_length);
        return gather_blocks<Handle>(exchange, messages, blocks, shared.shares_cores);
    }
    if (rows != step.partials) add_by_plan(exchange.within, rows, step.partials);
    if (!double_among_nodes<Handle>(messages, step.partials, blocks + partial_length, shared.shares_cores))
        return false;
    if (shared.num_ranks > 1) std::memcpy(blocks, step.partials, row_bytes);
    return true;
}

/// Replaces row 0 of this rank's partials by the sum over all ranks of all nodes. Collective over them. False after an
/// error of MPI, which is in `messages`: the ranks that wait for this one wait for ever.
bool add_among_nodes(const Step& step, const SharedSum& shared) {
    const NodeExchange& exchange = *shared.exchange;
    SumTimes& times = *shared.times;
    const bool is_alone = shared.num_ranks == 1;
    const auto num_ranks = static_cast<std::uint32_t>(shared.num_ranks);
    // One buffer is enough: whoever writes to it has seen all ranks come to a meeting after they have read it.
    Real* in_memory = reinterpret_cast<Real*>(shared.meeting->rows);
    const Real* rows = is_alone ? step.partials : in_memory;
    Real* blocks = in_memory + shared.num_rows * partial_length;
    const std::uint64_t start = ticks();
    std::uint64_t waited = 0;
    if (!is_alone) {
        std::memcpy(in_memory + shared.first_row * partial_length, step.partials,
                    static_cast<std::size_t>(shared.num_own_rows * row_bytes));
        waited = meet(*shared.meeting, num_ranks, shared.shares_cores);
    }
    const std::uint64_t met = ticks();
    if (exchange.is_first) {
        const bool is_done = exchange.messages.handle_bytes == sizeof(int)
                                 ? exchange_sums<int>(step, shared, rows, blocks)
                                 : exchange_sums<void*>(step, shared, rows, blocks);
        if (!is_done) return false;
    }
    if (!is_alone) meet(*shared.meeting, num_ranks, shared.shares_cores);
    const std::uint64_t exchanged = ticks();
    if (!exchange.doubles) {
        add_by_plan(exchange.across, blocks, step.partials);
    } else if (!exchange.is_first) {
        std::memcpy(step.partials, blocks, row_bytes);
    }
    times.waited += waited;
    times.exchanged += ticks_between(met, exchanged);
    times.worked += ticks_between(start + waited, met) + ticks_between(exchanged, ticks());
    times.num_timed = ++times.num_sums;
    return true;
}

}  // namespace
