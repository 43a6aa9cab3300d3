// Training loop: epochs of steps over frozen samples, the same as in mpitrain/train/trainer.py.
//
//   V microbatches of a batch      k microbatches of this rank      b rows of a microbatch      n parameters
#pragma once

namespace {

constexpr std::size_t longest_metric = 400;
constexpr std::int64_t num_epochs = sizeof learning_rates / sizeof learning_rates[0];

/// Progress of the training; plain numbers that a restart file stores unchanged.
struct Progress {
    std::int64_t epoch, step_in_epoch, global_step, best_epoch, epochs_without_improvement, stopped_early;
    double train_loss, validation_loss, best_loss;  // of the last epoch, if any; best_loss is valid if best_epoch > 0
};

struct Sums {
    double loss, weight;
};

Sums added(const Sums& lower, const Sums& upper) { return {lower.loss + upper.loss, lower.weight + upper.weight}; }

/// Memory for a `Workspace`, aligned for loads of whole vectors.
class AlignedWorkspace {
  public:
    AlignedWorkspace() : memory_(std::calloc(1, sizeof(Workspace) + 64), std::free) {
        if (!memory_) throw std::bad_alloc();
    }
    Workspace* get() {
        const auto address = reinterpret_cast<std::uintptr_t>(memory_.get());
        return reinterpret_cast<Workspace*>((address + 63) / 64 * 64);
    }

  private:
    std::unique_ptr<void, decltype(&std::free)> memory_;  // zeros; pages that are never written take no memory
};

/// Sums rows [num_rows][partial_length] into total [partial_length], in the tree ((0,1),(2,3)),...; `rows` is not
/// changed. If a level has an odd number of rows, the last one moves to the next level.
void add_in_tree(const Real* rows, std::int64_t num_rows, Real* total) {
    constexpr int block = 128;
    alignas(64) Real level[largest_tree_rows][block];
    for (int first = 0; first < partial_length; first += block) {
        const int count = partial_length - first < block ? partial_length - first : block;
        for (std::int64_t r = 0; r < num_rows; ++r)
            std::memcpy(level[r], rows + r * partial_length + first, sizeof(Real) * static_cast<std::size_t>(count));
        for (std::int64_t distance = 1; distance < num_rows; distance *= 2)
            for (std::int64_t r = 0; r + distance < num_rows; r += 2 * distance)
                for (int i = 0; i < count; ++i) level[r][i] += level[r + distance][i];
        std::memcpy(total + first, level[0], sizeof(Real) * static_cast<std::size_t>(count));
    }
}

class Training {
  public:
    Training(FrozenSamples data, MPI_Comm comm) : data(std::move(data)), comm_(comm) {
        int rank = 0, num_ranks = 0;
        MPI_Comm_rank(comm, &rank);
        MPI_Comm_size(comm, &num_ranks);
        for (int r = 0; r < num_ranks; ++r) {
            const int first = first_of(r, num_ranks), count = first_of(r + 1, num_ranks) - first;
            firsts_.push_back(first);
            counts_.push_back(count);
        }
        first_ = firsts_[static_cast<std::size_t>(rank)];
        count_ = counts_[static_cast<std::size_t>(rank)];
        is_even_ = num_microbatches % num_ranks == 0;
        const float* weights = reinterpret_cast<const float*>(first_weights);
        parameters.assign(weights, weights + num_parameters());
        first_moment.assign(num_parameters(), 0);
        second_moment.assign(num_parameters(), 0);
        sums.assign(num_microbatches, {0, 0});
        partials_.assign(static_cast<std::size_t>(std::max(count_, 1) * partial_length), 0);
        rows_.assign(num_microbatches * partial_length, 0);
        best.reserve(parameters.size());
        gathered_.assign(num_microbatches, {0, 0});
        sent_.reserve(counts_.size());
        places_.reserve(counts_.size());
        addresses_.assign(static_cast<std::size_t>(std::max(count_, 1)), this->data.training.from(0));
        describe_step();
    }
    Training(const Training&) = delete;

    bool is_finished() const { return progress.epoch == num_epochs || progress.stopped_early; }

    /// Takes one step, and finishes the epoch after its last step; returns the loss of the step. Collective.
    double take_step() {
        // The memory of an epoch is allocated here, on all ranks or on none; the code below allocates nothing.
        if (laid_out_epoch_ != progress.epoch) together(comm_, [&] { start_epoch(); });
        laid_out_epoch_ = progress.epoch;
        const IeeeArithmetic here;
        draws_.step_in_epoch = progress.step_in_epoch;
        if (count_ > 0)
            write_partials(step_, order_.data() + progress.step_in_epoch * count_ * data.microbatch_rows, 0);
        add_among_ranks();
        update(step_, partials_.data(), learning_rates[progress.epoch]);
        const double loss = loss_and_stop_[0];
        if (!std::isfinite(loss)) return loss;
        ++progress.global_step;
        if (++progress.step_in_epoch == data.steps_per_epoch) finish_epoch();
        return loss;
    }

