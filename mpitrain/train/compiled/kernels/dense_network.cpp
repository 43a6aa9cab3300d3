// What the engine calls: sums over slices, updates, whole steps, and losses of held-out samples.
//
//   n parameters      k slices      b rows a slice
#include "nodes_sum.hpp"
#include "optimizer_updates.hpp"

namespace {

/// Takes the parameters as they are into the digest, if there is one.
void digest_parameters(const Step& step) {
    if (step.digest) add_to_digest(*step.digest, step.parameters, std::int64_t{num_parameters()} * (sizeof(Real) / 4));
}

/// The k partials of a batch, combined; order [k][b] says which rows, `slice_stride` numbers apart.
void write_partials(const Step& step, const std::int64_t* order, double stop_flag) {
    digest_parameters(step);
    spread_weights(*step.work, step.parameters);
    spread_statistics(*step.work, {step.statistics});
    step.work->running = step.running;
    const std::uint64_t step_key = has_dropout ? key_of(step.draws->epoch_key, step.draws->step_in_epoch) : 0;
    const int at_once = slices_at_once(step);
    std::int64_t num_held = 0;
    for (std::int64_t s = 0; s < step.num_slices; s += at_once) {
        Real* partial = step.partials + num_held * partial_length;
        std::uint64_t keys[tile_rows] = {};
        for (int i = 0; i < at_once && has_dropout; ++i)
            keys[i] = key_of(step_key, step.draws->first_microbatch + s + i);
        const auto write = at_once > 1 ? write_sum_of_partials : write_partial;
        write(*step.work, step, {s, at_once, keys}, order + s * step.slice_stride, partial);
        partial[loss_entry + 2] = static_cast<Real>(stop_flag) * static_cast<Real>(at_once);  // 0 or 1 of each slice
        ++num_held;
        if (step.combination == 1) num_held = add_in_tree_so_far(step, s / at_once, num_held);
    }
    if (step.combination == 1)  // k was no power of two
        for (; num_held > 1; --num_held) add_partial(step.partials, num_held - 2, num_held - 1);
}

/// Replaces row 0 of this rank's partials by the sum over all ranks. Collective. False after an error of MPI.
bool add_among_all(const Step& step, const SharedSum& shared) {
    if (shared.exchange) return add_among_nodes(step, shared);
    add_among_ranks(step, shared);
    return true;
}

void update(const Step& step, Real* total, double learning_rate) {
    average_gradient(step, total);
    if constexpr (has_batch_norm) update_running_statistics<0>(step, total + num_parameters());
    if constexpr (has_dropout) ++step.draws->step_in_epoch;
    if (step.optimizer == 2) {
        descent_step(step, total, learning_rate);
    } else {
        adam_step(step, total, learning_rate);
    }
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

/// Computes the k partials of a batch and combines them; order [k][b] says which rows, `slice_stride` numbers apart.
void sum_slices(const Step* step, const std::int64_t* order, double stop_flag) {
    const IeeeArithmetic here;
    write_partials(*step, order, stop_flag);
}

/// Replaces row 0 of this rank's partials by the sum over the ranks of `shared`. Collective over them. Returns 0, or -1
/// after an error of MPI.
std::int64_t add_shared(const Step* step, const SharedSum* shared) {
    const IeeeArithmetic here;
    return add_among_all(*step, *shared) ? 0 : -1;
}

/// Updates the parameters by total [n + m + 3], the sum over all ranks.
void apply_sum(const Step* step, Real* total, double learning_rate) {
    const IeeeArithmetic here;
    update(*step, total, learning_rate);
}

std::int64_t most_shared_rows() { return largest_tree_rows; }
std::int64_t shared_bytes(std::int64_t num_rows) {
    return static_cast<std::int64_t>(sizeof(Meeting)) + num_rows * row_bytes;
}

/// Takes up to `num_steps` steps, whose orders lie `step_stride` numbers apart, and sets their mean losses. Returns how
/// many: the last is the first whose loss is not finite, or after which a rank asks to stop. After an error of MPI, -1.
/// `shared` is null for one rank that has all slices; else collective over its ranks.
std::int64_t take_steps(const Step* step, const SharedSum* shared, const std::int64_t* order, std::int64_t step_stride,
                        std::int64_t num_steps, double stop_flag, double learning_rate, double* losses) {
    const IeeeArithmetic here;
    for (std::int64_t taken = 0; taken < num_steps;) {
        write_partials(*step, order + taken * step_stride, stop_flag);
        if (shared && !add_among_all(*step, *shared)) return -1;
        update(*step, step->partials, learning_rate);
        losses[taken] = step->loss_and_stop[0];
        *step->steps_done = ++taken;
        if (!std::isfinite(step->loss_and_stop[0]) || step->loss_and_stop[1] > 0) return taken;
    }
    return num_steps;
}

/// Adds the losses and weights of the first `num_rows` rows, by the parameters as they are, to sums [2].
void add_losses(const Step* step, const SampleAddresses* rows, std::int64_t num_rows, double* sums) {
    const IeeeArithmetic here;
    const Statistics statistics{step->statistics};
    Workspace& work = *step->work;
    spread_weights(work, step->parameters);
    spread_statistics(work, statistics);
    work.running = step->running;
    std::int64_t order[tile_rows];
    for (std::int64_t first = 0; first < num_rows; first += tile_rows) {
        const int R = static_cast<int>(num_rows - first < tile_rows ? num_rows - first : tile_rows);
        for (int r = 0; r < R; ++r) order[r] = first + r;
        gather_inputs(work, 0, R, *rows, order);
        forward_layer<0>(work, R, {false, nullptr, 1, 0});
        for (int r = 0; r < R; ++r)
            for (int o = 0; o < sizes[num_layers]; ++o) {
                const double weight = static_cast<double>(rows->weights[first + r] * statistics.target_weights()[o]);
                sums[0] += weight * static_cast<double>(loss_of(error_of(work, r, o, *rows, first + r, statistics)));
                sums[1] += weight;
            }
    }
}
}
