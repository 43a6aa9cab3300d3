#include "train.hpp"

#include <algorithm>

#include "microbatch_buffer.hpp"
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

}  // namespace

template <typename Real>
TrainingRecord train_reference(const MpiSession& mpi, Engine<Real>& engine, const Samples<Real>& samples,
                               const Sizes& sizes, std::int64_t num_steps,
                               const std::vector<std::int64_t>& trace_steps) {
    const auto parameters = parameters_of(sizes);
    std::vector<Real> gradient(num_parameters(sizes));
    const Microbatch<Real> all = {samples.size(), samples.x.data(), samples.y.data(), nullptr};
    // The original program divides by the number of features instead of the number of samples.
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
                              const BatchOrder& order, const Sizes& sizes, std::int64_t num_steps,
                              const std::vector<std::int64_t>& trace_steps) {
    const std::size_t num_weights = num_parameters(sizes);
    const auto rows = static_cast<std::size_t>(order.microbatch_size);
    // Each partial has two more numbers after the gradient: the microbatch's summed loss and its summed weight.
    VirtualRanks<Real> virtual_ranks(mpi, order.num_virtual_ranks, num_weights + 2);
    MicrobatchBuffer<Real> buffer(rows);
    TrainingRecord record;
    for (std::int64_t step = 1; step <= num_steps; ++step) {
        const double start = MPI_Wtime();
        const auto entry = static_cast<std::size_t>((step - 1) % order.num_steps);
        for (std::size_t s = 0; s < samples.size(); ++s) {
            const Microbatch<Real> microbatch =
                buffer.fill(samples[s], &order.slots[(entry * samples.size() + s) * rows]);
            Real* partial = virtual_ranks.partial(order.owned.start + static_cast<std::int64_t>(s));
            partial[num_weights] = engine.summed_loss(microbatch, partial);
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

template TrainingRecord train_reference(const MpiSession&, Engine<float>&, const Samples<float>&, const Sizes&,
                                        std::int64_t, const std::vector<std::int64_t>&);
template TrainingRecord train_reference(const MpiSession&, Engine<double>&, const Samples<double>&, const Sizes&,
                                        std::int64_t, const std::vector<std::int64_t>&);
template TrainingRecord train_standard(const MpiSession&, Engine<float>&, const std::vector<Samples<float>>&,
                                       const BatchOrder&, const Sizes&, std::int64_t, const std::vector<std::int64_t>&);
template TrainingRecord train_standard(const MpiSession&, Engine<double>&, const std::vector<Samples<double>>&,
                                       const BatchOrder&, const Sizes&, std::int64_t, const std::vector<std::int64_t>&);