    /// Computes the outputs y [count][O] for inputs x [count][F], in physical units, with the current weights. Local.
    void forward(std::int64_t count, const Real* x, Real* y) {
        const IeeeArithmetic here;
        const Statistics numbers{data.statistics};
        Workspace& work = *step_.work;
        spread_weights(work, parameters.data());
        spread_statistics(work, numbers);
        std::int64_t order[tile_rows];
        for (std::int64_t first = 0; first < count; first += tile_rows) {
            const int R = static_cast<int>(std::min<std::int64_t>(count - first, tile_rows));
            for (int r = 0; r < R; ++r) order[r] = r;
            gather_inputs(work, 0, R, {x + first * num_inputs, nullptr, ones_.data()}, order);
            forward_layer<0>(work, R, {false, nullptr, 1, 0});
            for (int r = 0; r < R; ++r)
                for (int o = 0; o < num_targets; ++o)
                    y[(first + r) * num_targets + o] =
                        work.after[num_layers][r][o] * numbers.target_std()[o] + numbers.target_mean()[o];
        }
    }

    /// Returns the loss sums of the epoch so far for all V microbatches, valid until the next call. Collective.
    std::vector<Sums>& all_sums() { return gathered(sums.data() + first_); }

    /// Returns the weights that a run exports.
    const std::vector<Real>& exported() const { return exports_best && !best.empty() ? best : parameters; }

    FrozenSamples data;
    Progress progress{};
    std::vector<Real> parameters, first_moment, second_moment, best;
    float step_count = 0;
    std::vector<Sums> sums;  // [V]; this rank updates its own microbatches
    std::string metrics;     // a JSON record for each epoch

  private:
    static int first_of(int rank, int num_ranks) {
        return static_cast<int>(std::int64_t{rank} * num_microbatches / num_ranks);
    }

    void describe_step() {
        step_.work = workspace_.get();
        step_.parameters = parameters.data();
        step_.statistics = data.statistics;
        step_.addresses = addresses_.data();
        step_.partials = partials_.data();
        step_.epoch_sums = &sums[static_cast<std::size_t>(first_) % sums.size()].loss;
        step_.loss_and_stop = loss_and_stop_;
        step_.first_moment = first_moment.data();
        step_.second_moment = second_moment.data();
        step_.step_count = &step_count;
        step_.draws = &draws_;
        step_.microbatch_stride = step_.microbatch_rows = data.microbatch_rows;
        block_microbatches_.assign(is_even_ ? 1 : static_cast<std::size_t>(count_), is_even_ ? count_ : 1);
        step_.block_microbatches = block_microbatches_.data();
        step_.num_blocks = static_cast<std::int64_t>(block_microbatches_.size());
        step_.optimizer = optimizer_kind;
        step_.clip_norm = clip_norm, step_.beta1 = beta1, step_.beta2 = beta2, step_.epsilon = epsilon;
        step_.weight_decay = weight_decay, step_.momentum = momentum;
        draws_.first_microbatch = first_;
        ones_.assign(tile_rows, 1);
    }

    void start_epoch() {
        epoch_started_s_ = MPI_Wtime();
        if (metrics.capacity() < metrics.size() + longest_metric) metrics.reserve(2 * metrics.size() + longest_metric);
        const std::int64_t b = data.microbatch_rows, steps = data.steps_per_epoch;
        order_.assign(static_cast<std::size_t>(steps * count_ * b), data.num_training);
        for (std::int64_t s = 0; s < count_; ++s) {
            const std::int64_t v = first_ + s, count = share_of(data.num_training, v);
            const bool is_drawn = shuffles && steps > 1;
            const std::vector<std::int64_t> order =
                is_drawn ? order_of(progress.epoch, v, count) : std::vector<std::int64_t>();
            for (std::int64_t i = 0; i < count; ++i) {
                const std::int64_t number = is_drawn ? order[static_cast<std::size_t>(i)] : i;
                const Place place = place_of(i, v, b);
                order_[static_cast<std::size_t>((place.step * count_ + s) * b + place.row)] =
                    v + number * num_microbatches;
            }
        }
        if (progress.step_in_epoch == 0) sums.assign(sums.size(), {0, 0});
        draws_.epoch_key =
            word_at(state_of({run_seed, stream_of_steps, static_cast<std::uint64_t>(progress.epoch)}), 0);
    }

