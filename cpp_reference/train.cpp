#include "train.hpp"

#include <algorithm>

#include "virtual_ranks.hpp"

namespace {

template <typename Real>
void record_step(TrainingRecord& record, std::int64_t step, double seconds, double loss, const Engine<Real>& engine,
                 const Real* gradient, std::size_t num_weights, const std::vector<std::int64_t>& trace_steps) {
    record.step_seconds.push_back(seconds);
    record.loss.push_back(loss);
    if (!std::binary_search(trace_steps.begin(), trace_steps.end(), step)) return;
    record.snapshots.push_back({step, {gradient, gradient + num_weights}, engine.weights()});
}

/// The rows of one slice, copied together from the samples of its virtual rank.
template <typename Real>
class SliceBuffer {
  public:
    explicit SliceBuffer(std::size_t rows) : x_(rows * num_features), y_(rows), weight_(rows) {}

    /// slots: one a row; -1 is a row of weight zero with x = 0, y = 0.
    Slice<Real> fill(const Samples<Real>& samples, const std::int64_t* slots) {
        for (std::size_t r = 0; r < y_.size(); ++r) {
            Real* row = x_.data() + r * num_features;
            if (slots[r] < 0) {
                std::fill_n(row, num_features, Real{0});
                y_[r] = weight_[r] = 0;
                continue;
            }
            const auto j = static_cast<std::size_t>(slots[r]);
            std::copy_n(samples.x.data() + j * num_features, num_features, row);
            y_[r] = samples.y[j];
            weight_[r] = 1;
        }
        return {y_.size(), x_.data(), y_.data(), weight_.data()};
    }

    Real weight_sum() const {
        Real total = 0;
        for (const Real weight : weight_) total += weight;
        return total;
    }

  private:
    std::vector<Real> x_, y_, weight_;
};

}  // namespace

template <typename Real>
TrainingRecord train_reference(const MpiSession& mpi, Engine<Real>& engine, const Samples<Real>& samples,
                               std::size_t hidden_size, std::int64_t num_steps,
                               const std::vector<std::int64_t>& trace_steps) {
    const auto parameters = parameters_of(hidden_size);
    std::vector<Real> gradient(num_parameters(hidden_size));
    const Slice<Real> all = {samples.size(), samples.x.data(), samples.y.data(), nullptr};
    // The original meant the number of samples here and took the number of features.
    const auto divisor = static_cast<Real>(static_cast<int>(num_features) * mpi.world_size());
    TrainingRecord record;
    for (std::int64_t step = 1; step <= num_steps; ++step) {
        const double start = MPI_Wtime();
        const Real loss = engine.mean_loss(all, gradient.data());
        for (const Parameter& parameter : parameters) {
            MPI_Allreduce(MPI_IN_PLACE, gradient.data() + parameter.start, static_cast<int>(parameter.size),
                          mpi_type<Real>(), MPI_SUM, mpi.comm());
        }
        for (Real& value : gradient) value /= divisor;
        engine.adam_step(gradient.data());
        record_step(record, step, MPI_Wtime() - start, static_cast<double>(loss), engine, gradient.data(),
                    gradient.size(), trace_steps);
    }
    return record;
}

template <typename Real>
TrainingRecord train_standard(const MpiSession& mpi, Engine<Real>& engine, const std::vector<Samples<Real>>& samples,
                              const BatchOrder& order, std::size_t hidden_size, std::int64_t num_steps,
                              const std::vector<std::int64_t>& trace_steps) {
    const std::size_t num_weights = num_parameters(hidden_size);
    const auto rows = static_cast<std::size_t>(order.slice_size);
    // Behind each partial gradient travel the slice's summed loss and its summed weight.
    VirtualRanks<Real> virtual_ranks(mpi, order.num_virtual_ranks, num_weights + 2);
    SliceBuffer<Real> buffer(rows);
    TrainingRecord record;
    for (std::int64_t step = 1; step <= num_steps; ++step) {
        const double start = MPI_Wtime();
        const auto entry = static_cast<std::size_t>((step - 1) % order.num_steps);
        for (std::size_t s = 0; s < samples.size(); ++s) {
            const Slice<Real> slice = buffer.fill(samples[s], &order.slots[(entry * samples.size() + s) * rows]);
            Real* partial = virtual_ranks.partial(order.owned.start + static_cast<std::int64_t>(s));
            partial[num_weights] = engine.summed_loss(slice, partial);
            partial[num_weights + 1] = buffer.weight_sum();
        }
        Real* total = virtual_ranks.all_reduce();
        const Real total_weight = total[num_weights + 1];
        for (std::size_t k = 0; k < num_weights; ++k) total[k] /= total_weight;
        engine.adam_step(total);
        const double seconds = MPI_Wtime() - start;
        record_step(record, step, seconds, static_cast<double>(total[num_weights] / total_weight), engine, total,
                    num_weights, trace_steps);
    }
    return record;
}

template TrainingRecord train_reference(const MpiSession&, Engine<float>&, const Samples<float>&, std::size_t,
                                        std::int64_t, const std::vector<std::int64_t>&);
template TrainingRecord train_reference(const MpiSession&, Engine<double>&, const Samples<double>&, std::size_t,
                                        std::int64_t, const std::vector<std::int64_t>&);
template TrainingRecord train_standard(const MpiSession&, Engine<float>&, const std::vector<Samples<float>>&,
                                       const BatchOrder&, std::size_t, std::int64_t, const std::vector<std::int64_t>&);
template TrainingRecord train_standard(const MpiSession&, Engine<double>&, const std::vector<Samples<double>>&,
                                       const BatchOrder&, std::size_t, std::int64_t, const std::vector<std::int64_t>&);
