// mpitrain_reference: trains the sea-ice network over MPI and records each number for comparison with the Python
// package. N samples, F = 7 features, H units of the first hidden layer, K parameters, P ranks, V virtual ranks.
#include <algorithm>
#include <iostream>
#include <memory>
#include <sstream>

#include "benchmark.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "first_weights.hpp"
#include "history_file.hpp"
#include "machine.hpp"
#include "mpi_session.hpp"
#include "netcdf_file.hpp"
#include "options.hpp"
#include "prediction.hpp"
#include "share.hpp"
#include "trace.hpp"
#include "train.hpp"

namespace {

/// Throws UserError if an output file cannot be written, before any work is done. For rank 0, which writes the files.
void check_outputs(const Options& options) {
    for (const std::string& path : {options.trace, options.prediction, options.model_output}) {
        if (!path.empty()) check_writable(path);
    }
}

void check_hidden_size(const Options& options, const Weights& weights, const std::string& path) {
    if (options.hidden_size && static_cast<std::size_t>(*options.hidden_size) != weights.sizes[1]) {
        throw UserError("--hidden-size " + std::to_string(*options.hidden_size) + ": " + path + " has " +
                        std::to_string(weights.sizes[1]) + " hidden units; leave the flag out or give that number");
    }
}

Weights read_or_draw_weights(const Options& options) {
    if (options.seed) return first_weights(options.hidden_size.value_or(16), *options.seed);
    Weights weights = read_weights(options.initial_weights);
    check_hidden_size(options, weights, options.initial_weights);
    return weights;
}

template <typename Real>
std::unique_ptr<Engine<Real>> make_engine(const Options& options, const Weights& weights,
                                          const Normalization& normalization) {
    auto engine = options.engine == EngineKind::torch ? make_torch_engine<Real>(weights, options)
                                                      : make_plain_engine<Real>(weights, options);
    engine->set_normalization(normalization);
    return engine;
}

/// Returns the number of steps: that of the batch order, if given; otherwise one step on all samples per epoch.
std::int64_t num_steps_of(const Options& options, const BatchOrder& order) {
    if (options.batch_order.empty()) return options.epochs.value_or(60);
    if (options.epochs && order.num_steps % *options.epochs != 0) {
        throw UserError("--epochs " + std::to_string(*options.epochs) + ": " + options.batch_order + " has " +
                        std::to_string(order.num_steps) + " steps, which is not a multiple of it; leave the flag out");
    }
    return order.num_steps;
}

template <typename Real>
TrainingRecord train(const MpiSession& mpi, const Options& options, Engine<Real>& engine, const Share<Real>& share,
                     const Sizes& sizes, std::int64_t num_steps) {
    if (options.semantics == Semantics::reference) {
        return train_reference(mpi, engine, share.samples[0], sizes, num_steps, options.trace_steps);
    }
    return train_standard(mpi, engine, share.samples, share.order, sizes, num_steps, options.trace_steps);
}

std::vector<double> as_doubles(const std::vector<float>& values) { return {values.begin(), values.end()}; }
const std::vector<double>& as_doubles(const std::vector<double>& values) { return values; }

/// Collective. Adds the partition of the samples and their normalisation to the trace. Complete on rank 0 only.
template <typename Real>
void trace_samples(const MpiSession& mpi, Trace& trace, const std::vector<std::int64_t>& points,
                   const Share<Real>& share, const Normalization& normalization) {
    std::vector<std::int64_t> local_index;
    for (const Samples<Real>& samples : share.samples) {
        local_index.insert(local_index.end(), samples.index.begin(), samples.index.end());
    }
    const auto counts = mpi.gather<std::int64_t>({static_cast<std::int64_t>(local_index.size())});
    const auto index = mpi.gather(local_index);
    trace.add("selected_index", {{"n_selected", points.size()}}, points);
    trace.add("partition_count", {{"rank", counts.size()}}, counts);
    trace.add("partition_index", {{"n_total", index.size()}}, index);
    trace.add("input_mean", {{"feature", num_features}}, normalization.mean);
    trace.add("input_std", {{"feature", num_features}}, normalization.std);
}

/// Collective. Adds the network's output with the initial weights, from one forward pass per set of samples.
template <typename Real>
void trace_forward(const MpiSession& mpi, Trace& trace, Engine<Real>& engine, const Share<Real>& share) {
    std::vector<Real> local;
    for (const Samples<Real>& samples : share.samples) {
        if (samples.size() == 0) continue;
        const std::vector<Real> y = engine.forward(samples.x);
        local.insert(local.end(), y.begin(), y.end());
    }
    const std::vector<Real> y = mpi.gather(local);
    trace.add("forward_step1", {{"n_total", y.size()}}, as_doubles(y));
}

void trace_training(Trace& trace, const TrainingRecord& record, const Sizes& sizes) {
    trace.add("loss", {{"step", record.loss.size()}}, record.loss);
    for (const TrainingRecord::Snapshot& snapshot : record.snapshots) {
        const std::string step = "_step" + std::to_string(snapshot.step);
        trace.add_parameters("gradient" + step, snapshot.gradient, sizes);
        trace.add_parameters("weights" + step, snapshot.weights, sizes);
    }
}

void trace_attributes(Trace& trace, const Options& options, int world_size, const Sizes& sizes, std::int64_t num_steps,
                      std::int64_t num_virtual_ranks) {
    trace.set_attribute("semantics", name_of(options.semantics));
    trace.set_attribute("engine", name_of(options.engine));
    trace.set_attribute("precision", name_of(options.precision));
    trace.set_attribute("ranks", world_size);
    trace.set_attribute("optimizer_steps", num_steps);
    trace.set_attribute("hidden_size", static_cast<std::int64_t>(sizes[1]));
    trace.set_attribute("pole", name_of(options.pole));
    trace.set_attribute("clean_data", options.clean_data ? "true" : "false");
    trace.set_attribute("virtual_ranks", num_virtual_ranks);  // 0 in reference semantics, which has none
}

template <typename Real>
std::string timing_line(const Options& options, int world_size, const Sizes& sizes, const Share<Real>& share,
                        std::vector<double> step_seconds) {
    const auto middle = step_seconds.begin() + static_cast<std::ptrdiff_t>(step_seconds.size() / 2);
    std::nth_element(step_seconds.begin(), middle, step_seconds.end());
    const bool reference = options.semantics == Semantics::reference;
    const std::size_t rows = reference ? share.samples[0].size()
                                       : share.samples.size() * static_cast<std::size_t>(share.order.microbatch_size);
    std::ostringstream line;
    line << "{\"engine\": \"" << name_of(options.engine) << "\", \"semantics\": \"" << name_of(options.semantics)
         << "\", \"precision\": \"" << name_of(options.precision) << "\", \"ranks\": " << world_size
         << ", \"hidden_size\": " << sizes[1] << ", \"rows_on_rank_0\": " << rows
         << ", \"steps\": " << step_seconds.size() << ", \"median_us_per_step\": " << *middle * 1e6 << "}";
    return line.str();
}

/// Collective. Reads the weights of a trained model and writes a prediction; all work is done on rank 0.
template <typename Real>
void predict_only(const MpiSession& mpi, const Options& options, const History& history,
                  const std::vector<std::int64_t>& points) {
    mpi.together([&] {
        if (!mpi.is_root()) return;
        if (points.empty()) throw UserError(options.history + ": no sample is selected; see --pole and --clean-data");
        const Model model = read_model(options.model);
        check_hidden_size(options, model.weights, options.model);
        const auto engine = make_engine<Real>(options, model.weights, model.normalization);
        const Samples<Real> samples = take_samples<Real>(history, points);
        write_prediction(options.prediction, history, points, engine->predict(samples.x));
    });
}

template <typename Real>
void run(const MpiSession& mpi, const Options& options) {
    if (options.benchmark) {
        const std::string line = run_benchmark<Real>(mpi, options);
        if (mpi.is_root()) std::cout << line << std::endl;
        return;
    }

    // 3 read the grid and fields
    mpi.together([&] {
        if (mpi.is_root()) check_outputs(options);
    });
    const History history = mpi.together([&] { return read_history(options.history); });

    // 4 select
    const std::vector<std::int64_t> points = selected_points(mpi, options, history);
    if (options.predict_only) return predict_only<Real>(mpi, options, history, points);

    // 5 partition
    const Share<Real> share = partition_points<Real>(mpi, options, history, points);

    // 6 statistics
    const Normalization normalization = share_normalization(mpi, options, share);

    // 7 initial weights
    const Weights initial = mpi.together([&] { return read_or_draw_weights(options); });
    const Sizes& sizes = initial.sizes;
    const auto engine = mpi.together([&] { return make_engine<Real>(options, initial, normalization); });
    const std::int64_t num_steps = mpi.together([&] { return num_steps_of(options, share.order); });
    Trace trace;
    trace_machine(mpi, trace);
    trace_samples(mpi, trace, points, share, normalization);
    trace.add_parameters("initial", initial.values, sizes);
    trace_forward(mpi, trace, *engine, share);

    // 8 train
    const TrainingRecord record = train(mpi, options, *engine, share, sizes, num_steps);

    // 9 write the trace
    mpi.together([&] {
        if (!mpi.is_root()) return;
        const Prediction prediction = engine->predict(take_samples<Real>(history, points).x);
        trace_attributes(trace, options, mpi.world_size(), sizes, num_steps, share.order.num_virtual_ranks);
        trace_training(trace, record, sizes);
        trace.add_parameters("weights_final", engine->weights(), sizes);
        trace.add("prediction", {{"n_selected", points.size()}}, prediction.y);
        trace.add("jacobian", {{"n_selected", points.size()}, {"feature", num_features}}, prediction.jacobian);
        if (!options.trace.empty()) trace.write(options.trace, options.precision);
        if (!options.prediction.empty()) write_prediction(options.prediction, history, points, prediction);
        if (!options.model_output.empty()) engine->save_model(options.model_output);
        if (options.timing) {
            std::cout << timing_line(options, mpi.world_size(), sizes, share, record.step_seconds) << std::endl;
        }
    });
}

int run_program(const MpiSession& mpi, int argc, char** argv) {
    try {
        // 2 read the flags
        const Options options = mpi.together([&] { return read_options(argc, argv); });
        if (options.help) {
            if (mpi.is_root()) std::cout << help_text();
            return exit_done;
        }
        options.precision == Precision::float32 ? run<float>(mpi, options) : run<double>(mpi, options);
        return exit_done;
    } catch (const AgreedError& error) {
        if (mpi.is_root()) std::cerr << "mpitrain_reference: error: " << error.what() << std::endl;
        return error.exit_code();
    } catch (const std::exception& error) {
        // This error is not raised on the other ranks, which would block in a collective: abort them.
        std::cerr << "mpitrain_reference: error: rank " << mpi.rank() << ": " << error.what() << std::endl;
        MPI_Abort(mpi.comm(), exit_bug);
        return exit_bug;
    }
}

}  // namespace

int main(int argc, char** argv) {
    // 1 start MPI
    const MpiSession mpi(argc, argv);
    return run_program(mpi, argc, argv);
}