    /// Replaces row 0 of the partial sums by the sum over all ranks, in the tree over the V microbatches. Collective.
    void add_among_ranks() {
        const int num_ranks = static_cast<int>(counts_.size());
        if (num_ranks == 1) return;
        sent_.clear(), places_.clear();
        int num_rows = 0;
        for (const int count : counts_) {
            const int sent = is_even_ ? 1 : count;
            sent_.push_back(sent * partial_length);
            places_.push_back(num_rows * partial_length);
            num_rows += sent;
        }
        const MPI_Datatype type = sizeof(Real) == sizeof(float) ? MPI_FLOAT : MPI_DOUBLE;
        const int num_sent = (is_even_ ? 1 : count_) * partial_length;
        MPI_Allgatherv(partials_.data(), num_sent, type, rows_.data(), sent_.data(), places_.data(), type, comm_);
        add_in_tree(rows_.data(), num_rows, partials_.data());
    }

    /// Returns `own` [k] of all ranks, in the order of the microbatches. Collective.
    std::vector<Sums>& gathered(const Sums* own) {
        sent_.clear(), places_.clear();
        for (std::size_t r = 0; r < counts_.size(); ++r)
            sent_.push_back(2 * counts_[r]), places_.push_back(2 * firsts_[r]);
        MPI_Allgatherv(own, 2 * count_, MPI_DOUBLE, gathered_.data(), sent_.data(), places_.data(), MPI_DOUBLE, comm_);
        return gathered_;
    }

    void finish_epoch() {
        const Sums trained = combined_in_tree(all_sums(), added);
        progress.train_loss = trained.weight != 0 ? trained.loss / trained.weight : 0;
        ++progress.epoch;
        progress.step_in_epoch = 0;
        if (data.num_held_out > 0) {
            progress.validation_loss = validation_loss();
            if (progress.best_epoch == 0 || progress.validation_loss < progress.best_loss) {
                progress.best_loss = progress.validation_loss;
                progress.best_epoch = progress.epoch;
                progress.epochs_without_improvement = 0;
                best = parameters;
            } else {
                ++progress.epochs_without_improvement;
            }
        }
        if (patience > 0 && progress.epoch >= min_epochs)
            progress.stopped_early = progress.epochs_without_improvement >= patience;
        note_epoch(MPI_Wtime() - epoch_started_s_);
    }

    double validation_loss() {
        Sums own[num_microbatches] = {};
        for (std::int64_t v = first_; v < first_ + count_; ++v) {
            double found[2] = {};
            add_losses_of(step_, data.held_out.from(data.first_held_out(v)), share_of(data.num_held_out, v), found);
            own[v - first_] = {found[0], found[1]};
        }
        const Sums all = combined_in_tree(gathered(own), added);
        return all.loss / all.weight;
    }

    void note_epoch(double wall_time_s) {
        char text[longest_metric], validation[40] = "null";
        if (data.num_held_out > 0) std::snprintf(validation, sizeof validation, "%.17g", progress.validation_loss);
        std::snprintf(text, sizeof text,
                      "{\"epoch\": %lld, \"step\": %lld, \"train_loss\": %.17g, \"validation_loss\": %s, "
                      "\"learning_rate\": %.17g, \"wall_time_s\": %.4f}\n",
                      static_cast<long long>(progress.epoch), static_cast<long long>(progress.global_step),
                      progress.train_loss, validation, learning_rates[progress.epoch - 1], wall_time_s);
        metrics += text;
    }

    MPI_Comm comm_;
    std::vector<int> firsts_, counts_, sent_, places_;  // [ranks]; the last two of one collective
    std::vector<Sums> gathered_;                        // [V]
    int first_ = 0, count_ = 0;                         // this rank's microbatches
    bool is_even_ = true;                               // whether each rank's microbatches are a subtree of the tree
    std::int64_t laid_out_epoch_ = -1;
    std::vector<std::int64_t> block_microbatches_;  // the blocks whose sums are sent to other ranks
    std::vector<std::int64_t> order_;               // [steps][k][b], rows of the training samples
    std::vector<SampleAddresses> addresses_;
    std::vector<Real> partials_, rows_, ones_;
    double loss_and_stop_[2] = {};
    double epoch_started_s_ = 0;
    Draws draws_{};
    AlignedWorkspace workspace_;
    Step step_{};
};

}  // namespace
