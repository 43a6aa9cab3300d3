#include "benchmark.hpp"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <numeric>
#include <random>
#include <sstream>

#include "engine.hpp"
#include "microbatch_buffer.hpp"
#include "train.hpp"

namespace {

constexpr std::int64_t default_num_samples = 16384;

/// Returns a number from -1 to 1 that depends only on its key, not on the rank: the finaliser of splitmix64.
double noise(std::uint64_t key) {
    std::uint64_t z = (key + 1) * 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return static_cast<double>((z ^ (z >> 31)) >> 11) / 4503599627370496.0 - 1;  // 2^52
}

/// Returns the samples part, part + num_parts, ... of all N; y is the sigmoid of the sum of the inputs.
template <typename Real>
Samples<Real> synthetic_samples(std::int64_t num_samples, std::int64_t num_parts, std::int64_t part) {
    Samples<Real> samples;
    for (std::int64_t i = part; i < num_samples; i += num_parts) {
        double sum = 0;
        for (std::size_t f = 0; f < num_features; ++f) {
            const double x = noise(static_cast<std::uint64_t>(i) * num_features + f);
            samples.x.push_back(static_cast<Real>(x));
            sum += x;
        }
        samples.index.push_back(i);
        samples.y.push_back(static_cast<Real>(1 / (1 + std::exp(-sum))));
    }
    return samples;
}

/// Returns weights as torch initialises a layer: uniform in +-1 / sqrt(inputs).
Weights synthetic_weights(const std::vector<std::int64_t>& network) {
    Weights weights{{network.begin(), network.end()}, {}};
    for (std::size_t l = 1; l < weights.sizes.size(); ++l) {
        const double bound = 1 / std::sqrt(static_cast<double>(weights.sizes[l - 1]));
        const std::size_t count = weights.sizes[l] * (weights.sizes[l - 1] + 1);
        for (std::size_t k = 0; k < count; ++k) weights.values.push_back(bound * noise(weights.values.size()));
    }
    return weights;
}

/// Returns the samples of each owned part in each step of an epoch: all samples, shuffled, the same in every epoch.
BatchOrder shuffled_order(std::int64_t num_samples, std::int64_t batch_size, std::int64_t num_parts, Range owned) {
    BatchOrder order;
    order.num_virtual_ranks = num_parts;
    order.microbatch_size = batch_size / num_parts;
    order.num_steps = num_samples / batch_size;
    order.owned = owned;
    std::vector<std::vector<std::int64_t>> shuffled;
    for (std::int64_t part = owned.start; part < owned.stop; ++part) {
        shuffled.emplace_back(static_cast<std::size_t>(num_samples / num_parts));
        std::iota(shuffled.back().begin(), shuffled.back().end(), 0);
        if (order.num_steps > 1) {
            std::shuffle(shuffled.back().begin(), shuffled.back().end(), std::mt19937_64(static_cast<unsigned>(part)));
        }
    }
    for (std::int64_t step = 0; step < order.num_steps; ++step) {
        for (const std::vector<std::int64_t>& own : shuffled) {
            const auto start = own.begin() + step * order.microbatch_size;
            order.slots.insert(order.slots.end(), start, start + order.microbatch_size);
        }
    }
    return order;
}

/// Trains with one microbatch per rank. MPI adds the gradients in any order: in one message, or one per parameter.
template <typename Real>
std::vector<double> train_any(const MpiSession& mpi, Engine<Real>& engine, const Samples<Real>& samples,
                              const BatchOrder& order, const Sizes& sizes, std::int64_t num_steps, bool by_parameter) {
    const std::vector<Parameter> parameters = parameters_of(sizes);
    std::vector<Real> gradient(num_parameters(sizes));
    MicrobatchBuffer<Real> buffer(static_cast<std::size_t>(order.microbatch_size));
    const auto world_size = static_cast<Real>(mpi.world_size());
    const auto add_up = [&](Real* values, std::size_t count) {
        MPI_Allreduce(MPI_IN_PLACE, values, static_cast<int>(count), mpi_type<Real>(), MPI_SUM, mpi.comm());
    };
    std::vector<double> step_seconds;
    for (std::int64_t step = 0; step < num_steps; ++step) {
        const double start = MPI_Wtime();
        Microbatch<Real> microbatch = {samples.size(), samples.x.data(), samples.y.data(), nullptr};
        if (order.num_steps > 1) {  // otherwise the batch is all samples, without a copy
            microbatch = buffer.fill(
                samples, &order.slots[static_cast<std::size_t>(step % order.num_steps * order.microbatch_size)]);
            microbatch.weight = nullptr;
        }
        engine.mean_loss(microbatch, gradient.data());
        if (by_parameter) {
            for (const Parameter& parameter : parameters) add_up(gradient.data() + parameter.start, parameter.size);
        } else {
            add_up(gradient.data(), gradient.size());
        }
        for (Real& value : gradient) value /= world_size;
        engine.adam_step(gradient.data());
        step_seconds.push_back(MPI_Wtime() - start);
    }
    return step_seconds;
}

void check_divides(const std::string& flag, std::int64_t count, std::int64_t divisor, const std::string& of_what) {
    if (count % divisor == 0) return;
    throw UserError("--" + flag + " " + std::to_string(count) + ": not allowed; give a multiple of " +
                    std::to_string(divisor) + ", " + of_what);
}

std::string json_line(const Options& options, int world_size, std::int64_t num_samples, std::int64_t batch_size,
                      const std::vector<double>& weights, const std::vector<double>& step_seconds) {
    std::ostringstream line;
    line << "{\"engine\": \"" << name_of(options.engine) << "\", \"network\": \"";
    for (std::size_t l = 0; l < options.network.size(); ++l) line << (l == 0 ? "" : "-") << options.network[l];
    line << "\", \"reduction\": \"" << name_of(options.reduction) << "\", \"precision\": \""
         << name_of(options.precision) << "\", \"ranks\": " << world_size << ", \"samples\": " << num_samples
         << ", \"global_batch_size\": " << batch_size << ", \"weight_norm\": " << std::setprecision(17)
         << std::sqrt(std::inner_product(weights.begin(), weights.end(), weights.begin(), 0.0)) << ", \"step_us\": ["
         << std::fixed << std::setprecision(2);
    for (std::size_t k = 0; k < step_seconds.size(); ++k) line << (k == 0 ? "" : ", ") << step_seconds[k] * 1e6;
    line << "]}";
    return line.str();
}

}  // namespace

template <typename Real>
std::string run_benchmark(const MpiSession& mpi, const Options& options) {
    const bool is_fixed = options.reduction == Reduction::fixed;
    const std::int64_t num_samples = options.num_samples.value_or(default_num_samples);
    const std::int64_t batch_size = options.batch_size.value_or(num_samples);
    const std::int64_t num_parts =
        is_fixed ? options.virtual_ranks.value_or(microbatches_of(batch_size)) : mpi.world_size();
    const std::int64_t warmup = options.warmup.value_or(*options.benchmark / 10 + 1);
    Options engine_options = options;  // reference semantics select libtorch's Adam
    engine_options.semantics = options.reduction == Reduction::original ? Semantics::reference : Semantics::standard;
    const Weights weights = synthetic_weights(options.network);
    const auto engine = mpi.together([&] {
        const std::string parts = is_fixed ? "the number of virtual ranks" : "the number of ranks";
        check_divides("samples", num_samples, num_parts, parts);
        check_divides("batch-size", batch_size, num_parts, parts);
        if (batch_size > num_samples) {
            throw UserError("--batch-size " + std::to_string(batch_size) + ": not allowed; give at most the " +
                            std::to_string(num_samples) + " samples");
        }
        return options.engine == EngineKind::torch ? make_torch_engine<Real>(weights, engine_options)
                                                   : make_plain_engine<Real>(weights, engine_options);
    });
    const Range owned =
        is_fixed ? rank_range(num_parts, mpi.world_size(), mpi.rank()) : Range{mpi.rank(), mpi.rank() + 1};
    std::vector<Samples<Real>> samples;
    for (std::int64_t part = owned.start; part < owned.stop; ++part) {
        samples.push_back(synthetic_samples<Real>(num_samples, num_parts, part));
    }
    const BatchOrder order = shuffled_order(num_samples, batch_size, num_parts, owned);
    const std::int64_t num_steps = warmup + *options.benchmark;
    std::vector<double> seconds =
        is_fixed ? train_standard(mpi, *engine, samples, order, weights.sizes, num_steps, {}).step_seconds
                 : train_any(mpi, *engine, samples[0], order, weights.sizes, num_steps,
                             options.reduction == Reduction::original);
    seconds.erase(seconds.begin(), seconds.begin() + warmup);
    return mpi.is_root() ? json_line(options, mpi.world_size(), num_samples, batch_size, engine->weights(), seconds)
                         : "";
}

template std::string run_benchmark<float>(const MpiSession&, const Options&);
template std::string run_benchmark<double>(const MpiSession&, const Options&);
